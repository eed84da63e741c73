//! NFS version 4.1 (RFC 8881), at the port of version 3: sessions, opens and locks, all of which
//! stay over a restart, so that there is no grace period.
//!
//! A [`compound`] is taken apart into operations (`ops`), which `answer` carries out, by subject;
//! handles, permissions, the witness of a change and the known calls are those of version 3. The
//! state is in pure machines: the [`clients`] and their sessions, the `slots` of a session, and
//! what clients have [`held`](crate::held) of a file. What is held of a file lies with the file, in
//! its volume's log; the ids of clients and sessions say of themselves what
//! they are. The words in XDR are in `codec`, `attributes` and `acl`.

pub mod acl;
pub mod answer;
pub mod attributes;
pub mod channel;
pub mod clients;
pub mod codec;
pub mod compound;
pub mod haunts;
pub mod limits;
pub mod ops;
pub mod slots;
pub mod status;
pub mod tend;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

/// The number of the version, and of its only procedure besides the one that does nothing.
pub const VERSION: u32 = 4;
pub const COMPOUND: u32 = 1;
/// The minor version.
pub const MINOR_VERSION: u32 = 1;
