//! The setting of how much parity new packs carry.

use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The parity of a pack, written `16+1`: one parity cell to every 16 data cells, so that one of the
/// 17 may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Parity {
    data: u8,
    parity: u8,
}

impl Parity {
    /// Data cells of a stripe.
    #[must_use]
    pub fn data(self) -> usize {
        usize::from(self.data)
    }

    /// Parity cells of a stripe: so many of its cells may be lost.
    #[must_use]
    pub fn parity(self) -> usize {
        usize::from(self.parity)
    }
}

impl FromStr for Parity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u8>().ok().filter(|_| !text.starts_with('+'));
        let shape = text
            .split_once('+')
            .and_then(|(data, parity)| Some(Self { data: number(data)?, parity: number(parity)? }));
        let fits = |shape: &Self| {
            (2..=limits::PARITY_DATA_MAX).contains(&shape.data)
                && (1..=limits::PARITY_PARITY_MAX).contains(&shape.parity)
                && shape.parity <= shape.data
        };
        shape.filter(fits).ok_or_else(|| {
            format!(
                "'{text}' is no parity: write 16+1, that is 2 to {} data cells, +, 1 to {} parity cells (no more than \
                 data cells), or off",
                limits::PARITY_DATA_MAX,
                limits::PARITY_PARITY_MAX
            )
        })
    }
}

impl TryFrom<String> for Parity {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Parity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl From<Parity> for String {
    fn from(parity: Parity) -> Self {
        parity.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_two_numbers_within_bounds() {
        for good in ["16+1", "2+1", "64+8", "2+2"] {
            let parity: Parity = good.parse().unwrap();
            assert_eq!(parity.to_string(), good);
            let json = serde_json::to_string(&parity).unwrap();
            assert_eq!(serde_json::from_str::<Parity>(&json).unwrap(), parity);
        }
        for bad in [
            "", "16", "+", "16+", "+1", "16+0", "1+1", "65+1", "16+9", "2+3", "16++1", "300+1",
            "a+b", "16-1",
        ] {
            let refused = bad.parse::<Parity>().unwrap_err();
            assert!(refused.contains("write 16+1"), "{bad}: {refused}");
        }
        assert!(serde_json::from_str::<Parity>("\"1+1\"").is_err());
    }
}
