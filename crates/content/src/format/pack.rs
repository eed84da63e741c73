//! Header of a pack object. 32 bytes, little-endian:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKPACK` 0 0 |
//! | 8 | 2 | version: 1; 2 in a pack with bundles |
//! | 10 | 1 | class: 1 data, 2 metadata |
//! | 11 | 1 | reserved: 0 |
//! | 12 | 16 | pack id |
//! | 28 | 4 | CRC-32C of bytes 0..28 |
//!
//! See also `docs/format/pack.md`.

use super::{Bad, damaged};
use crate::Class;
use rekindle_base::PackId;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "pack header";
const MAGIC: [u8; 8] = *b"RKPACK\0\0";
/// Newest version of the whole pack: header, blobs, footer.
pub const VERSION: u16 = VERSION_BUNDLES;
/// Version of a pack in which each chunk has a blob of its own.
pub(crate) const VERSION_BLOBS: u16 = 1;
/// Version of a pack with bundles.
pub(crate) const VERSION_BUNDLES: u16 = 2;
/// Bytes of the header.
pub const BYTES: usize = 32;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    class: u8,
    reserved: u8,
    pack: [u8; 16],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == BYTES);

pub(crate) fn class_code(class: Class) -> u8 {
    match class {
        Class::Data => 1,
        Class::Metadata => 2,
    }
}

pub(crate) fn class_from(code: u8) -> Option<Class> {
    match code {
        1 => Some(Class::Data),
        2 => Some(Class::Metadata),
        _ => None,
    }
}

/// Encodes a header.
#[must_use]
pub fn encode(class: Class, pack: PackId, has_bundles: bool) -> [u8; BYTES] {
    let version = if has_bundles { VERSION_BUNDLES } else { VERSION_BLOBS };
    let mut raw = Raw {
        magic: MAGIC,
        version: version.into(),
        class: class_code(class),
        reserved: 0,
        pack: pack.0,
        crc: U32::ZERO,
    };
    raw.crc = rekindle_base::checksum::crc32c(&raw.as_bytes()[..BYTES - 4]).into();
    zerocopy::transmute!(raw)
}

/// Decodes the header at the begin of `bytes`.
pub fn decode(bytes: &[u8]) -> Result<(Class, PackId), Bad> {
    let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is too short"))?;
    if raw.magic != MAGIC {
        return Err(damaged(WHAT, "the magic number is wrong"));
    }
    if raw.crc.get() != rekindle_base::checksum::crc32c(&raw.as_bytes()[..BYTES - 4]) {
        return Err(damaged(WHAT, "the checksum is wrong"));
    }
    if raw.version.get() > VERSION {
        return Err(Bad::Newer { what: WHAT, found: raw.version.get(), known: VERSION });
    }
    let class = class_from(raw.class).ok_or_else(|| damaged(WHAT, "the class is unknown"))?;
    Ok((class, PackId(raw.pack)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_survives() {
        let with_bundles = encode(Class::Data, PackId([7; 16]), true);
        assert_eq!(decode(&with_bundles), Ok((Class::Data, PackId([7; 16]))));
        super::super::check_golden("pack-header-2.bin", &with_bundles);
        let bytes = encode(Class::Metadata, PackId([7; 16]), false);
        assert_eq!(decode(&bytes), Ok((Class::Metadata, PackId([7; 16]))));
        super::super::check_golden("pack-header.bin", &bytes);
        for at in 0..BYTES {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert!(decode(&bad).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }
}
