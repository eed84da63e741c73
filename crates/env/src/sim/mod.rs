//! A whole world on one thread from one seed: clock, scheduler, disks, memory, network, with
//! faults.
//!
//! The same seed and the same code give the same run, step by step ([`World::trace_hash`] proves
//! it). Ready tasks are polled in random order. Time stands still while any task is ready (but for
//! a trifle per step), and then jumps to the next timer. Each disk call suspends at least once, and
//! takes effect before or after that, so that everything that may happen between two calls does
//! happen for some seed.
//!
//! ```
//! use rekindle_env::{Open, sim::{Faults, Stop, World}};
//! use std::path::Path;
//!
//! let world = World::new(7, Faults::none());
//! let env = world.env();
//! let finished = world.block_on_until(Stop::DiskOperation(3), async move {
//!     let file = env.disk().open(Path::new("/log"), Open::Create).await?;
//!     file.write_at(b"hello", 0).await?;
//!     file.sync_data().await?; // The third disk operation: its caller never hears of it.
//!     std::io::Result::Ok(())
//! });
//! assert!(finished.is_none());
//! world.cut_power();
//! // A new life on the old disk. The name was never synced, so the file may be gone.
//! let env = world.env();
//! world.block_on(async move { let _ = env.disk().open(Path::new("/log"), Open::Read).await; });
//! ```
//!
//! Not modelled: a crash between two plain stores to mapped memory, because a step is atomic.

mod content;
mod disk;
mod executor;
mod faults;
mod meddle;
mod memory;
mod names;
mod net;
mod state;
#[cfg(test)]
mod tests;
mod world;

pub use faults::{Cut, Failure, Faults, Mishaps};
pub use world::{Host, Stop, World};
