//! `/metrics`: the text comes from the node, which owns the recorder.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Renders all metrics in the Prometheus text format.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;

pub(super) fn respond(render: &Render) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render()).into_response()
}
