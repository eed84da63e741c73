//! A block volume: runs of pages over chunks of content. The smallest kind; read it first.
//!
//! [`Block`] is the [`rekindle_volume::Kind`] that the node registers. [`Extents`] is its
//! [`rekindle_staging::RangeHome`]: the meaning of the bytes in the datastore. [`Device`] is the
//! view of a protocol: bytes by offset, trim, write-zeroes, flush, FUA.

mod ahead;
mod cut;
mod device;
mod extents;
mod fold;
mod kind;
mod layout;
mod limits;
mod map;
mod out;
mod plan;
mod spare;
mod widen;
mod windows;

pub use device::{Device, Gathered};
pub use extents::Extents;
pub use kind::{Block, KIND};
pub use layout::{Layout, PAGE_BYTES};
