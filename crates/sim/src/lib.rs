//! The whole node, on one thread, from one seed: it runs on the simulated machine, and crashes at
//! any step.
//!
//! - [`boot`] starts a node: the daemon's own assembly, background work and API.
//! - [`region`] is the oracle: the promises to clients, region by region.
//! - [`cluster`] is one run of a fifth kind: hosts keep copies of one another's logs, and take lost
//!   nodes over. [`linear`] judges it.
//! - [`files`] is one run of a sixth kind: the lives of a file volume. [`known`] judges it, and the
//!   file volumes of clusters, by the model of the tests of `file`.
//! - [`lives`] is one run of another kind: a few volumes through attach, collector, salvage, stop
//!   and crash, over a store whose packs are damaged. [`oracle`] judges it.
//! - [`pair`] is one run of a third kind: two nodes on one store, which write, sweep, remove
//!   volumes and create them anew beside each other.
//! - [`scenario`] is one run: clients work, the process dies or the power goes, the node comes
//!   back, the oracle judges. Part of the seeds have a volume of a second kind, a map of records,
//!   beside the block volume.
//! - [`twin`] is one run of a fourth kind: a node's folder is copied, and both go on as the same
//!   node.
//!
//! The fault injector may do the following, and the system must survive it, since real machines and
//! S3 do all of it. It ends the process between any two polls or in the middle of any disk
//! operation (`kill -9`, panic). It cuts the power: sectors that were not synced are kept or lost
//! one by one, also older versions, and mapped memory is gone. It makes the store slow, lets it
//! fail, lose answers to writes that landed, and report conflicts that were none.
//!
//! A run starts the node by `Node::assemble_with`, `in_background` and `until_end`, as the daemon
//! does. So the folder's lock, `node.json`, the record of the node, fencing, recovery, collector,
//! salvage, scrub, the part in other nodes' sweeps, health and the orderly stop are the daemon's
//! own. Clients attach by the exports of NBD, users call the HTTP API; both are called as
//! functions.
//!
//! What runs beside the node, and why:
//!
//! - The store is `mem:` on a machine of its own ([`remote`]), with faults and stale lists. The
//!   backends for folders and S3 need the real machine; a conformance suite covers them.
//! - Sockets, the bytes of the protocols, signals, systemd and the process-wide recorder of metrics
//!   belong to the process. The tests of `front` and the stories cover them.
//! - Sweeps begin by the API, not by the node's timer: a run must know when one has ended.
//! - A reader with empty caches reads the store beside the node, since it judges the node.

pub mod boot;
mod clients;
pub mod cluster;
mod end;
pub mod files;
mod frozen;
mod harm;
mod heard;
mod join;
mod known;
pub mod linear;
mod lists;
pub mod lives;
#[path = "../../staging/tests/staging/map.rs"]
mod map;
#[path = "../../file/src/tests/model.rs"]
mod model;
pub mod oracle;
pub mod pair;
mod records;
pub mod region;
mod remote;
pub mod scenario;
mod stage;
mod subject;
mod told;
mod trouble;
pub mod twin;
mod user;
