//! The table of paths, and a handler for each: unpack the question, ask the [`Api`](super::Api),
//! pack the answer.

pub(super) mod kept;
pub(super) mod mount;

use super::api::{
    AdoptFolder, Api, ApiError, BootReport, Cluster, CreateVolume, DismissNode, Dismissed,
    DrainNode, Event, Guest, Health, Job, LogUsage, MoveVolume, Recovery, Shutdown, StartAttach,
    StartSalvage, StartSpace, StartSweep, StartVerify, Status, StoreInfo, SweepStatus, Volume,
    WarmDropped, WarmStatus,
};
use super::extract::{Body, Narrow, Options, Piece, Remove};
use super::metrics::Render;
use super::problem::problem;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Json, Router};
use rekindle_base::Kind;
use rekindle_volume::{Account, Salvage, StopProgress};
use serde::Serialize;
use std::sync::Arc;

/// The parts of the API. Clones are cheap.
#[derive(Clone)]
pub struct App {
    pub api: Arc<dyn Api>,
    pub metrics: Render,
}

type Answered<T> = Result<Json<T>, ApiError>;

/// Returns all routes.
pub(super) fn table() -> Vec<(Method, &'static str, MethodRouter<App>)> {
    let mut all = vec![
        (Method::GET, "/healthz", get(healthz)),
        (Method::GET, "/metrics", get(metrics)),
        (Method::GET, "/openapi.json", get(openapi)),
        (Method::GET, "/api/v1/status", get(status)),
        (Method::GET, "/api/v1/volumes", get(volumes)),
        (Method::POST, "/api/v1/volumes", post(create_volume)),
        (Method::GET, "/api/v1/volumes/{name}", get(volume)),
        (Method::DELETE, "/api/v1/volumes/{name}", delete(remove_volume)),
        (Method::POST, "/api/v1/volumes/{name}/drain", post(drain_volume)),
        (Method::POST, "/api/v1/volumes/{name}/move", post(move_volume)),
        (Method::POST, "/api/v1/volumes/{name}/pin", post(pin_volume)),
        (Method::DELETE, "/api/v1/volumes/{name}/pin", delete(unpin_volume)),
        (Method::GET, "/api/v1/volumes/{name}/history", get(history)),
        (Method::GET, "/api/v1/volumes/{name}/salvage", get(salvage_history)),
        (Method::POST, "/api/v1/volumes/{name}/salvage", post(start_salvage)),
        (Method::DELETE, "/api/v1/volumes/{name}/salvage", delete(cancel_salvage)),
        (Method::GET, "/api/v1/salvages", get(salvages)),
        (Method::GET, "/api/v1/salvages/history", get(all_salvages)),
        (Method::GET, "/api/v1/log", get(log_usage)),
        (Method::GET, "/api/v1/store", get(store)),
        (Method::GET, "/api/v1/warm", get(warm)),
        (Method::GET, "/api/v1/boot", get(boot)),
        (Method::DELETE, "/api/v1/warm/frames", delete(drop_warm_frames)),
        (Method::GET, "/api/v1/sweep", get(sweep)),
        (Method::POST, "/api/v1/sweep", post(start_sweep)),
        (Method::POST, "/api/v1/sweep/plan", post(start_sweep_plan)),
        (Method::POST, "/api/v1/sweep/dismiss", post(dismiss_node)),
        (Method::GET, "/api/v1/cluster", get(cluster)),
        (Method::GET, "/api/v1/cluster/recoveries", get(recoveries)),
        (Method::POST, "/api/v1/cluster/init", post(init_cluster)),
        (Method::POST, "/api/v1/cluster/rotate", post(rotate_key)),
        (Method::POST, "/api/v1/cluster/adopt", post(adopt_folder)),
        (Method::POST, "/api/v1/cluster/nodes/{node}/drain", post(drain_node)),
        (Method::POST, "/api/v1/cluster/nodes/{node}/takeover", post(take_over)),
        (Method::POST, "/api/v1/cluster/nodes/{node}/remove", post(remove_node)),
        (Method::POST, "/api/v1/space", post(start_space)),
        (Method::POST, "/api/v1/verify", post(start_verify)),
        (Method::POST, "/api/v1/attach", post(start_attach)),
        (Method::GET, "/api/v1/jobs", get(jobs)),
        (Method::GET, "/api/v1/jobs/{id}", get(job)),
        (Method::DELETE, "/api/v1/jobs/{id}", delete(cancel_job)),
        (Method::GET, "/api/v1/debug/{what}", get(debug)),
        (Method::POST, "/api/v1/shutdown", post(shutdown)),
        (Method::GET, "/api/v1/shutdown", get(stopping)),
    ];
    all.extend(kept::table());
    all.push(mount::row());
    all
}

pub(super) fn router() -> Router<App> {
    table()
        .into_iter()
        .fold(Router::new(), |router, (_, path, handler)| router.route(path, handler))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
}

async fn no_such_path(request: Request) -> ApiError {
    let message =
        format!("there is no {}: /openapi.json lists what there is", request.uri().path());
    ApiError::new(Kind::NotFound, message)
}

async fn no_such_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{method} does nothing at {path}: /openapi.json lists what does");
    problem(StatusCode::METHOD_NOT_ALLOWED, &ApiError::new(Kind::Invalid, message))
}

/// Tells whether the node serves.
#[utoipa::path(get, path = "/healthz", responses(
    (status = 200, body = Health, description = "It serves."),
    (status = 503, body = Health, description = "It does not, for these reasons.")
))]
pub(super) async fn healthz(State(app): State<App>) -> (StatusCode, Json<Health>) {
    let health = app.api.health();
    let status = if health.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}

/// Returns metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, body = String, content_type = "text/plain", description = "Prometheus text format.")
))]
pub(super) async fn metrics(State(app): State<App>) -> Response {
    super::metrics::respond(&app.metrics)
}

/// Returns this document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Object, description = "OpenAPI.")))]
pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(super::document())
}

/// Returns the node at a glance.
#[utoipa::path(get, path = "/api/v1/status", responses((status = 200, body = Status, description = "Status.")))]
pub(super) async fn status(State(app): State<App>) -> Answered<Status> {
    app.api.status().await.map(Json)
}

/// Lists all volumes, by name.
#[utoipa::path(get, path = "/api/v1/volumes", responses((status = 200, body = Vec<Volume>, description = "Volumes.")))]
pub(super) async fn volumes(State(app): State<App>) -> Result<Response, ApiError> {
    Ok(long(app.api.volumes().await?))
}

/// Answers with a long list. The room for it is made at once, by the length of the first entry: a
/// buffer that grows would be copied again and again.
fn long<T: Serialize>(entries: Vec<T>) -> Response {
    let one = entries.first().and_then(|one| serde_json::to_vec(one).ok()).unwrap_or_default();
    let mut body = Vec::with_capacity((one.len() + one.len() / 8 + 1) * entries.len() + 2);
    match serde_json::to_writer(&mut body, &entries) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => Json(entries).into_response(),
    }
}

/// Makes a volume.
#[utoipa::path(post, path = "/api/v1/volumes", request_body = CreateVolume, responses(
    (status = 201, body = Volume, description = "It is there.")
))]
pub(super) async fn create_volume(
    State(app): State<App>,
    Body(request): Body<CreateVolume>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    let volume = app.api.create_volume(request).await?;
    Ok((StatusCode::CREATED, Json(volume)))
}

/// Returns one volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Volume, description = "The volume.")))]
pub(super) async fn volume(State(app): State<App>, Piece(name): Piece) -> Answered<Volume> {
    app.api.volume(&name).await.map(Json)
}

/// Moves a volume to the trash, where it is kept for a week; or removes it for good.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}",
    params(("name" = String, Path, description = "Its name."), Remove),
    responses((status = 204, description = "It is gone.")))]
pub(super) async fn remove_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Options(options): Options<Remove>,
) -> Result<StatusCode, ApiError> {
    app.api.remove_volume(&name, options.force, options.now).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Brings all unfinished changes of a volume into the datastore.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/drain", params(("name" = String, Path, description = "Its name.")),
    responses((status = 202, body = Job, description = "It has begun.")))]
pub(super) async fn drain_volume(
    State(app): State<App>,
    Piece(name): Piece,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.drain_volume(&name).await?))
}

/// Moves a volume to another node of the cluster, while its clients go on.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/move", params(("name" = String, Path, description = "Its name.")),
    request_body = MoveVolume,
    responses((status = 202, body = Job, description = "It has begun; its result says how it went.")))]
pub(super) async fn move_volume(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<MoveVolume>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.move_volume(&name, request).await?))
}

/// Keeps a volume in service even when no client uses it.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/pin", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Volume, description = "It has a pin.")))]
pub(super) async fn pin_volume(State(app): State<App>, Piece(name): Piece) -> Answered<Volume> {
    app.api.pin_volume(&name, true).await.map(Json)
}

/// Lets the collector take a volume out of service again when no client uses it.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/pin", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Volume, description = "It has no pin.")))]
pub(super) async fn unpin_volume(State(app): State<App>, Piece(name): Piece) -> Answered<Volume> {
    app.api.pin_volume(&name, false).await.map(Json)
}

/// Lists what happened to a volume, oldest first.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/history",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Vec<Event>, description = "Its history.")))]
pub(super) async fn history(State(app): State<App>, Piece(name): Piece) -> Answered<Vec<Event>> {
    app.api.history(&name).await.map(Json)
}

/// Lists the last salvages of a volume, oldest first.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/salvage",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Vec<Account>, description = "What was found and done.")))]
pub(super) async fn salvage_history(
    State(app): State<App>,
    Piece(name): Piece,
) -> Answered<Vec<Account>> {
    app.api.salvage_history(Some(&name)).await.map(Json)
}

/// Checks and repairs a volume, in service if it is. The count of attempts starts anew.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/salvage", request_body = StartSalvage,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 202, body = Job, description = "It has begun.")))]
pub(super) async fn start_salvage(
    State(app): State<App>,
    Piece(name): Piece,
    Body(request): Body<StartSalvage>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.start_salvage(&name, request).await?))
}

/// Cancels the salvage of a volume, whether it waits or runs.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/salvage",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 204, description = "It ends.")))]
pub(super) async fn cancel_salvage(
    State(app): State<App>,
    Piece(name): Piece,
) -> Result<StatusCode, ApiError> {
    app.api.cancel_salvage(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the volumes that are being salvaged, then those that wait for it, the next one first.
#[utoipa::path(get, path = "/api/v1/salvages",
    responses((status = 200, body = Vec<Salvage>, description = "The queue.")))]
pub(super) async fn salvages(State(app): State<App>) -> Answered<Vec<Salvage>> {
    app.api.salvages().await.map(Json)
}

/// Lists the last salvages of all volumes, oldest first within a volume.
#[utoipa::path(get, path = "/api/v1/salvages/history",
    responses((status = 200, body = Vec<Account>, description = "What was found and done.")))]
pub(super) async fn all_salvages(State(app): State<App>) -> Answered<Vec<Account>> {
    app.api.salvage_history(None).await.map(Json)
}

/// Tells how full the log is.
#[utoipa::path(get, path = "/api/v1/log", responses((status = 200, body = LogUsage, description = "Usage.")))]
pub(super) async fn log_usage(State(app): State<App>) -> Answered<LogUsage> {
    app.api.log_usage().await.map(Json)
}

/// Returns the state of the datastore.
#[utoipa::path(get, path = "/api/v1/store", responses((status = 200, body = StoreInfo, description = "The store.")))]
pub(super) async fn store(State(app): State<App>) -> Answered<StoreInfo> {
    app.api.store().await.map(Json)
}

/// Returns the content of the memory that outlives the process, and how often it helped.
#[utoipa::path(get, path = "/api/v1/warm", responses((status = 200, body = WarmStatus, description = "Warm memory.")))]
pub(super) async fn warm(State(app): State<App>) -> Answered<WarmStatus> {
    app.api.warm().await.map(Json)
}

/// Returns the duration of this process' start, up to the first reply to a client.
#[utoipa::path(get, path = "/api/v1/boot", responses((status = 200, body = BootReport, description = "The start.")))]
pub(super) async fn boot(State(app): State<App>) -> Answered<BootReport> {
    app.api.boot().await.map(Json)
}

/// Empties the block frames of the warm memory; segments of the log stay.
#[utoipa::path(delete, path = "/api/v1/warm/frames",
    responses((status = 200, body = WarmDropped, description = "They are empty.")))]
pub(super) async fn drop_warm_frames(State(app): State<App>) -> Answered<WarmDropped> {
    app.api.drop_warm_frames().await.map(Json)
}

/// Returns the state of the sweep and the result of the last one.
#[utoipa::path(get, path = "/api/v1/sweep", responses((status = 200, body = SweepStatus, description = "Sweep.")))]
pub(super) async fn sweep(State(app): State<App>) -> Answered<SweepStatus> {
    app.api.sweep().await.map(Json)
}

/// Starts a sweep.
#[utoipa::path(post, path = "/api/v1/sweep", request_body = StartSweep, responses(
    (status = 202, body = Job, description = "It has begun.")
))]
pub(super) async fn start_sweep(
    State(app): State<App>,
    Body(StartSweep {}): Body<StartSweep>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.start_sweep().await?))
}

/// Starts to find out what a sweep would free, read and write, and what that costs at the prices of
/// the settings file. Changes nothing in the store.
#[utoipa::path(post, path = "/api/v1/sweep/plan", request_body = StartSweep, responses(
    (status = 202, body = Job, description = "It has begun; its result is the plan.")
))]
pub(super) async fn start_sweep_plan(
    State(app): State<App>,
    Body(StartSweep {}): Body<StartSweep>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.start_sweep_plan().await?))
}

/// Takes the user's word that another node of the store is gone for good: sweeps wait for it no
/// longer.
#[utoipa::path(post, path = "/api/v1/sweep/dismiss", request_body = DismissNode, responses(
    (status = 200, body = Dismissed, description = "No sweep waits for that start of it.")
))]
pub(super) async fn dismiss_node(
    State(app): State<App>,
    Body(request): Body<DismissNode>,
) -> Answered<Dismissed> {
    app.api.dismiss_node(request).await.map(Json)
}

/// Returns the cluster: its nodes, the holders of copies of this one's log, and the copies here.
#[utoipa::path(get, path = "/api/v1/cluster", responses((status = 200, body = Cluster, description = "The cluster.")))]
pub(super) async fn cluster(State(app): State<App>) -> Answered<Cluster> {
    app.api.cluster().await.map(Json)
}

/// Returns the lost nodes that have gone on at this host and what that took, the last one first.
#[utoipa::path(get, path = "/api/v1/cluster/recoveries", responses((status = 200, body = [Recovery], description = "The recoveries.")))]
pub(super) async fn recoveries(State(app): State<App>) -> Answered<Vec<Recovery>> {
    app.api.recoveries().await.map(Json)
}

/// Makes a cluster over the store, with this node as its first member. The token that other nodes
/// join with is in the daemon's folder.
#[utoipa::path(post, path = "/api/v1/cluster/init", responses((status = 200, body = Cluster, description = "It is made.")))]
pub(super) async fn init_cluster(State(app): State<App>) -> Answered<Cluster> {
    app.api.init_cluster().await.map(Json)
}

/// Replaces the key by which other nodes know this host, while connections go on.
#[utoipa::path(post, path = "/api/v1/cluster/rotate", responses((status = 200, description = "It is replaced.")))]
pub(super) async fn rotate_key(State(app): State<App>) -> Answered<()> {
    app.api.rotate_key().await.map(Json)
}

/// Has a node take no further copies, and their owners find other holders; or ends that.
#[utoipa::path(post, path = "/api/v1/cluster/nodes/{node}/drain",
    params(("node" = String, Path, description = "Id or name of a node.")),
    request_body = DrainNode, responses(
    (status = 200, description = "It drains, or not.")
))]
pub(super) async fn drain_node(
    State(app): State<App>,
    Piece(node): Piece,
    Body(request): Body<DrainNode>,
) -> Answered<()> {
    app.api.drain_node(&node, request).await.map(Json)
}

/// Takes a node over, although it may be well: this daemon, which holds copies of its log, goes on
/// as that node, too.
#[utoipa::path(post, path = "/api/v1/cluster/nodes/{node}/takeover", params(("node" = String, Path, description = "Id or name of a node.")), responses(
    (status = 200, body = Guest, description = "It serves here.")
))]
pub(super) async fn take_over(State(app): State<App>, Piece(node): Piece) -> Answered<Guest> {
    app.api.take_over(&node).await.map(Json)
}

/// Removes a node for ever that is gone for good: it is not started any more.
#[utoipa::path(post, path = "/api/v1/cluster/nodes/{node}/remove", params(("node" = String, Path, description = "Id or name of a node.")), responses(
    (status = 200, description = "It is removed.")
))]
pub(super) async fn remove_node(State(app): State<App>, Piece(node): Piece) -> Answered<()> {
    app.api.remove_node(&node).await.map(Json)
}

/// Goes on with the node of a folder, in this daemon.
#[utoipa::path(post, path = "/api/v1/cluster/adopt", request_body = AdoptFolder, responses(
    (status = 200, body = Guest, description = "It serves here.")
))]
pub(super) async fn adopt_folder(
    State(app): State<App>,
    Body(request): Body<AdoptFolder>,
) -> Answered<Guest> {
    app.api.adopt_folder(request).await.map(Json)
}

/// Brings volumes into service and reads samples of them, as if all clients came at once.
#[utoipa::path(post, path = "/api/v1/attach", request_body = StartAttach, responses(
    (status = 202, body = Job, description = "It has begun.")
))]
pub(super) async fn start_attach(
    State(app): State<App>,
    Body(request): Body<StartAttach>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.start_attach(request).await?))
}

/// Starts a count of the space that volumes take in the store.
#[utoipa::path(post, path = "/api/v1/space", request_body = StartSpace, responses(
    (status = 202, body = Job, description = "It has begun.")
))]
pub(super) async fn start_space(
    State(app): State<App>,
    Body(request): Body<StartSpace>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.start_space(request).await?))
}

/// Starts a check of the stored content.
#[utoipa::path(post, path = "/api/v1/verify", request_body = StartVerify, responses(
    (status = 202, body = Job, description = "It has begun.")
))]
pub(super) async fn start_verify(
    State(app): State<App>,
    Body(request): Body<StartVerify>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    Ok(begun(app.api.start_verify(request).await?))
}

/// Lists jobs, newest first.
#[utoipa::path(get, path = "/api/v1/jobs", responses((status = 200, body = Vec<Job>, description = "Jobs.")))]
pub(super) async fn jobs(State(app): State<App>) -> Answered<Vec<Job>> {
    app.api.jobs().await.map(Json)
}

/// Returns one job.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", params(("id" = String, Path, description = "Its id.")),
    responses((status = 200, body = Job, description = "The job.")))]
pub(super) async fn job(State(app): State<App>, Piece(id): Piece) -> Answered<Job> {
    app.api.job(&id).await.map(Json)
}

/// Cancels a job; one that has ended stays as it is.
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", params(("id" = String, Path, description = "Its id.")),
    responses((status = 200, body = Job, description = "The job, which ends at once or after the step that it is in.")))]
pub(super) async fn cancel_job(State(app): State<App>, Piece(id): Piece) -> Answered<Job> {
    app.api.cancel_job(&id).await.map(Json)
}

/// Returns a part of the inside of the node, bounded; the datastore is not asked.
#[utoipa::path(get, path = "/api/v1/debug/{what}",
    params(("what" = String, Path, description = "`volumes`, `queue`, `log`, `warm` or `locks`."), Narrow),
    responses((status = 200, body = Object, description = "What there is to see; fields may change with any version.")))]
pub(super) async fn debug(
    State(app): State<App>,
    Piece(what): Piece,
    Options(narrow): Options<Narrow>,
) -> Answered<serde_json::Value> {
    app.api.debug(what.parse()?, &narrow.prefix).await.map(Json)
}

/// Begins to stop the node.
#[utoipa::path(post, path = "/api/v1/shutdown", request_body = Shutdown, responses(
    (status = 202, body = StopProgress, description = "It has begun, and is this far.")
))]
pub(super) async fn shutdown(
    State(app): State<App>,
    Body(request): Body<Shutdown>,
) -> Result<(StatusCode, Json<StopProgress>), ApiError> {
    Ok((StatusCode::ACCEPTED, Json(app.api.shutdown(request).await?)))
}

/// Tells how far the stop is; waits a little for news.
#[utoipa::path(get, path = "/api/v1/shutdown", responses((status = 200, body = StopProgress, description = "Progress.")))]
pub(super) async fn stopping(State(app): State<App>) -> Answered<StopProgress> {
    app.api.stopping().await.map(Json)
}

fn begun(job: Job) -> (StatusCode, Json<Job>) {
    (StatusCode::ACCEPTED, Json(job))
}

#[cfg(test)]
mod tests;
