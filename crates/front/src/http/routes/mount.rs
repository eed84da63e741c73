//! The request of a mount: its connection leaves HTTP, and carries the requests of the kernel.

use super::super::api::{ApiError, MOUNT_OF, MOUNT_PROTOCOL as PROTOCOL};
use super::super::extract::Piece;
use super::App;
use crate::conn::Pipe;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::routing::{MethodRouter, get};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rekindle_base::Kind;
use std::io;

pub(super) fn row() -> (Method, &'static str, MethodRouter<App>) {
    (Method::GET, "/api/v1/volumes/{name}/mount", get(mount_volume))
}

/// Serves a file volume to a mount: the connection goes on with the protocol `rekindle-fuse`.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/mount", params(("name" = String, Path, description = "Its name.")),
    responses((status = 101, description = "The connection is the mount's now.")))]
pub(in super::super) async fn mount_volume(
    State(app): State<App>,
    Piece(name): Piece,
    mut request: Request,
) -> Result<(StatusCode, [(header::HeaderName, HeaderValue); 3]), ApiError> {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let Some(upgrade) = upgrade.filter(|_| is_asked(request.headers())) else {
        let message =
            format!("a mount asks for this with `Upgrade: {PROTOCOL}`: `rekindle mount` does that");
        return Err(ApiError::new(Kind::Invalid, message));
    };
    let connection = Box::pin(async move {
        let upgraded = upgrade.await.map_err(io::Error::other)?;
        Ok(Box::new(TokioIo::new(upgraded)) as Box<dyn Pipe>)
    });
    let of = request.headers().get(MOUNT_OF).and_then(|of| of.to_str().ok()).map(str::to_owned);
    let of = app.api.mount_volume(&name, of, connection).await?;
    let of = HeaderValue::try_from(of)
        .map_err(|error| ApiError::new(Kind::Invalid, error.to_string()))?;
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(PROTOCOL)),
        (header::HeaderName::from_static(MOUNT_OF), of),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers))
}

fn is_asked(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|word| word.as_bytes() == PROTOCOL.as_bytes())
}
