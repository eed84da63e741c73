//! The arena's records: one header page (of the arena, and of its frames), one certificate record a
//! slot, one record a set of frames. Byte tables in `docs/format/warm.md`.

mod frames;
mod header;
pub(crate) mod home;
mod record;
pub(crate) mod users;

pub(crate) use frames::{
    EVICTED_AT, FRAMES_HEADER_AT, FRAMES_HEADER_BYTES, FrameWord, FramesHeader, KEY_BYTES, KEYS_AT,
    NoHeader, SET_BYTES, SET_FRAMES, frame_crc, key_hash, mark,
};
/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 2] =
    [("warm memory", header::VERSION), ("warm frames", frames::VERSION)];

/// Whether the first page of a file, or as much as there is of it, was an arena's. One of its
/// magics will do, so that damage to another one does not make the file a stranger's.
pub(crate) fn is_ours(page: &[u8]) -> bool {
    let marks: [(usize, &[u8]); 6] = [
        (0, &header::MAGIC),
        (HEADER_COPY_AT, &header::MAGIC),
        (FRAMES_HEADER_AT, &frames::MAGIC),
        (home::HOME_AT, home::MAGIC),
        (users::USERS_AT[0], users::MAGIC),
        (users::USERS_AT[1], users::MAGIC),
    ];
    // A file that was cut within its first magic still begins as one.
    let is_cut = page.len() < header::MAGIC.len() && header::MAGIC.starts_with(page);
    is_cut
        || marks
            .iter()
            .any(|(at, magic)| page.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
}

pub use header::BadHeader;
pub(crate) use header::{HEADER_BYTES, HEADER_COPY_AT, Header};
pub use record::Label;
pub(crate) use record::{LabelBytes, Published, RECORD_BYTES, durable_pack, durable_unpack};
