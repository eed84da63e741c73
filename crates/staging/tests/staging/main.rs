//! Staging as its callers see it, over the real log, content store and datastore, on a simulated machine.
#![cfg(test)]

mod accept;
mod bed;
mod blocks;
mod cost;
mod crash;
mod damage;
mod earlier;
mod fence;
mod history;
mod holds;
mod listing;
mod lives;
mod policy;
mod salvage;
mod store;
