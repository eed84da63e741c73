//! The formats of this crate: one file a record.

mod name;

use datastore::record::Body;
pub(crate) use name::Name;

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] = [(Name::WHAT, Name::FORMAT)];
