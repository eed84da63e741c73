//! The formats of this crate: one file a record.

mod name;
mod salvage;

pub(crate) use name::Name;
pub(crate) use salvage::Memory;
pub use salvage::{Account, Outcome};
