//! The text form of an [`Address`].

use crate::Address;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an address: write tcp:127.0.0.1:10809, 127.0.0.1:10809, [::1]:10809, unix:/run/rekindle.sock or /run/rekindle.sock"
)]
pub struct BadAddress(pub String);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "tcp:{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err(bad())
            } else {
                Ok(Address::Unix(PathBuf::from(path)))
            };
        }
        if text.starts_with('/') {
            return Ok(Address::Unix(PathBuf::from(text)));
        }
        let socket = text.strip_prefix("tcp:").unwrap_or(text);
        // The one name that needs no resolver.
        match socket.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}").parse(),
            None => socket.parse(),
        }
        .map(Address::Tcp)
        .map_err(|_| bad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form_and_written_in_one() {
        for (text, written) in [
            ("tcp:127.0.0.1:10809", "tcp:127.0.0.1:10809"),
            ("127.0.0.1:10809", "tcp:127.0.0.1:10809"),
            ("localhost:0", "tcp:127.0.0.1:0"),
            ("[::1]:1", "tcp:[::1]:1"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:a.sock", "unix:a.sock"),
            ("/run/a.sock", "unix:/run/a.sock"),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), written);
            assert_eq!(written.parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_told_the_forms() {
        for text in [
            "",
            "unix:",
            "tcp:",
            "10809",
            "host:1",
            "127.0.0.1",
            "127.0.0.1:65536",
            "tcp:/run/a.sock",
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(
                error.contains("tcp:127.0.0.1:10809") && error.contains("unix:/run"),
                "{error}"
            );
        }
    }
}
