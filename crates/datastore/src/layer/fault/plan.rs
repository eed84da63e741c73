//! The plan of faults, as a user writes it:
//! `latency=10ms,fail=20%,lie=5%,gone=60s@5s,absent=packs/data/:2s@5s`.

use crate::Error;
use std::str::FromStr;
use std::time::Duration;

/// The faults of a store. The default is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Extra time of each call, give or take a half.
    pub latency: Duration,
    /// Bytes a second that all calls together may carry, read and written; 0: no bound.
    pub rate: u64,
    /// Percentage of calls that fail and are not carried out.
    pub fail_percent: f64,
    /// Percentage of writes with a wrong answer. A conditional write lands and is reported as
    /// failed or as a conflict, or does not land and is reported as a conflict. Another write lands
    /// and is reported as failed.
    pub lie_percent: f64,
    /// The period in which the store cannot be reached at all.
    pub gone: Option<Gone>,
    /// The period in which a prefix is empty, as if another folder lay over it. Writes there are
    /// lost afterwards.
    pub absent: Option<Absent>,
    /// Percentage of reads and listings that show the content before the last write (of those that
    /// passed this layer while this was not 0).
    pub stale_percent: f64,
    /// Percentage of calls that are answered late. A read returns what it found when it began. A
    /// write is reported as failed and lands up to [`Plan::LATE`] later, over any newer content.
    pub late_percent: f64,
    /// Percentage of writes that arrive once more, up to [`Plan::LATE`] later.
    pub twice_percent: f64,
    /// Percentage of calls that get no answer. After [`Plan::SILENCE`] they are reported as failed,
    /// done or not.
    pub silent_percent: f64,
    /// Percentage of reads of whole objects (records) with one wrong bit.
    pub flip_percent: f64,
}

/// A prefix, and the period in which it is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// The prefix; it ends in `/`.
    pub prefix: String,
    /// The period.
    pub when: Gone,
}

/// A period, counted from the moment the plan was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// The time until it begins.
    pub from: Duration,
    /// The time that it lasts.
    pub lasts: Duration,
}

impl Gone {
    pub(super) fn covers(self, at: Duration) -> bool {
        at >= self.from && at - self.from < self.lasts
    }
}

impl Plan {
    /// The longest delay of an answer, or of a write.
    pub const LATE: Duration = Duration::from_secs(5);
    /// The time that a call waits for an answer that does not come.
    pub const SILENCE: Duration = Duration::from_secs(30);

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
                "rate" => rate(value).map(|rate| plan.rate = rate),
                "fail" => percent(value).map(|percent| plan.fail_percent = percent),
                "lie" => percent(value).map(|percent| plan.lie_percent = percent),
                "gone" => gone(value).map(|gone| plan.gone = Some(gone)),
                "absent" => absent(value).map(|absent| plan.absent = Some(absent)),
                "stale" => percent(value).map(|percent| plan.stale_percent = percent),
                "late" => percent(value).map(|percent| plan.late_percent = percent),
                "twice" => percent(value).map(|percent| plan.twice_percent = percent),
                "silent" => percent(value).map(|percent| plan.silent_percent = percent),
                "flip" => percent(value).map(|percent| plan.flip_percent = percent),
                _ => None,
            };
            if understood.is_none() {
                return Err(Error::Invalid(format!(
                    "'{part}' is not a fault of a store. Write some of latency=10ms, rate=50M (bytes a second), fail=20%, lie=5%, gone=60s (from now) \
                     gone=60s@5s (in 5 seconds from now), absent=packs/data/:60s@5s (that prefix is empty), stale=5%, late=5%, \
                     twice=5%, silent=1% and flip=1%, with commas between them"
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

fn absent(text: &str) -> Option<Absent> {
    let (prefix, when) = text.trim().split_once(':')?;
    crate::key::check_prefix(prefix).ok().filter(|()| !prefix.is_empty())?;
    Some(Absent { prefix: prefix.to_owned(), when: gone(when)? })
}

fn rate(text: &str) -> Option<u64> {
    rekindle_base::units::parse_size(text.trim()).ok().filter(|rate| *rate > 0)
}

fn percent(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix('%')?;
    number.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent))
}

/// Parses `250us`, `10ms`, `1.5s`, `2m`, `1h`.
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
    // More than a year is a typing error.
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
            ..Plan::default()
        };
        assert_eq!(plan, expected);
        assert_eq!("rate=50M".parse::<Plan>().unwrap().rate, 50 << 20);
        let plan: Plan = "absent=packs/data/:60s@5s,stale=1%,late=2%,twice=3%,silent=4%,flip=5%"
            .parse()
            .unwrap();
        let expected = Plan {
            absent: Some(Absent { prefix: "packs/data/".to_owned(), when: gone }),
            stale_percent: 1.0,
            late_percent: 2.0,
            twice_percent: 3.0,
            silent_percent: 4.0,
            flip_percent: 5.0,
            ..Plan::default()
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
            "rate=0",
            "rate=fast",
            "gone=999999h",
            "absent=packs",
            "absent=packs:1s",
            "absent=:1s",
            "absent=../:1s",
            "stale=1",
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
        fn nearly_right_text_too(text in "(latency|rate|fail|gone|lie|absent|flip)=[0-9.]{0,30}(us|ms|s|m|h|%|@|é)?[0-9s@]{0,3}") {
            let _ = text.parse::<Plan>();
        }
    }
}
