//! Memory that outlives the process: an arena of segment slots and block frames in a mapped file.
//!
//! No content is believed unverified: a torn header means a fresh part, never a wrong one. Slots
//! (see [`Slot`]) hold what may be nowhere else, frames (see [`Frames`]) what can be fetched again;
//! each part has a header and a version of its own.
//!
//! A slot is filled from both ends: entries grow up from the front, their descriptors grow down
//! from the end, and a fixed foot at the very end is written once, when the segment is sealed.
//! *Published* bytes never change again for as long as a reader can reach them. The publication is
//! one 8-byte store (the **warm certificate**), because `kill -9` may come between any two stores.
//! All `unsafe` of the log and of this crate is in [`slot`], [`heap`], [`mapping`], [`arena`] and
//! `frames/memory.rs`; other modules see safe slices.
//!
//! This crate does *not* know what a segment's bytes mean, nor which segments are alive: that is
//! the log's business.

mod arena;
mod format;
mod frames;
mod heap;
pub mod inspect;
pub mod limits;
mod mapping;
mod slot;
#[cfg(test)]
mod tests;

pub use arena::{Arena, FramesShape, Shape};
pub use format::{BadHeader, FORMATS, Label};
pub use frames::{Beginning, Frames, Key, Miss, Stats, Usage};
pub use mapping::Began;
pub use slot::{Certificate, Memory, Slot, SlotContent, Writer};
