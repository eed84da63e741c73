//! The record formats of this crate, one file each.

mod name;
mod salvage;

pub(crate) use name::Name;
use rekindle_datastore::record::Body;
pub use salvage::{Account, Outcome};
pub(crate) use salvage::{Fault, Memory};

/// The newest version of each format of this crate that this binary knows.
pub const FORMATS: [(&str, u32); 2] = [(Name::WHAT, Name::FORMAT), (Memory::WHAT, Memory::FORMAT)];
