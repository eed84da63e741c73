//! The layout of a segment, byte by byte. The same bytes lie in warm memory and on flash.
//!
//! Page: `docs/format/segment.md`. Every decoder takes any bytes and returns an error for wrong
//! ones.

mod digest;
mod entry;
mod foot;
mod header;
mod key;
mod known_end;

pub(crate) use digest::{
    Lost, Mark, Named, Statistics, Who, decode_digest, decode_marks, decode_statistics,
    encode_digest, encode_marks, encode_statistics,
};
pub(crate) use entry::{ENTRY_BYTES, EntryHeader, Kind, padded};
pub(crate) use foot::{FOOT_BYTES, Foot};
pub(crate) use header::{BadHeader, HEADER_BYTES, SegmentHeader, VERSION};
pub(crate) use key::Key;
pub(crate) use known_end::{KNOWN_END_BYTES, KnownEnd};

#[cfg(test)]
mod tests;
