//! The formats of this crate: one file a record.

mod name;

pub(crate) use name::Name;
