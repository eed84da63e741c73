//! Handlers for snapshots, versions and the trash, and for the name, size and settings of a volume.

use super::{Answered, App};
use crate::http::api::kept::{CloneVolume, Rename, Resize, Restore, Rollback, TakeSnapshot};
use crate::http::api::{ApiError, Volume};
use crate::http::extract::{Body, Piece, Pieces};
use axum::Json;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::{MethodRouter, delete, get, post};
use rekindle_volume::{TrashedVolume, VolumeSnapshot, VolumeVersion, WriteSettings};

/// Returns the routes of this file.
pub(super) fn table() -> [(Method, &'static str, MethodRouter<App>); 12] {
    [
        (Method::POST, "/api/v1/volumes/{name}/rename", post(rename_volume)),
        (Method::POST, "/api/v1/volumes/{name}/resize", post(resize_volume)),
        (Method::POST, "/api/v1/volumes/{name}/settings", post(set_volume)),
        (Method::GET, "/api/v1/volumes/{name}/versions", get(versions)),
        (Method::POST, "/api/v1/volumes/{name}/rollback", post(rollback_volume)),
        (Method::GET, "/api/v1/volumes/{name}/snapshots", get(snapshots)),
        (Method::POST, "/api/v1/volumes/{name}/snapshots", post(take_snapshot)),
        (Method::DELETE, "/api/v1/volumes/{name}/snapshots/{snapshot}", delete(remove_snapshot)),
        (Method::POST, "/api/v1/volumes/{name}/clone", post(clone_volume)),
        (Method::GET, "/api/v1/trash", get(trash)),
        (Method::POST, "/api/v1/trash/{name}/restore", post(restore_volume)),
        (Method::DELETE, "/api/v1/trash/{name}", delete(purge_volume)),
    ]
}

/// Gives another name to a volume that no client uses.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/rename", request_body = Rename,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Volume, description = "The volume.")))]
pub(crate) async fn rename_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<Rename>,
) -> Answered<Volume> {
    app.api.rename_volume(&name, request).await.map(Json)
}

/// Gives a volume another size: larger in service; smaller only with `shrink`, and while no client
/// uses the volume.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/resize", request_body = Resize,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Volume, description = "The volume.")))]
pub(crate) async fn resize_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<Resize>,
) -> Answered<Volume> {
    app.api.resize_volume(&name, request).await.map(Json)
}

/// Gives a volume that no client uses other settings. What it has acknowledged reaches the store
/// first.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/settings", request_body = WriteSettings,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Volume, description = "The volume.")))]
pub(crate) async fn set_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Body(settings): Body<WriteSettings>,
) -> Answered<Volume> {
    app.api.set_volume(&name, settings).await.map(Json)
}

/// Lists the kept earlier contents of a volume, the newest first.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/versions",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Vec<VolumeVersion>, description = "Its versions.")))]
pub(crate) async fn versions(
    State(app): State<App>,
    Piece(name): Piece,
) -> Answered<Vec<VolumeVersion>> {
    app.api.versions(&name).await.map(Json)
}

/// Goes back to an earlier content of a volume that no client uses; the present content becomes a
/// version.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/rollback", request_body = Rollback,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Volume, description = "The volume.")))]
pub(crate) async fn rollback_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<Rollback>,
) -> Answered<Volume> {
    app.api.rollback_volume(&name, request).await.map(Json)
}

/// Lists the snapshots of a volume, the oldest first.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/snapshots",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Vec<VolumeSnapshot>, description = "Its snapshots.")))]
pub(crate) async fn snapshots(
    State(app): State<App>,
    Piece(name): Piece,
) -> Answered<Vec<VolumeSnapshot>> {
    app.api.snapshots(&name).await.map(Json)
}

/// Keeps what a volume has now under a name, while its clients go on: all that was acknowledged
/// before the request.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots", request_body = TakeSnapshot,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = VolumeSnapshot, description = "The snapshot.")))]
pub(crate) async fn take_snapshot(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<TakeSnapshot>,
) -> Answered<VolumeSnapshot> {
    app.api.take_snapshot(&name, request).await.map(Json)
}

/// Removes a snapshot; the sweep gives back what only it kept.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/snapshots/{snapshot}",
    params(("name" = String, Path, description = "The volume's name."),
        ("snapshot" = String, Path, description = "Its name.")),
    responses((status = 204, description = "It is gone.")))]
pub(crate) async fn remove_snapshot(
    State(app): State<App>,
    Pieces(name, snapshot): Pieces,
) -> Result<StatusCode, ApiError> {
    app.api.remove_snapshot(&name, &snapshot).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a volume that begins with the content of a snapshot. No byte is copied.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/clone", request_body = CloneVolume,
    params(("name" = String, Path, description = "The name of the snapshot's volume.")),
    responses((status = 200, body = Volume, description = "The new volume.")))]
pub(crate) async fn clone_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<CloneVolume>,
) -> Answered<Volume> {
    app.api.clone_volume(&name, request).await.map(Json)
}

/// Lists the volumes in the trash, the last removed first.
#[utoipa::path(get, path = "/api/v1/trash",
    responses((status = 200, body = Vec<TrashedVolume>, description = "The trash.")))]
pub(crate) async fn trash(State(app): State<App>) -> Answered<Vec<TrashedVolume>> {
    app.api.trash().await.map(Json)
}

/// Takes a volume out of the trash; of several with the name, the last removed.
#[utoipa::path(post, path = "/api/v1/trash/{name}/restore", request_body = Restore,
    params(("name" = String, Path, description = "The name that it had.")),
    responses((status = 200, body = Volume, description = "The volume.")))]
pub(crate) async fn restore_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<Restore>,
) -> Answered<Volume> {
    app.api.restore_volume(&name, request).await.map(Json)
}

/// Removes for good the volumes in the trash under a name.
#[utoipa::path(delete, path = "/api/v1/trash/{name}",
    params(("name" = String, Path, description = "The name that it had.")),
    responses((status = 204, description = "It is gone.")))]
pub(crate) async fn purge_volume(
    State(app): State<App>,
    Piece(name): Piece,
) -> Result<StatusCode, ApiError> {
    app.api.purge_volume(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
