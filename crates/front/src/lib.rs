//! The protocols that clients speak: [`nbd`] serves volumes as disks, [`fuse`] as file systems,
//! [`http`] serves the API.
//!
//! They do not know each other: `nbd` knows [`rekindle_block::Device`] and nothing of the API,
//! `http` knows only the trait [`http::Api`] that the node implements. Both take their connections
//! from [`conn`]: the accept loop, the limit on connections, the orderly end.
//!
//! Read [`nbd::session`] first; that loop decides how fast the appliance is.

pub mod conn;
pub mod fuse;
pub mod held;
pub mod http;
pub mod nbd;
pub mod nfs;
pub mod target;
pub mod uri;
