//! FUSE: file volumes as file systems of the kernel.
//!
//! A mount process has the kernel's end, `/dev/fuse`, and carries the requests to the daemon in
//! frames ([`frame`]), so that it can send them again when the daemon was restarted. [`wire`] is
//! the bytes of the kernel, pure and total; [`serve`] serves a mount; the answer to each request
//! is in `answer`. [`Clients`] has the mounts, and what they have open. [`carry`] carries the
//! bytes of a mount whose volume another host serves.
//!
//! The protocol is that of `linux/fuse.h`.

mod answer;
mod clients;
pub mod frame;
pub mod limits;
mod locking;
mod passage;
mod replies;
mod session;
pub mod wire;

pub use clients::{Clients, HasGone};
pub use passage::{End, carry};
pub use session::{Mount, serve};
