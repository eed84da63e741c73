//! Words of the command line that are more than text: sizes, times, addresses.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rekindle_content::Parity;
use rekindle_env::Address;
use rekindle_staging::{Ack, Policy};
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

fn word<T, const N: usize>(words: [&'static str; N]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(word.into()))
}

/// A size: `20G`, `1.5T`, `16K`, `4096`; powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let upper = text.to_ascii_uppercase();
    if let Some(number) = upper.strip_suffix('B')
        && number.ends_with(['K', 'M', 'G', 'T'])
    {
        // Other programs take KB, MB and so on for powers of 1000.
        let (short, long) = (&text[..text.len() - 1], &upper[..upper.len() - 2]);
        let unit = &upper[upper.len() - 2..upper.len() - 1];
        return Err(format!(
            "'{text}' may mean powers of 1000 or of 1024: write {short} or {long}{unit}iB for powers of 1024, or the number of bytes"
        ));
    }
    match text.split_once('.') {
        None => rekindle_base::units::parse_size(text).map_err(|_| bad_size(text)),
        Some((whole, rest)) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (fraction, unit) = rest.split_at(digits);
            if digits == 0 || digits > 6 || unit.is_empty() || unit.eq_ignore_ascii_case("b") {
                return Err(bad_size(text));
            }
            let unit_bytes = rekindle_base::units::parse_size(&format!("1{unit}"));
            let number: Option<u128> = format!("{whole}{fraction}").parse().ok();
            let (Ok(unit), Some(number)) = (unit_bytes, number.filter(|_| !whole.is_empty()))
            else {
                return Err(bad_size(text));
            };
            let parts = 10u128.pow(u32::try_from(digits).unwrap_or(0));
            let bytes = number.checked_mul(u128::from(unit)).map(|bytes| bytes / parts);
            bytes.and_then(|bytes| u64::try_from(bytes).ok()).ok_or_else(|| bad_size(text))
        }
    }
}

fn bad_size(text: &str) -> String {
    format!(
        "'{text}' is not a size: write a number with K, M, G or T (powers of 1024), as in 20G or 1.5T"
    )
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

/// A place to listen at; `None` is nowhere.
pub type Place = Option<Address>;

/// `HOST:PORT`, `tcp:HOST:PORT`, `unix:PATH`, an absolute path, or `off`.
pub fn address(text: &str) -> Result<Place, String> {
    if text == "off" {
        return Ok(None);
    }
    match text.parse::<Address>().map_err(|error| format!("{error}, or off"))? {
        Address::Unix(path) => {
            let path = std::path::absolute(path).map_err(|error| error.to_string())?;
            Ok(Some(Address::Unix(path)))
        }
        tcp @ Address::Tcp(_) => Ok(Some(tcp)),
    }
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
    fn sizes_are_exact_and_what_could_be_misread_is_refused() {
        assert_eq!(size("1.5T"), Ok(3 << 39));
        assert_eq!(size("0.5g"), Ok(1 << 29));
        assert_eq!(size("2.25KiB"), Ok(2304));
        for bad in ["1.5", "1.5B", ".5G", "1.G", "1.2.3G", "1.1234567G", "99999999.5T", "-1.5G"] {
            assert!(size(bad).expect_err(bad).contains("is not a size"), "{bad}");
        }
        let error = size("20GB").expect_err("decimal or binary");
        assert!(error.contains("write 20G or 20GiB"), "{error}");
        assert_eq!(size("20GiB"), Ok(20 << 30));
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
    fn addresses_are_sockets_paths_or_nothing() {
        let tcp = Some(Address::Tcp("127.0.0.1:10809".parse().expect("an address")));
        assert_eq!(address("127.0.0.1:10809"), Ok(tcp.clone()));
        assert_eq!(address("tcp:127.0.0.1:10809"), Ok(tcp));
        assert_eq!(address("unix:/run/x.sock"), Ok(Some(Address::Unix("/run/x.sock".into()))));
        assert_eq!(address("/run/x.sock"), Ok(Some(Address::Unix("/run/x.sock".into()))));
        assert_eq!(address("off"), Ok(None));
        for bad in ["", "unix:", "10809", "127.0.0.1:99999"] {
            assert!(address(bad).is_err(), "{bad}");
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
