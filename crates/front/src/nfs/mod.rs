//! NFS version 3 and its MOUNT protocol (RFC 1813), both at one port: file volumes for the clients
//! of other machines, and of this one.
//!
//! A session takes the records of a connection apart ([`rpc`]), and the [`Desk`] answers each
//! call: `answer` is NFS, by subject; `mount` is MOUNT. The server keeps nothing of its clients.
//! They have handles ([`handle`]), so a restart, a takeover or an upgrade is no event for them;
//! `server` has the volumes in use. The rules of what a caller may do are in [`permission`],
//! alone. A `witness` asks them, and knows a call that must not be carried out twice.
//!
//! The codec of replies, and the numbers of the protocol, are those of the crate `nfs3_types`.

mod answer;
mod desk;
pub mod forward;
pub mod handle;
pub mod limits;
mod meters;
mod mount;
pub mod permission;
mod replies;
mod room;
pub mod rpc;
mod serve;
mod server;
mod session;
pub mod settings;
mod target;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod v4;
mod witness;
pub mod xdr;

pub use desk::Desk;
pub use serve::serve;
pub use server::Server;
pub use settings::{Network, Peer, Settings, Squash};
pub use target::{Export, Exports};
pub use v4::limits::LEASE;
