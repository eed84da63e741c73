//! Staging as its callers see it, over the real log, content store and datastore, on a simulated
//! machine.
#![cfg(test)]

mod accept;
mod bed;
mod blocks;
mod copies;
mod cost;
mod crash;
mod damage;
mod deferred_index;
mod fence;
mod groups;
mod history;
mod holds;
mod lives;
mod map;
mod policy;
mod previous_root;
mod record_crash;
mod records;
mod salvage;
mod snapshots;
mod store;
mod trickle;
