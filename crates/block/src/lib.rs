//! A block volume: extents of fixed blocks over content. The smallest kind; read it first.
//!
//! [`Extents`] is its [`volume::Home`]: what the bytes in the datastore mean. [`Device`] is what a protocol sees: bytes by
//! offset, trim, write-zeroes, flush, FUA.

mod ahead;
mod device;
mod extents;
mod fold;
mod limits;
mod plan;

pub use device::Device;
pub use extents::Extents;
pub use volume::{Error, Extent, Ticket, Written};
