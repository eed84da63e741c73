//! Decides whether a volume may be salvaged once more. Pure: no clock, no I/O.
//!
//! The memory of salvages lies in the datastore (`salvages/<id>`). It is written before a salvage
//! begins and after it has ended, so that an attempt counts even if its process dies. Attempts are
//! counted from zero again after a good one with [`limits::SALVAGE_HEALTHY`] without a request,
//! when an operator asks, and with the volume's removal.

use crate::format::{Account, Fault, Memory, Outcome};
use crate::limits;
use rekindle_staging::Allowance;
use std::time::Duration;

/// The origin of a salvage, in order of what it may give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum By {
    /// A reader, the destager or the node met damage.
    Itself,
    /// An operator wants a repair, and to know what would be lost.
    Operator,
    /// An operator accepts the losses.
    Accepting,
}

/// The reason for refusing a salvage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The last one has just ended; the time left.
    TooSoon(Duration),
    /// The last two have found the same and changed nothing.
    NoProgress,
    /// Too many attempts.
    Exhausted,
    /// The fault waits for an operator, for the end of its first hour, or for absent chunks.
    Waits(Duration, String),
}

/// Returns what a salvage may give up, of a volume of `size` whose fault was first seen at `since`.
pub(crate) fn allowance(by: By, since: u64, now: u64, size: u64) -> Allowance {
    let patience = micros(limits::SALVAGE_PATIENCE);
    match by {
        By::Accepting => Allowance::ALL,
        By::Operator => Allowance::NOTHING,
        By::Itself if now.saturating_sub(since) < patience => Allowance::NOTHING,
        By::Itself => {
            let part = |percent| size / 100 * percent;
            let bytes = limits::SALVAGE_LOSS_BYTES_MAX.max(part(limits::SALVAGE_LOSS_PERCENT));
            let bytes = bytes.min(part(limits::SALVAGE_LOSS_PERCENT_MAX));
            Allowance { bytes, absent: false }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Refusal {
    /// Puts the refusal into words for users.
    pub fn sentence(&self, name: &str) -> String {
        let next = format!(
            "`rekindle salvage history {name}` tells what was tried, `rekindle salvage run {name}` tries again"
        );
        match self {
            Refusal::TooSoon(wait) => {
                format!(
                    "it was salvaged just now; the next attempt is due in {} s",
                    wait.as_secs() + 1
                )
            }
            Refusal::NoProgress => {
                format!("the last salvages have found the same and could change nothing: {next}")
            }
            Refusal::Exhausted => {
                format!("it was salvaged {} times in vain: {next}", limits::SALVAGE_ATTEMPTS_MAX)
            }
            Refusal::Waits(wait, reason) => {
                format!("{reason}; it is looked at again in {} s", wait.as_secs() + 1)
            }
        }
    }
}

/// Begins a salvage: returns the memory to write, or the refusal.
pub(crate) fn begin(
    mut memory: Memory,
    by: By,
    volume: &str,
    reason: &str,
    now: u64,
) -> Result<Memory, Refusal> {
    let last = memory.accounts.last_mut();
    if let Some(last) = last.filter(|last| last.outcome == Outcome::Running) {
        last.outcome = Outcome::Interrupted;
        last.lines.push("the process ended in the midst of it".to_owned());
    }
    let last = memory.accounts.last();
    let ended = last.and_then(|last| last.ended.or(Some(last.began))).unwrap_or(0);
    let rest = Duration::from_micros(now.saturating_sub(ended));
    let is_healthy =
        last.is_some_and(|last| last.outcome.is_good()) && rest >= limits::SALVAGE_HEALTHY;
    if by != By::Itself || is_healthy {
        memory = Memory { attempts: 0, findings: String::new(), no_progress: false, ..memory };
    }
    let forgotten = memory.accounts.is_empty() || rest >= limits::SALVAGE_FAULT_FORGOTTEN;
    let fault = memory.fault.take().filter(|_| !forgotten);
    let fault = fault.unwrap_or_else(|| Fault { since: now, ..Fault::default() });
    let wait = Duration::from_micros(fault.due.saturating_sub(now));
    if by == By::Itself && fault.looks > 0 && !wait.is_zero() {
        return Err(Refusal::Waits(wait, fault.reason));
    }
    memory.fault = Some(fault);
    let pause = pause(memory.attempts);
    if memory.attempts >= limits::SALVAGE_ATTEMPTS_MAX {
        return Err(Refusal::Exhausted);
    } else if memory.no_progress {
        return Err(Refusal::NoProgress);
    } else if rest < pause {
        return Err(Refusal::TooSoon(pause - rest));
    }
    memory.attempts += 1;
    memory.accounts.push(Account {
        volume: volume.to_owned(),
        attempt: memory.attempts,
        reason: reason.to_owned(),
        began: now,
        ended: None,
        outcome: Outcome::Running,
        lines: Vec::new(),
        lines_more: 0,
    });
    let surplus = memory.accounts.len().saturating_sub(limits::SALVAGE_ACCOUNTS_MAX);
    memory.accounts.drain(..surplus);
    Ok(memory)
}

/// The result of a salvage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    pub outcome: Outcome,
    pub lines: Vec<String>,
    /// The unchanged findings, in a form that is equal if the findings are. `None`: something was
    /// changed, or the result tells nothing about the volume (the store was away).
    pub findings: Option<String>,
    /// The losses that the salvage would have had to accept.
    pub withheld: Option<Withheld>,
}

/// Losses that a salvage did not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Withheld {
    /// Whether some of the chunks are absent, not damaged.
    pub absent: bool,
    /// The reason, in words for users.
    pub reason: String,
}

/// Ends the running salvage.
pub(crate) fn end(mut memory: Memory, ending: Ending, now: u64) -> Memory {
    // A cancelled, interrupted or waiting salvage has not tried a repair in vain, so it does not
    // count.
    if matches!(ending.outcome, Outcome::Cancelled | Outcome::Interrupted | Outcome::Waiting) {
        memory.attempts = memory.attempts.saturating_sub(1);
    } else {
        let findings = ending.findings.unwrap_or_default();
        memory.no_progress = !findings.is_empty() && findings == memory.findings;
        memory.findings = findings;
    }
    if ending.outcome.is_good() {
        memory.fault = None;
    }
    if let (Some(withheld), Some(fault)) = (ending.withheld, &mut memory.fault) {
        let pause = look_again(fault.looks, withheld.absent);
        fault.looks = fault.looks.saturating_add(1);
        fault.due = now.saturating_add(micros(pause));
        let patient = fault.since.saturating_add(micros(limits::SALVAGE_PATIENCE));
        if !withheld.absent && now < patient {
            fault.due = patient;
        }
        fault.reason = withheld.reason;
    }
    if let Some(last) = memory.accounts.last_mut() {
        let mut lines = ending.lines;
        last.lines_more = lines.len().saturating_sub(limits::SALVAGE_LINES_MAX) as u64;
        lines.truncate(limits::SALVAGE_LINES_MAX);
        (last.ended, last.outcome, last.lines) = (Some(now), ending.outcome, lines);
    }
    memory
}

/// Returns the pause before the next look at a fault that waits.
fn look_again(looks: u32, absent: bool) -> Duration {
    match absent {
        true => limits::SALVAGE_LOOK_MIN
            .saturating_mul(1 << looks.min(20))
            .min(limits::SALVAGE_LOOK_MAX),
        false => limits::SALVAGE_LOOK_DAMAGED,
    }
}

/// Returns the least pause between the end of an attempt and the next one.
fn pause(attempts: u32) -> Duration {
    match attempts {
        0 => Duration::ZERO,
        some => limits::SALVAGE_PAUSE_MIN
            .saturating_mul(1 << (some - 1).min(20))
            .min(limits::SALVAGE_PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 24 * 3600 * SECOND;

    fn result(outcome: Outcome, findings: &str) -> Ending {
        let findings = (!findings.is_empty()).then(|| findings.to_owned());
        Ending { outcome, lines: vec!["a line".to_owned()], findings, withheld: None }
    }

    fn waiting(absent: bool) -> Ending {
        let withheld = Some(Withheld { absent, reason: "would lose".to_owned() });
        Ending { withheld, ..result(Outcome::Waiting, "") }
    }

    fn asked(memory: &Memory, now: u64) -> Result<Memory, Refusal> {
        begin(memory.clone(), By::Itself, "vm1", "damage", now)
    }

    #[test]
    fn sixteen_attempts_further_and_further_apart_and_no_more() {
        let (mut memory, mut now, mut pauses) = (Memory::default(), DAY, Vec::new());
        for attempt in 1..=limits::SALVAGE_ATTEMPTS_MAX {
            memory = asked(&memory, now).unwrap();
            assert_eq!(memory.attempts, attempt);
            memory = end(memory, result(Outcome::Failed, &attempt.to_string()), now);
            match asked(&memory, now) {
                Err(Refusal::TooSoon(pause)) => {
                    pauses.push(pause);
                    now += u64::try_from(pause.as_micros()).unwrap();
                }
                other => assert_eq!(other, Err(Refusal::Exhausted)),
            }
        }
        assert!(pauses.is_sorted() && pauses.len() == 15, "{pauses:?}");
        assert_eq!(asked(&memory, now + 100 * DAY), Err(Refusal::Exhausted), "however long ago");
        let again = begin(memory, By::Operator, "vm1", "wanted", now).unwrap();
        assert_eq!(again.attempts, 1);
        assert_eq!(again.accounts.len(), limits::SALVAGE_ACCOUNTS_MAX);
    }

    #[test]
    fn the_same_findings_again_are_no_progress() {
        let memory =
            end(asked(&Memory::default(), DAY).unwrap(), result(Outcome::Failed, "x"), DAY);
        let memory = end(asked(&memory, 2 * DAY).unwrap(), result(Outcome::Failed, "x"), 2 * DAY);
        assert_eq!(asked(&memory, 3 * DAY), Err(Refusal::NoProgress));
        let memory = begin(memory, By::Operator, "vm1", "wanted", 3 * DAY).unwrap();
        assert!(!end(memory, result(Outcome::Failed, "x"), 3 * DAY).no_progress);
    }

    #[test]
    fn a_store_that_is_away_is_not_the_volumes_fault() {
        let mut memory = Memory::default();
        for day in 1..5 {
            memory =
                end(asked(&memory, day * DAY).unwrap(), result(Outcome::Failed, ""), day * DAY);
        }
        assert!(asked(&memory, 5 * DAY).is_ok());
    }

    #[test]
    fn a_good_one_that_stayed_healthy_starts_again() {
        let healthy = u64::try_from(limits::SALVAGE_HEALTHY.as_micros()).unwrap();
        let good = end(asked(&Memory::default(), DAY).unwrap(), result(Outcome::Repaired, ""), DAY);
        assert_eq!(asked(&good, DAY + healthy).unwrap().attempts, 1);
        assert_eq!(asked(&good, DAY + healthy - SECOND).unwrap().attempts, 2);
    }

    #[test]
    fn a_process_that_dies_has_counted_and_a_cancelled_one_has_not() {
        let dead = asked(&Memory::default(), DAY).unwrap();
        let next = asked(&dead, 2 * DAY).unwrap();
        assert_eq!((next.attempts, next.accounts[0].outcome), (2, Outcome::Interrupted));
        let cancelled = end(next, result(Outcome::Cancelled, ""), 2 * DAY);
        assert_eq!(cancelled.attempts, 1);
    }

    const HOUR: u64 = 3600 * SECOND;
    const GIB: u64 = 1 << 30;

    #[test]
    fn nothing_is_given_up_by_itself_in_the_first_hour_of_a_fault_nor_more_than_a_bound_later() {
        let allowed = |by, age, size| allowance(by, DAY, DAY + age, size);
        assert_eq!(allowed(By::Itself, HOUR - 1, 20 * GIB), Allowance::NOTHING);
        let some = |bytes| Allowance { bytes, absent: false };
        assert_eq!(allowed(By::Itself, HOUR, 20 * GIB), some(20 * GIB / 100));
        assert_eq!(allowed(By::Itself, HOUR, GIB), some(64 << 20));
        assert_eq!(allowed(By::Itself, HOUR, 1000), some(100), "of a small volume a part only");
        assert_eq!(allowed(By::Operator, 2 * DAY, GIB), Allowance::NOTHING, "a plan");
        assert_eq!(allowed(By::Accepting, 0, GIB), Allowance::ALL);
    }

    #[test]
    fn a_fault_is_remembered_with_when_it_was_seen_first_until_it_is_mended() {
        let memory = end(asked(&Memory::default(), DAY).unwrap(), waiting(false), DAY + SECOND);
        assert_eq!((memory.attempts, memory.fault.as_ref().unwrap().since), (0, DAY));
        assert!(matches!(asked(&memory, DAY + HOUR - 1), Err(Refusal::Waits(..))));
        let later = asked(&memory, DAY + HOUR).unwrap();
        assert_eq!(later.fault.as_ref().unwrap().since, DAY, "however many looks");
        let waits = end(later.clone(), waiting(false), DAY + HOUR);
        assert!(matches!(asked(&waits, 2 * DAY), Err(Refusal::Waits(..))), "for a person");
        assert!(begin(waits, By::Accepting, "vm1", "wanted", DAY + HOUR + 1).is_ok());
        assert_eq!(end(later, result(Outcome::Sound, "x"), DAY + HOUR).fault, None);
    }

    #[test]
    fn what_is_absent_is_looked_at_again_soon_and_then_less_often() {
        let (mut memory, mut now) = (Memory::default(), DAY);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            memory = end(asked(&memory, now).unwrap(), waiting(true), now);
            let due = now + minutes * 60 * SECOND;
            assert!(matches!(asked(&memory, due - 1), Err(Refusal::Waits(..))), "{minutes}");
            now = due;
        }
    }

    #[test]
    fn an_account_is_bounded() {
        let lines = vec!["a line".to_owned(); limits::SALVAGE_LINES_MAX + 5];
        let ending = Ending { lines, ..result(Outcome::Repaired, "") };
        let memory = end(asked(&Memory::default(), DAY).unwrap(), ending, DAY);
        let account = memory.accounts.last().unwrap();
        assert_eq!((account.lines.len(), account.lines_more), (limits::SALVAGE_LINES_MAX, 5));
    }
}
