//! Reads an arena's bytes offline; never writes.

use crate::format::home::{HOME_AT, HOME_BYTES, decode};
use crate::format::{
    FRAMES_HEADER_AT, FRAMES_HEADER_BYTES, FrameWord, FramesHeader, Header, KEY_BYTES, KEYS_AT,
    LabelBytes, NoHeader, Published, RECORD_BYTES, SET_BYTES, SET_FRAMES, durable_unpack,
    frame_crc, key_hash, mark,
};
use crate::frames::{bytes_of, place_of};
use crate::limits::WAYS;
use crate::mapping::SLOTS_START;
use crate::slot::Certificate;
use rekindle_base::{NodeId, StoreId};
use zerocopy::FromBytes;

/// The header and the certificates of an arena.
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

/// Reads header and certificate table from the beginning of an arena's file; a short table is read
/// as far as it goes.
pub fn arena(bytes: &[u8]) -> Result<Inspected, String> {
    let header = Header::decode(bytes).map_err(|bad| bad.to_string())?;
    let table = bytes.get(4096..bytes.len().min(SLOTS_START)).unwrap_or_default();
    let used = table
        .chunks_exact(RECORD_BYTES)
        .take(usize::try_from(header.slots).unwrap_or(usize::MAX))
        .enumerate()
        .filter_map(|(slot, record)| Some((slot, certificate(record, slot, header.slot_bytes)?)))
        .collect();
    Ok(Inspected { node: header.node, slots: header.slots, slot_bytes: header.slot_bytes, used })
}

/// The folder to which an arena belongs, as its header page notes it.
#[must_use]
pub fn home(bytes: &[u8]) -> Option<String> {
    decode(bytes.get(HOME_AT..HOME_AT + HOME_BYTES)?)
}

fn certificate(record: &[u8], slot: usize, slot_bytes: u32) -> Option<Certificate> {
    let word = |at: usize| {
        record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    };
    let label = LabelBytes::read_from_bytes(record.get(16..RECORD_BYTES)?).ok()?.decode(slot)?;
    let state = Published::unpack(word(0)?, label.segment, slot_bytes)?;
    let durable = durable_unpack(word(8)?, label.segment);
    Some(Certificate { label, front: state.front, back: state.back, foot: state.foot, durable })
}

/// The header of the frames part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramesPart {
    pub node: NodeId,
    pub store: StoreId,
    pub sets: usize,
    /// Offset of the part in the file, bytes.
    pub start: u64,
    /// Length of the part, bytes.
    pub bytes: u64,
    salt: u64,
}

/// Counts of the frames in a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FramesFound {
    /// Small and large frames whose word and key agree.
    pub frames: [u64; 2],
    /// Bytes of their values.
    pub bytes: u64,
    /// Of these frames, those that do not verify.
    pub damaged: u64,
}

/// Reads the header of the frames part from the beginning of an arena's file; `None` when the arena
/// has no frames.
pub fn frames(bytes: &[u8]) -> Result<Option<FramesPart>, String> {
    let header = bytes
        .get(FRAMES_HEADER_AT..FRAMES_HEADER_AT + FRAMES_HEADER_BYTES)
        .ok_or("the arena is shorter than its header page")?;
    match FramesHeader::decode(header) {
        Ok(FramesHeader { node, store, sets, start, salt }) => {
            let sets = sets as usize;
            let bytes = bytes_of(sets) as u64;
            Ok(Some(FramesPart { node, store, sets, start, bytes, salt }))
        }
        Err(NoHeader::Nothing) => Ok(None),
        Err(NoHeader::Damaged) => {
            Err("torn header of the frames: they will begin empty".to_owned())
        }
        Err(NoHeader::OtherLayout(version)) => {
            Err(format!("frames of layout {version}: another binary's; they will begin empty"))
        }
    }
}

impl FramesPart {
    /// Verifies every frame in the bytes of the part; a part that is cut off is read as far as it
    /// goes.
    #[must_use]
    pub fn count(&self, part: &[u8]) -> FramesFound {
        let mut found = FramesFound::default();
        for set in 0..self.sets.min(part.len() / SET_BYTES) {
            let record = &part[set * SET_BYTES..(set + 1) * SET_BYTES];
            for way in 0..SET_FRAMES {
                let word =
                    record[way * 8..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                let key = record[KEYS_AT + way * KEY_BYTES..].first_chunk::<KEY_BYTES>();
                let (Some(frame), Some(key)) = (FrameWord::unpack(word), key) else { continue };
                if mark(key_hash(self.salt, key)) != frame.mark {
                    continue;
                }
                let at = place_of(self.sets, set, way);
                let bytes = part.get(at..at + usize::from(frame.length));
                let number = (set * SET_FRAMES + way) as u64;
                let is_sound = bytes
                    .is_some_and(|bytes| frame_crc(self.salt, number, key, &[bytes]) == frame.crc);
                found.frames[way / WAYS] += 1;
                found.bytes += u64::from(frame.length);
                found.damaged += u64::from(!is_sound);
            }
        }
        found
    }
}
