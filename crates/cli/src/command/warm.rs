//! `rekindle warm`: the memory that outlives the daemon.

mod orphans;

use super::client;
use crate::arguments::{Common, Warm};
use rekindle_base::units::format_size;
use rekindle_front::http::api::{WarmDropped, WarmFrames, WarmMisses, WarmStatus};
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;

/// Returns the note of `up` on warm memory that belongs to no folder any more.
pub fn orphans() -> Option<String> {
    orphans::note()
}

/// Runs the command.
pub fn run(common: &Common, warm: &Warm) -> Outcome<u8> {
    match warm {
        Warm::Ls => return orphans::list(common),
        Warm::Drop { orphans: true } => return orphans::drop(common),
        Warm::Show => {
            let status: WarmStatus = client(common)?.get("/api/v1/warm")?;
            common.shown(&status, || show(&status));
        }
        Warm::Drop { orphans: false } => {
            let dropped: WarmDropped = client(common)?.delete("/api/v1/warm/frames")?;
            common.told(
                &dropped,
                &format!(
                    "{} frames dropped; the segments of the log are untouched",
                    dropped.frames
                ),
            );
        }
    }
    Ok(0)
}

fn show(status: &WarmStatus) {
    let nowhere = "none: nothing outlives the process; name a file with --warm";
    let (slots, slots_used) = (status.slots, status.slots_used);
    output::pairs(&[
        ("memory", status.path.clone().unwrap_or_else(|| nowhere.to_owned())),
        ("budget", format_size(status.budget_bytes)),
        ("takes", format_size(status.bytes)),
        ("slots", format!("{slots_used} of {slots} used, {} each", format_size(status.slot_bytes))),
        ("segments", format!("{} found here at the start", status.segments_kept)),
    ]);
    if status.removed {
        output::pairs(&[("removed", "its file is gone: the next start is cold".to_owned())]);
    }
    match &status.frames {
        Some(frames) => show_frames(frames),
        None => output::pairs(&[("frames", "off".to_owned())]),
    }
}

fn show_frames(frames: &WarmFrames) {
    let missed = missed(&frames.misses);
    output::pairs(&[
        (
            "frames",
            format!(
                "{} of {} used ({} of {} large), {} in {}",
                frames.frames,
                frames.frames_max,
                frames.frames_large,
                frames.frames_large_max,
                format_size(frames.bytes),
                format_size(frames.bytes_max)
            ),
        ),
        ("began", frames.began.clone()),
        ("hits", format!("{} ({})", frames.hits, rate(frames.hits, missed))),
        ("misses", causes(&frames.misses)),
        ("verified", format!("{} frames of an earlier process", frames.verifications)),
        ("evictions", frames.evictions.to_string()),
    ]);
}

/// Counts the misses of all causes.
pub fn missed(misses: &WarmMisses) -> u64 {
    misses.absent + misses.evicted + misses.damaged + misses.cold + misses.other_layout
}

/// Describes misses by cause.
pub fn causes(misses: &WarmMisses) -> String {
    format!(
        "{}: {} never there, {} evicted, {} damaged, {} cold, {} of another layout",
        missed(misses),
        misses.absent,
        misses.evicted,
        misses.damaged,
        misses.cold,
        misses.other_layout
    )
}

/// Formats the share of hits, to a tenth of a percent.
pub fn rate(hits: u64, misses: u64) -> String {
    match hits + misses {
        0 => "-".to_owned(),
        all => {
            let permille = u128::from(hits) * 1000 / u128::from(all);
            format!("{}.{} %", permille / 10, permille % 10)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn rates_are_exact_and_never_divide_by_nothing() {
        assert_eq!(
            [(0, 0), (0, 5), (1, 2), (999, 1)].map(|(hits, misses)| rate(hits, misses)),
            ["-", "0.0 %", "33.3 %", "99.9 %"]
        );
        assert_eq!(rate(u64::MAX / 2, 1), "99.9 %");
    }
}
