//! The formats of this crate.

use crate::{format, sweep};
use rekindle_datastore::record::Body;

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 7] = [
    ("pack", format::pack::VERSION as u32),
    ("pack parity", format::parity::VERSION as u32),
    ("tree node", format::node::VERSION as u32),
    ("moved pack", format::moved::VERSION as u32),
    (sweep::condemned::Condemned::WHAT, sweep::condemned::Condemned::FORMAT),
    (sweep::Lease::WHAT, sweep::Lease::FORMAT),
    (sweep::Ack::WHAT, sweep::Ack::FORMAT),
];
