//! The HTTP API: what people, the command line and Prometheus ask of a node.
//!
//! [`api`] is the vocabulary (shared with the node and the command line), [`routes`] the table of paths, [`serve`] the
//! connections. Nothing here decides anything: every answer comes from the [`Api`] that the node implements.

pub mod api;
mod extract;
mod guard;
pub mod kept;
pub mod metrics;
mod openapi;
mod routes;
mod serve;

pub use api::{Answer, Api, ApiError, Problem};
pub use openapi::document;
pub use serve::{App, serve};
