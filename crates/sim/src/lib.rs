//! The whole stack below the protocols, on one thread, from one seed: log, content, staging, volume
//! and block run on the simulated machine, and crash at any step.
//!
//! - [`boot`] builds a node, as the real one is assembled.
//! - [`region`] is the oracle: the promises to clients, region by region.
//! - [`lives`] is one run of another kind: a few volumes through attach, collector, salvage, stop
//!   and crash, over a store whose packs are damaged. [`oracle`] judges it.
//! - [`pair`] is one run of a third kind: two nodes on one store, which write, sweep, remove
//!   volumes and create them anew beside each other.
//! - [`scenario`] is one run: clients work, the process dies or the power goes, the node comes
//!   back, the oracle judges.
//! - [`twin`] is one run of a fourth kind: a node's folder is copied, and both go on as the same
//!   node.
//!
//! The fault injector may do the following, and the system must survive it, since real machines and
//! S3 do all of it. It ends the process between any two polls or in the middle of any disk
//! operation (`kill -9`, panic). It cuts the power: sectors that were not synced are kept or lost
//! one by one, also older versions, and mapped memory is gone. It makes the store slow, lets it
//! fail, lose answers to writes that landed, and report conflicts that were none.

pub mod boot;
mod clients;
mod dice;
mod end;
mod harm;
mod heard;
mod lists;
pub mod lives;
pub mod oracle;
pub mod pair;
pub mod region;
mod remote;
pub mod scenario;
mod start;
mod trouble;
pub mod twin;
