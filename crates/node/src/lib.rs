//! The daemon as a library: what a node is told, how its parts are put together, how it lives and stops.
//!
//! [`assemble`] is the only file that names every crate below. [`lifecycle`] runs what it made until a signal comes.
//! News of the parts meets people in [`service`]; long work (verify, sweep, drain) is in [`jobs`] and [`work`].

pub mod assemble;
mod boot;
pub mod config;
mod debug;
mod error;
mod fencing;
mod health;
pub mod home_file;
mod jobs;
mod lifecycle;
pub mod limits;
mod marks;
mod meters;
mod metrics;
pub mod record;
mod service;
mod space;
pub mod starts;
pub mod warm_memory;
mod work;

pub use assemble::Node;
pub use config::Config;
pub use error::Error;
pub use front::http::api::Stopping;
pub use lifecycle::{Ready, Sockets, run};

use datastore::record::Body;

/// The newest version that this binary knows of each format that a node writes or reads, by name: its own two, and those
/// of every crate below.
pub fn formats() -> impl Iterator<Item = (&'static str, u32)> {
    let own =
        [("node.json", home_file::FORMAT), (record::NodeRecord::WHAT, record::NodeRecord::FORMAT)];
    let below = [datastore::FORMATS, staging::FORMATS, log::FORMATS].into_iter().flatten();
    let more = volume::FORMATS.into_iter().chain(warm::FORMATS).chain(content::format::FORMATS);
    own.into_iter().chain(below).chain(more)
}
