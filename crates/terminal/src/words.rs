//! Words of a user that every command reads in one way: sizes and addresses.

use rekindle_env::Address;

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

/// An address to listen at or to call; `None` is `off`.
pub type AddressOrOff = Option<Address>;

/// `HOST:PORT`, `tcp:HOST:PORT`, `unix:PATH`, an absolute path, or `off`.
pub fn address(text: &str) -> Result<AddressOrOff, String> {
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
}
