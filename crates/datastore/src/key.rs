//! Keys: which ones are lawful, and which object lies where. `docs/format/datastore.md` documents
//! them for users.

use crate::Error;
use crate::limits::{KEY_BYTES_MAX, SEGMENT_BYTES_MAX};
use rekindle_base::{NodeId, VolumeId};

/// The identity record, which marks a folder or bucket as a store of rekindle.
pub const IDENTITY: &str = "rekindle.json";
/// Records of nodes.
pub const NODES: &str = "nodes/";
/// Vaults.
pub const VOLUMES: &str = "volumes/";
/// Volume names.
pub const NAMES: &str = "names/";
/// Packs, both kinds.
pub const PACKS: &str = "packs/";
/// Packs of data chunks.
pub const PACKS_DATA: &str = "packs/data/";
/// Packs of metadata chunks.
pub const PACKS_META: &str = "packs/meta/";
/// Notes on chunks that compaction moved.
pub const MOVED: &str = "moved/";
/// The state of the sweep.
pub const SWEEP: &str = "sweep/";
/// Snapshots.
pub const SNAPSHOTS: &str = "snapshots/";
/// Records of salvages, by volume.
pub const SALVAGES: &str = "salvages/";
/// Left-overs of probing, free to delete.
pub const PROBE: &str = "probe/";

/// The folders that have a marker. A folder that comes into use later is added here: see
/// [`crate::identity::mark`].
pub const MARKED: [&str; 9] =
    [NODES, VOLUMES, NAMES, PACKS_DATA, PACKS_META, MOVED, SWEEP, SNAPSHOTS, SALVAGES];
/// The last segment of a marker's key, the only one that begins with a dot. Listings do not show
/// markers.
const MARKER: &str = ".rekindle";

/// Returns the key of the marker that proves a folder to be the right one.
#[must_use]
pub fn marker_key(folder: &str) -> String {
    format!("{folder}{MARKER}")
}

/// Whether a key is that of a marker.
#[must_use]
pub fn is_marker(key: &str) -> bool {
    key.strip_suffix(MARKER).is_some_and(|folder| folder.ends_with('/'))
}

/// Returns the key of a node's record.
#[must_use]
pub fn node_key(node: NodeId) -> String {
    format!("{NODES}{node}")
}

/// Returns the key of a volume's vault.
#[must_use]
pub fn volume_key(volume: VolumeId) -> String {
    format!("{VOLUMES}{volume}")
}

/// Bytes of an encoded name in one segment. A longer name goes on in the next segment; a `+` at the
/// end marks that.
const NAME_PIECE_BYTES: usize = 190;

/// Returns the key of a volume name: percent-encoded, in several segments when it is long.
#[must_use]
pub fn name_key(name: &str) -> String {
    let mut key = String::from(NAMES);
    let mut piece = 0;
    for (index, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'_')
            || (byte == b'.' && index > 0);
        let length = if plain { 1 } else { 3 };
        if piece + length > NAME_PIECE_BYTES {
            key.push_str("+/");
            piece = 0;
        }
        // A segment must not begin with a dot, so a dot at the start of a piece is encoded although
        // it is lawful elsewhere.
        if plain && !(byte == b'.' && piece == 0) {
            key.push(char::from(byte));
        } else {
            key.push_str(&format!("%{byte:02X}"));
        }
        piece += length;
    }
    key
}

/// Returns the volume name of a key; `None` when the key is not one that [`name_key`] gives.
#[must_use]
pub fn name_of_key(key: &str) -> Option<String> {
    let encoded = key.strip_prefix(NAMES)?.replace("+/", "");
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok().filter(|name| name_key(name) == key)
}

/// Checks that a key is lawful: `/`-separated segments of printable ASCII (no `\`). None is empty,
/// and none begins with a dot but the last one of a marker.
pub fn check(key: &str) -> Result<(), Error> {
    let key = if is_marker(key) { &key[..key.len() - MARKER.len() - 1] } else { key };
    let reason = if key.len() > KEY_BYTES_MAX {
        format!("it has {} bytes, at most {KEY_BYTES_MAX} are possible", key.len())
    } else if let Some(bad) =
        key.bytes().find(|byte| !matches!(byte, 0x20..=0x7e) || *byte == b'\\')
    {
        format!("it contains {:?}, only printable ASCII without '\\' is possible", char::from(bad))
    } else if let Some(bad) =
        key.split('/').find(|segment| segment.is_empty() || segment.starts_with('.'))
    {
        format!("it has the segment '{bad}', segments must not be empty nor begin with a dot")
    } else if let Some(bad) = key.split('/').find(|segment| segment.len() > SEGMENT_BYTES_MAX) {
        format!("it has a segment of {} bytes, at most {SEGMENT_BYTES_MAX} are possible", bad.len())
    } else {
        return Ok(());
    };
    Err(Error::Invalid(format!("{key:?} cannot be a key of a store: {reason}")))
}

/// Checks that a prefix may be listed: it is empty, or a lawful key and a `/`.
pub fn check_prefix(prefix: &str) -> Result<(), Error> {
    match prefix.strip_suffix('/') {
        Some(folder) => check(folder),
        None if prefix.is_empty() => Ok(()),
        None => {
            Err(Error::Invalid(format!("{prefix:?} cannot be listed: a prefix must end in '/'")))
        }
    }
}

/// Checks that a range does not run backwards; `false` when it is empty.
pub(crate) fn check_range(range: &std::ops::Range<u64>) -> Result<bool, Error> {
    if range.start > range.end {
        return Err(Error::Invalid(format!(
            "the range {}..{} runs backwards",
            range.start, range.end
        )));
    }
    Ok(range.start < range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_that_could_leave_the_store_are_refused() {
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        let wide = "x".repeat(SEGMENT_BYTES_MAX + 1);
        let bad = [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            "..",
            "a/../b",
            ".",
            "a/./b",
            ".tmp/x",
            "a\0",
            "a\nb",
            "é",
            "a\\b",
            ".rekindle",
            "/.rekindle",
            "../.rekindle",
            "a/.rekindle/b",
            "a/x.rekindle/",
        ];
        for key in bad.into_iter().chain([long.as_str(), wide.as_str()]) {
            assert!(check(key).is_err(), "{key:?}");
        }
        for key in [
            "a",
            "a/b/c",
            "rekindle.json",
            "a b",
            "100%",
            "names/a%2Fb",
            "a..b/c",
            "~#?&=+[]{}",
            "a/.rekindle",
        ] {
            assert!(check(key).is_ok(), "{key:?}");
        }
        assert!(check_prefix("").is_ok() && check_prefix("a/b/").is_ok());
        assert!(
            check_prefix("a").is_err()
                && check_prefix("/").is_err()
                && check_prefix("../").is_err()
        );
    }

    #[test]
    fn a_name_is_readable_in_its_key() {
        assert_eq!(name_key("vm1"), "names/vm1");
        assert_eq!(name_key("Mail store"), "names/Mail%20store");
        assert_eq!(name_key("größe"), "names/gr%C3%B6%C3%9Fe");
        assert_eq!(name_of_key("names/gr%C3%B6%C3%9Fe").as_deref(), Some("größe"));
        for strange in [
            "names/%c3%b6",
            "names/%4",
            "names/%FF",
            "names/a b",
            "volumes/a",
            "names/a+/b",
            "names/%é",
        ] {
            assert_eq!(name_of_key(strange), None, "{strange}");
        }
    }

    proptest! {
        #[test]
        fn any_volume_name_has_a_lawful_key_and_comes_back(name in "\\PC{1,63}|[\u{100}-\u{7ff}]{100,127}") {
            let key = name_key(&name);
            prop_assert!(check(&key).is_ok(), "{}", key);
            prop_assert_eq!(name_of_key(&key), Some(name));
        }

        #[test]
        fn dots_too(name in "[a.]{1,255}") {
            let key = name_key(&name);
            prop_assert!(check(&key).is_ok(), "{}", key);
            prop_assert_eq!(name_of_key(&key), Some(name));
        }
    }
}
