//! The arena's records: one header page, then one certificate record a slot. Byte tables in `docs/format/warm.md`.

mod header;
mod record;

pub(crate) use header::{Header, HEADER_BYTES};
pub use record::Label;
pub(crate) use record::{LabelBytes, State, RECORD_BYTES, durable_pack, durable_unpack};
