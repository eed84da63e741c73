//! NFS version 3 and its MOUNT protocol (RFC 1813), both at one port: file volumes for the clients
//! of other machines, and of this one.
//!
//! A connection is [`serve`]d by a session, which takes records apart ([`rpc`]) and brings each call
//! to the [`Desk`]. `answer` is NFS, by subject; `mount` is MOUNT. NFS keeps
//! nothing of its clients but a handle's claim on an inode ([`handle`]), so a restart, a takeover or
//! an upgrade is no event for them; `server` has the volumes that are in use. What a caller may do
//! is in [`permission`], alone. A call that must not be carried out twice is known by `witness`.
//!
//! The codec of replies, and the numbers of the protocol, are those of the crate `nfs3_types`.

mod answer;
mod desk;
pub mod handle;
pub mod limits;
mod meters;
mod mount;
pub mod permission;
mod replies;
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
mod witness;
pub mod xdr;

pub use desk::Desk;
pub use serve::serve;
pub use server::Server;
pub use settings::{Network, Peer, Settings, Squash};
pub use target::{Export, Exports};
