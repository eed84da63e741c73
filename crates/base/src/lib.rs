//! The shared words of Rekindle: identifiers, sizes, checksums, names, kinds of error.
//!
//! Nothing here behaves: no I/O, no clock, no policy. A thing belongs here when three crates use
//! it. Begin with [`ids`] (the words of the design's section 1) and [`error::Kind`] (what a caller
//! shall do).

pub mod checksum;
pub mod error;
pub mod ids;
pub mod limits;
pub mod names;
pub mod random;
pub mod units;

pub use error::Kind;
pub use ids::{
    Generation, Incarnation, Life, NodeId, PackId, SegmentId, Serial, StoreId, VolumeId,
};
