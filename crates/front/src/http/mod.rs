//! The HTTP API: the requests of users, the command line and Prometheus to a node.
//!
//! [`api`] is the vocabulary (shared with the node and the command line), [`routes`] the table of
//! paths, [`serve`] the connections. This module decides nothing: every answer comes from the
//! [`Api`] that the node implements.

pub mod api;
mod extract;
mod guard;
pub mod metrics;
mod openapi;
mod problem;
mod routes;
mod serve;

pub use api::{Answer, Api, ApiError, Leaving, Problem};
pub use openapi::document;
pub use routes::App;
pub use serve::serve;
