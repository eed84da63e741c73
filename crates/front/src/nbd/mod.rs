//! NBD: volumes as disks. Fixed newstyle handshake, simple and structured replies, block status.
//!
//! [`wire`] is the bytes, pure and total; [`handshake`] finds the export that a client names.
//! [`session`] serves it, and [`serve`] joins the two for each connection. [`forward`] is the
//! device of a volume that another host serves. The node implements [`Exports`].
//!
//! The protocol is that of `doc/proto.md` of the NetworkBlockDevice project.

mod buffers;
pub mod forward;
mod handshake;
pub mod limits;
mod meters;
mod replies;
mod serve;
pub mod session;
mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod wire;

pub use meters::{BUCKETS, COMMANDS, CommandReading, VolumeMeters, VolumeReading};
pub use serve::{serve, serve_device};
pub use target::{ExportError, Exports, Target};
