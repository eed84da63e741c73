//! The formats of this crate: one file a record.

mod name;
mod salvage;

use datastore::record::Body;
pub(crate) use name::Name;
pub use salvage::{Account, Outcome};
pub(crate) use salvage::{Fault, Memory};

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 2] = [(Name::WHAT, Name::FORMAT), (Memory::WHAT, Memory::FORMAT)];
