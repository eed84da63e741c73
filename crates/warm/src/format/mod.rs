//! The arena's records: one header page, then one certificate record a slot. Byte tables in `docs/format/warm.md`.

mod header;
mod record;

pub(crate) use header::{HEADER_BYTES, Header};
pub use record::Label;
pub(crate) use record::{LabelBytes, RECORD_BYTES, State, durable_pack, durable_unpack};
