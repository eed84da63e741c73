//! Words of the command line that are more than text: sizes of volumes, times, names.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rekindle_content::Parity;
use rekindle_node::config::HolderSpread;
use rekindle_staging::{Ack, MissingCopy, Policy};
use rekindle_terminal::words::size;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// A policy, in the words of the API.
pub fn policy() -> impl TypedValueParser<Value = Policy> {
    word(["back", "through", "uncached"])
}

/// What `back` asks of the log, in the words of the API.
pub fn ack() -> impl TypedValueParser<Value = Ack> {
    word(["flash", "memory"])
}

/// What a write does while there are fewer copies than its volume asks for, in the words of the
/// API.
pub fn missing_copy() -> impl TypedValueParser<Value = MissingCopy> {
    word(["step-down", "stall"])
}

/// Where the holders of copies may be, in the words of the settings.
pub fn holder_spread() -> impl TypedValueParser<Value = HolderSpread> {
    word(["prefer", "remote", "local"])
}

/// Where the holders of copies may be, of a settings file.
pub fn spread(word: &str) -> Result<HolderSpread, String> {
    serde_json::from_value(word.into())
        .map_err(|_| format!("'{word}' is none: write prefer, remote or local"))
}

fn word<T, const N: usize>(words: [&'static str; N]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(word.into()))
}

/// Least bare number that is taken for bytes: a smaller one probably lacks its unit.
const BARE_MIN: u64 = 1 << 20;

/// A size for a budget or a rate: `256M`, 0, or a plausible number of bytes. A small number without
/// a unit is refused.
pub fn budget(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes > 0 && bytes < BARE_MIN && text.trim().bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "{bytes} bytes? Write {bytes}M for {bytes} MiB, or {bytes}B if bytes are meant"
        ));
    }
    Ok(bytes)
}

/// A size for a volume: not 0, a multiple of 512, not past the limit. The daemon checks it too, but
/// the request is wrong whatever the daemon says: refused here first.
pub fn volume_size(text: &str) -> Result<u64, String> {
    use rekindle_base::limits::{SECTOR_BYTES, VOLUME_BYTES_MAX};
    let bytes = size(text)?;
    if bytes == 0 {
        return Err("a volume of 0 bytes cannot hold anything: write a size such as 20G".to_owned());
    }
    if bytes < BARE_MIN && text.trim().bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "{bytes} bytes? Write {bytes}G for {bytes} GiB, or {bytes}B if bytes are meant"
        ));
    }
    if bytes > VOLUME_BYTES_MAX {
        let most = rekindle_base::units::format_size(VOLUME_BYTES_MAX);
        return Err(format!("a volume has at most {most}"));
    }
    if text.contains('.') {
        // A fraction of a unit is seldom whole sectors.
        return Ok(bytes.next_multiple_of(SECTOR_BYTES));
    }
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        let up = bytes.next_multiple_of(SECTOR_BYTES);
        return Err(format!("{bytes} is not a multiple of {SECTOR_BYTES}: the next one is {up}"));
    }
    Ok(bytes)
}

/// A size for the blocks of a volume: a power of two from 4 KiB to 1 MiB.
pub fn block_size(text: &str) -> Result<u64, String> {
    use rekindle_base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
    let bytes = size(text)?;
    if bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    Err("a block size is a power of two from 4K to 1M".to_owned())
}

/// A size for the sectors of a kernel's device.
pub fn sector_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ (512 | 1024 | 2048 | 4096) => Ok(bytes),
        _ => Err("a sector size is 512, 1K, 2K or 4K".to_owned()),
    }
}

/// `on` or `off`.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is not on or off")),
    }
}

/// The parity of new packs; `None` is off.
pub type ParityChoice = Option<Parity>;

/// `16+1`, or `off`.
pub fn parity(text: &str) -> Result<ParityChoice, String> {
    if text == "off" { Ok(None) } else { text.parse().map(Some) }
}

/// `/dev/nbdN`, as N.
pub fn nbd_device(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("/dev/nbd").and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("'{text}' is no NBD device: write one such as /dev/nbd0"))
}

/// A volume's name.
pub fn volume_name(text: &str) -> Result<String, String> {
    rekindle_base::names::check(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// A time: `250ms`, `10s`, `5m`, `1h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad =
        || format!("'{text}' is not a time: write a whole number with ms, s, m or h, as in 30s");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let milliseconds = match &text[digits..] {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_without_a_unit_is_asked_about() {
        for (text, hint) in [("256", "256M"), ("16", "16M"), (" 20 ", "20B")] {
            let refused = budget(text).expect_err("a few bytes");
            assert!(refused.contains(hint), "{text}: {refused}");
        }
        assert_eq!((budget("0"), budget("256M")), (Ok(0), Ok(256 << 20)));
        assert_eq!((budget("268435456"), budget("512B")), (Ok(256 << 20), Ok(512)));
    }

    #[test]
    fn sizes_of_volumes_are_checked_before_anybody_is_asked() {
        assert_eq!(volume_size("20G"), Ok(20 << 30));
        assert_eq!(volume_size("1.5G"), Ok(3 << 29));
        assert_eq!(volume_size("0.000001G"), Ok(1536), "whole sectors");
        assert_eq!(volume_size("1048576"), Ok(1 << 20));
        assert_eq!(volume_size("4096B"), Ok(4096));
        for bad in ["0", "513", "2048T", "", "-1", "18446744073709551615", "9999999.9T"] {
            assert!(volume_size(bad).is_err(), "{bad}");
        }
        assert!(volume_size("1000B").expect_err("not a multiple").contains("1024"));
        assert!(volume_size("20").expect_err("bytes?").contains("20G"));
        assert_eq!(block_size("16K"), Ok(16 << 10));
        for bad in ["0", "2K", "12K", "2M"] {
            assert!(block_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "1.5s", "3 s", "4y"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn devices_are_numbered() {
        assert_eq!(nbd_device("/dev/nbd12"), Ok(12));
        for bad in ["", "nbd0", "/dev/nbd", "/dev/sda", "/dev/nbd0p1"] {
            assert!(nbd_device(bad).is_err(), "{bad}");
        }
        assert_eq!(sector_size("4K"), Ok(4096));
        assert!(sector_size("3K").is_err());
    }
}
