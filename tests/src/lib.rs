//! Shared means of the stories: the daemon as a user starts it, external programs, and a disk that
//! can lose power.
//!
//! Nothing here links Rekindle, but for words and a client that knows nothing of the server: a
//! story sees the released binary, sockets and files, as a user does.
#![expect(clippy::disallowed_methods, reason = "stories run on the real machine")]

pub mod ceph;
pub mod clock;
pub mod crash_disk;
pub mod daemon;
pub mod guest;
pub mod mount;
pub mod mounted;
pub mod network;
pub mod power;
pub mod prometheus;
pub mod promises;
pub mod random;
pub mod s3;
pub mod shell;
pub mod tree;
pub mod uplink;

pub use daemon::{Daemon, Options};
pub use shell::{Shell, skip_without};
