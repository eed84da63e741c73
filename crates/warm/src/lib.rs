//! Memory that outlives the process: an arena of segment slots in a mapped file.
//!
//! In this version the arena holds log segments only (block frames and client state come with restart in O(1)).
//! Nothing in it is believed unverified: an unknown or torn header means a fresh arena, never a wrong one.
//!
//! A slot is filled from both ends: entries grow up from the front, their descriptors grow down from the end, and a
//! fixed foot at the very end is written once, when the segment is sealed. What is *published* never changes again
//! for as long as anybody can read it. The publication is one 8-byte store (the **warm certificate**), because
//! `kill -9` may come between any two stores. All `unsafe` of the log and of this crate is in [`slot`], [`heap`]
//! and [`arena`]; the log sees safe, append-only slices.
//!
//! It does *not* know what a segment's bytes mean, nor which segments are alive: that is the log's business.

mod arena;
mod format;
mod heap;
pub mod inspect;
pub mod limits;
mod slot;
#[cfg(test)]
mod tests;

pub use arena::Arena;
pub use format::Label;
pub use slot::{Certificate, Content, Memory, Slot, Writer};
