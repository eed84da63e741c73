//! The daemon as a library: its settings, its assembly, its life and its stop.
//!
//! [`assemble`] is the only file that names every crate below. [`lifecycle`] runs the assembled
//! node until a signal comes. [`service`] answers clients and users; long work (verify, sweep,
//! drain) is in [`jobs`] and [`work`].

pub mod assemble;
mod boot;
mod cluster;
pub mod config;
pub mod core;
mod debug;
mod error;
mod fencing;
mod guests;
mod health;
mod incarnation;
mod indirect;
mod jobs;
mod lifecycle;
pub mod limits;
mod marks;
mod meters;
mod metrics;
pub mod node_file;
mod own_record;
mod pinned;
pub mod prices;
pub mod record;
mod recoveries;
mod remains;
mod scale;
mod service;
mod space;
pub mod starts;
pub mod warm_memory;
mod warm_status;
mod work;

pub use assemble::{Kit, Node, OpenStore, Opener};
pub use cluster::member_file::token;
pub use config::Config;
pub use error::Error;
pub use lifecycle::{Ready, Sockets, run, until_end};
pub use scale::Scale;
pub use service::cluster::begin as begin_cluster;
pub use service::{Export, Service};
pub use work::in_background;

use rekindle_datastore::record::Body;

/// Lists the newest version of each format that this binary knows, by name: the node's own two, and
/// those of every crate below.
pub fn formats() -> impl Iterator<Item = (&'static str, u32)> {
    let own = [
        (node_file::NAME, node_file::FORMAT),
        (record::NodeRecord::WHAT, record::NodeRecord::FORMAT),
        (cluster::member_file::WHAT, cluster::member_file::FORMAT),
        (cluster::record::ClusterRecord::WHAT, cluster::record::ClusterRecord::FORMAT),
    ];
    let below = [rekindle_datastore::FORMATS, rekindle_staging::FORMATS, rekindle_log::FORMATS]
        .into_iter()
        .flatten();
    let more = rekindle_volume::FORMATS
        .into_iter()
        .chain(rekindle_warm::FORMATS)
        .chain(rekindle_content::FORMATS)
        .chain(rekindle_cluster::FORMATS)
        .chain(rekindle_file::FORMATS);
    own.into_iter().chain(below).chain(more)
}
