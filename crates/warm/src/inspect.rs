//! Reads an arena's bytes offline; never writes.

use crate::arena::SLOTS_START;
use crate::format::{Header, LabelBytes, RECORD_BYTES, State, durable_unpack};
use crate::slot::Certificate;
use base::NodeId;
use zerocopy::FromBytes;

/// What an arena's first bytes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub node: NodeId,
    pub slots: u64,
    pub slot_bytes: u32,
    /// Each slot that holds something, with its certificate.
    pub used: Vec<(usize, Certificate)>,
}

/// Bytes at the beginning of an arena's file that [`arena`] wants.
pub const BYTES_WANTED: usize = SLOTS_START;

/// Reads header and certificate table from the beginning of an arena's file; a short table is read as far as it goes.
pub fn arena(bytes: &[u8]) -> Result<Inspected, String> {
    let header = Header::decode(bytes)?;
    let table = bytes.get(4096..bytes.len().min(SLOTS_START)).unwrap_or_default();
    let used = table
        .chunks_exact(RECORD_BYTES)
        .take(usize::try_from(header.slots).unwrap_or(usize::MAX))
        .enumerate()
        .filter_map(|(slot, record)| Some((slot, certificate(record, slot, header.slot_bytes)?)))
        .collect();
    Ok(Inspected { node: header.node, slots: header.slots, slot_bytes: header.slot_bytes, used })
}

fn certificate(record: &[u8], slot: usize, slot_bytes: u32) -> Option<Certificate> {
    let word = |at: usize| {
        record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    };
    let label = LabelBytes::read_from_bytes(record.get(16..RECORD_BYTES)?).ok()?.decode(slot)?;
    let state = State::unpack(word(0)?, label.segment, slot_bytes)?;
    let durable = durable_unpack(word(8)?, label.segment);
    Some(Certificate { label, front: state.front, back: state.back, foot: state.foot, durable })
}
