//! What shall go wrong, as people write it: `latency=10ms,fail=20%,lie=5%,gone=60s@5s`.

use crate::Error;
use std::str::FromStr;
use std::time::Duration;

/// What shall go wrong. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Each call takes that much longer, give or take a half.
    pub latency: Duration,
    /// Of a hundred calls so many fail and are not carried out.
    pub fail_percent: f64,
    /// Of a hundred writes so many are reported otherwise than they ended. A conditional write lands and is reported
    /// as failed or as a conflict, or does not land and is reported as a conflict; another write lands and is reported
    /// as failed.
    pub lie_percent: f64,
    /// When the store cannot be reached at all.
    pub gone: Option<Gone>,
}

/// A while, counted from the moment the plan was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// When it begins.
    pub from: Duration,
    /// How long it lasts.
    pub lasts: Duration,
}

impl Gone {
    pub(super) fn covers(self, at: Duration) -> bool {
        at >= self.from && at - self.from < self.lasts
    }
}

impl Plan {
    /// Whether nothing goes wrong.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        *self == Plan::default()
    }
}

impl FromStr for Plan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut plan = Plan::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let understood = match name.trim() {
                "latency" => duration(value).map(|latency| plan.latency = latency),
                "fail" => percent(value).map(|percent| plan.fail_percent = percent),
                "lie" => percent(value).map(|percent| plan.lie_percent = percent),
                "gone" => gone(value).map(|gone| plan.gone = Some(gone)),
                _ => None,
            };
            if understood.is_none() {
                return Err(Error::Invalid(format!(
                    "'{part}' is not a fault of a store. Write some of latency=10ms, fail=20%, lie=5%, gone=60s (from now) \
                     and gone=60s@5s (in 5 seconds from now), with commas between them"
                )));
            }
        }
        Ok(plan)
    }
}

fn gone(text: &str) -> Option<Gone> {
    let (lasts, from) = text.split_once('@').unwrap_or((text, "0s"));
    Some(Gone { from: duration(from)?, lasts: duration(lasts)? })
}

fn percent(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix('%')?;
    number.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent))
}

/// `250us`, `10ms`, `1.5s`, `2m`, `1h`.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let number: f64 = text[..digits].parse().ok()?;
    let unit = match &text[digits..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    // Longer than a year means a slip of the finger.
    let seconds = number * unit;
    (seconds <= 366.0 * 86400.0).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plans_are_read_as_people_write_them() {
        let plan: Plan = "latency=10ms,fail=20%, lie=2.5% ,gone=60s@5s".parse().unwrap();
        let gone = Gone { from: Duration::from_secs(5), lasts: Duration::from_secs(60) };
        let expected = Plan {
            latency: Duration::from_millis(10),
            fail_percent: 20.0,
            lie_percent: 2.5,
            gone: Some(gone),
        };
        assert_eq!(plan, expected);
        assert!("".parse::<Plan>().unwrap().is_quiet());
        let gone = "gone=2m".parse::<Plan>().unwrap().gone.unwrap();
        assert!(gone.covers(Duration::ZERO) && gone.covers(Duration::from_secs(119)));
        assert!(!gone.covers(Duration::from_secs(120)));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for bad in [
            "slow",
            "latency",
            "latency=10",
            "latency=ms",
            "fail=20",
            "fail=101%",
            "fail=-1%",
            "gone=1s@",
            "lie=x%",
            "latency=9e9s",
            "gone=999999h",
        ] {
            let error = bad.parse::<Plan>().unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("latency=10ms"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _ = text.parse::<Plan>();
        }

        #[test]
        fn nearly_right_text_too(text in "(latency|fail|gone|lie)=[0-9.]{0,30}(us|ms|s|m|h|%|@|é)?[0-9s@]{0,3}") {
            let _ = text.parse::<Plan>();
        }
    }
}
