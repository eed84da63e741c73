//! What a store charges: the prices by which `rekindle cost` counts.

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

#[cfg(test)]
mod tests {
    use super::Price;

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
