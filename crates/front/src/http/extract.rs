//! The parts of a request that handlers use. They are axum's own extractors, but their refusals are
//! problems like any other.

use super::api::ApiError;
use super::problem::problem;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use rekindle_base::Kind;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

fn refuse(status: StatusCode, message: impl Into<String>) -> Response {
    problem(status, &ApiError::new(Kind::Invalid, message))
}

/// The body as JSON. An empty body counts as `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| refuse(rejection.status(), rejection.body_text()))?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Body).map_err(|error| {
            let message = format!("the body is not what is expected here: {error}");
            refuse(StatusCode::BAD_REQUEST, message)
        })
    }
}

/// The variable piece of the path: a name, an id.
pub(super) struct Piece(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Piece {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(piece)) => Ok(Self(piece)),
            Err(rejection) => Err(refuse(rejection.status(), rejection.body_text())),
        }
    }
}

/// The two variable pieces of the path.
pub(super) struct Pieces(pub(super) String, pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Pieces {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path((first, second))) => Ok(Self(first, second)),
            Err(rejection) => Err(refuse(rejection.status(), rejection.body_text())),
        }
    }
}

/// The query, as `T`.
pub(super) struct Options<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Options<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(options)) => Ok(Self(options)),
            Err(rejection) => Err(refuse(rejection.status(), rejection.body_text())),
        }
    }
}

/// Options of a removal.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Remove {
    /// Disconnect its clients.
    #[serde(default)]
    pub(super) force: bool,
    /// Remove it at once and for good, not to the trash.
    #[serde(default)]
    pub(super) now: bool,
}

/// The filter of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Narrow {
    /// Only volumes whose names begin with this.
    #[serde(default)]
    pub(super) prefix: String,
}
