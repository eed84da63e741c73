//! Rekindle's promises, told through the released binary with real clients, real kills and real S3
//! servers.
#![expect(clippy::disallowed_methods, reason = "stories run on the real machine")]

mod alerts;
mod appliance;
mod bad_input;
mod cli;
mod client_crash;
mod clients;
mod cluster;
mod datastore_trouble;
mod dedup;
mod files;
mod filesystems;
mod flash_fails;
mod flash_full;
mod forwarding;
mod guests;
mod health;
mod images;
mod lab;
mod life;
mod lives;
mod mounts;
mod moving;
mod nemesis;
mod parity;
mod partitions;
mod power_loss;
mod removal;
mod restarts;
mod s3;
mod salvage;
mod suites;
mod two_nodes;
mod upgrade;
mod warm_memory;
