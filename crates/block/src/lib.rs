//! A block volume: extents of fixed blocks over content. The smallest kind; read it first.
//!
//! [`Block`] is the [`rekindle_volume::Kind`] that the node registers. [`Extents`] is its
//! [`rekindle_staging::RangeHome`]: the meaning of the bytes in the datastore. [`Device`] is the
//! view of a protocol: bytes by offset, trim, write-zeroes, flush, FUA.

mod ahead;
mod device;
mod extents;
mod fold;
mod kind;
mod limits;
mod plan;

pub use device::Device;
pub use extents::Extents;
pub use kind::{Block, Body, KIND};
