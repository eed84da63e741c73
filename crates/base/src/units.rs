//! Sizes in bytes, as users write and read them.

use serde::Deserializer;
use serde::de::{Error, Visitor};
use std::fmt;

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;
/// 1024 GiB.
pub const TIB: u64 = 1 << 40;

/// Text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: write a whole number with K, M, G or T (powers of 1024), as in 20G")]
pub struct BadSize(pub String);

/// Reads `20G`, `512M`, `16K`, `4096`, `1T`, also with `iB` or `B` behind, in either case.
pub fn parse_size(text: &str) -> Result<u64, BadSize> {
    let bad = || BadSize(text.to_owned());
    let plain = text.trim().to_ascii_uppercase();
    let digits = plain.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = plain[..digits].parse().map_err(|_| bad())?;
    let unit = match &plain[digits..] {
        "" | "B" => 1,
        "K" | "KIB" | "KB" => KIB,
        "M" | "MIB" | "MB" => MIB,
        "G" | "GIB" | "GB" => GIB,
        "T" | "TIB" | "TB" => TIB,
        _ => return Err(bad()),
    };
    number.checked_mul(unit).ok_or_else(bad)
}

/// Reads a size of a request: a number of bytes, or text as [`parse_size`] does.
pub fn deserialize_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Size;
    impl Visitor<'_> for Size {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size: a number of bytes, or text such as \"20G\"")
        }
        fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
            Ok(bytes)
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            parse_size(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Size)
}

/// Writes a size for messages: `20 GiB`, `1.5 MiB`, `512 B`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            return match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                rest => format!("{}.{rest} {name}", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("20G", 20 * GIB), ("16k", 16 * KIB), ("4096", 4096), ("1TiB", TIB), (" 3mb", 3 * MIB)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "1.5G", "-1", "12X", "99999999999T", "é"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!(format_size(20 * GIB), "20 GiB");
        assert_eq!(format_size(MIB + MIB / 2), "1.5 MiB");
        assert_eq!(format_size(511), "511 B");
    }
}
