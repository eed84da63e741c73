//! The prices of a store, by which `rekindle cost` and `sweep plan` count.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A price in billionths of a unit of money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Price(pub u64);

/// Decimal places of a price.
const PLACES: usize = 9;
/// Billionths in a unit.
const UNIT: u64 = 10_u64.pow(PLACES as u32);

impl Price {
    /// The price in units of money.
    #[must_use]
    pub fn units(self) -> f64 {
        self.0 as f64 / UNIT as f64
    }
}

impl FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a price: write it as 0.023");
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(rest) || rest.len() > PLACES {
            return Err(bad());
        }
        let digits = format!("{whole}{rest:0<PLACES$}");
        digits.parse().map(Self).map_err(|_| bad())
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:0PLACES$}", self.0 % UNIT);
        let cut = digits.trim_end_matches('0');
        write!(f, "{}.{}", self.0 / UNIT, if cut.len() < 2 { &digits[..2] } else { cut })
    }
}

/// The prices of a store, in any money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// 1,000 requests that write or list.
    pub write: Price,
    /// 1,000 requests that read.
    pub read: Price,
    /// A GB (10^9 bytes) that is stored for a month.
    pub stored: Price,
    /// A GB that is read from the store.
    pub received: Price,
}

impl Default for Prices {
    /// A large provider's list prices for its usual class, in US dollars; a reader in the same
    /// region pays nothing for the bytes.
    fn default() -> Self {
        Self {
            write: Price(5_000_000),
            read: Price(400_000),
            stored: Price(23_000_000),
            received: Price(0),
        }
    }
}

impl Prices {
    /// Returns what requests cost.
    #[must_use]
    pub fn of_requests(&self, writes: u64, reads: u64) -> Price {
        share(
            u128::from(writes) * u128::from(self.write.0)
                + u128::from(reads) * u128::from(self.read.0),
            1000,
        )
    }

    /// Returns what it costs to read so many bytes.
    #[must_use]
    pub fn of_reading(&self, bytes: u64) -> Price {
        share(u128::from(bytes) * u128::from(self.received.0), GB)
    }

    /// Returns what it costs to store so many bytes for a month.
    #[must_use]
    pub fn of_a_month(&self, bytes: u64) -> Price {
        share(u128::from(bytes) * u128::from(self.stored.0), GB)
    }
}

/// Bytes of a GB.
const GB: u128 = 1_000_000_000;

fn share(billionths: u128, of: u128) -> Price {
    Price(u64::try_from(billionths / of).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{Price, Prices};

    #[test]
    fn requests_and_bytes_are_counted_at_their_prices() {
        let prices = Prices { received: Price(90_000_000), ..Prices::default() };
        assert_eq!(prices.of_requests(2000, 500).to_string(), "0.0102");
        assert_eq!(prices.of_reading(3_000_000_000).to_string(), "0.27");
        assert_eq!(prices.of_a_month(10_000_000_000).to_string(), "0.23");
        assert_eq!(prices.of_a_month(u64::MAX).0, 424_275_113_695_319_687);
    }

    #[test]
    fn prices_are_read_and_shown_as_people_write_them() {
        for (text, shown) in [
            ("0.005", "0.005"),
            ("0.0004", "0.0004"),
            ("3", "3.00"),
            ("0.5", "0.50"),
            ("0.0", "0.00"),
        ] {
            assert_eq!(text.parse::<Price>().expect("a price").to_string(), shown);
        }
        for bad in ["", ".5", "5.", "-1", "0,5", "1e3", "0.0000000001", "99999999999.0"] {
            assert!(bad.parse::<Price>().is_err(), "{bad}");
        }
    }
}
