//! The head of a qcow2 image (big-endian). It is read here, before any program opens the files that
//! it names.
//!
//! ```text
//! 0 "QFI\xfb"  4 version:u32  8 place of the backing file's name:u64 (0: none)  24 disk's size:u64
//! version 3: 72 incompatible features:u64 (4: the data lies in another file)
//! ```
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Bytes of the head that are looked at.
const HEAD: u64 = 104;
const DATA_ELSEWHERE: u64 = 4;

/// The fields of a head that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Size of the disk.
    pub bytes: u64,
    /// Whether the image holds only what differs from another file.
    pub backed: bool,
    /// Whether the image's data lies in another file.
    pub data_elsewhere: bool,
}

/// Reads the head; `None` when the file has none.
pub fn read(file: &Path) -> io::Result<Option<Head>> {
    begin(file).map(|head| parse(&head))
}

/// Reads the beginning of a file.
pub fn begin(file: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(file)?.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

fn parse(head: &[u8]) -> Option<Head> {
    let number = |at: usize| {
        head.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map(u64::from_be_bytes)
    };
    let version = u32::from_be_bytes(head.get(4..8)?.try_into().ok()?);
    let known = head.starts_with(&MAGIC) && matches!(version, 2 | 3);
    known.then_some(())?;
    Some(Head {
        bytes: number(24)?,
        backed: number(8)? != 0,
        data_elsewhere: version == 3 && number(72)? & DATA_ELSEWHERE != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_say_what_they_lead_to_and_others_are_none() {
        let mut head = vec![0; 104];
        assert_eq!(parse(&head), None);
        head[..4].copy_from_slice(&MAGIC);
        head[7] = 3;
        head[24..32].copy_from_slice(&4096u64.to_be_bytes());
        let alone = Head { bytes: 4096, backed: false, data_elsewhere: false };
        assert_eq!(parse(&head), Some(alone));
        head[15] = 1;
        assert_eq!(parse(&head), Some(Head { backed: true, ..alone }));
        (head[15], head[79]) = (0, 4);
        assert_eq!(parse(&head), Some(Head { data_elsewhere: true, ..alone }));
        assert_eq!(parse(&head[..20]), None, "cut off");
        head[7] = 9;
        assert_eq!(parse(&head), None, "of another version");
    }
}
