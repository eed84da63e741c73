//! The arena's records: one header page (of the arena, and of its frames), one certificate record a slot, one record a
//! set of frames. Byte tables in `docs/format/warm.md`.

mod frames;
mod header;
pub(crate) mod home;
mod record;

pub(crate) use frames::{
    EVICTED_AT, FRAMES_HEADER_AT, FRAMES_HEADER_BYTES, FrameWord, FramesHeader, KEY_BYTES, KEYS_AT,
    NoHeader, SET_BYTES, SET_FRAMES, frame_crc, key_hash, mark,
};
/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 2] =
    [("warm memory", header::VERSION), ("warm frames", frames::VERSION)];

pub use header::BadHeader;
pub(crate) use header::{HEADER_BYTES, HEADER_COPY_AT, Header};
pub use record::Label;
pub(crate) use record::{LabelBytes, RECORD_BYTES, State, durable_pack, durable_unpack};
