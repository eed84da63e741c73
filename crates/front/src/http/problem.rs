//! Errors as answers: a status, and a document of RFC 9457.

use super::api::{ApiError, Problem};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rekindle_base::Kind;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.kind {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Exists | Kind::Conflict | Kind::Fenced => StatusCode::CONFLICT,
            Kind::Full => StatusCode::INSUFFICIENT_STORAGE,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Refused => StatusCode::BAD_GATEWAY,
            Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            Kind::Damaged | Kind::Io => StatusCode::INTERNAL_SERVER_ERROR,
        };
        problem(status, &self)
    }
}

pub(super) fn problem(status: StatusCode, error: &ApiError) -> Response {
    let mut response = (status, Json(Problem::from(error))).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if error.kind == Kind::Unavailable {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
