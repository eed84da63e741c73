//! What a command prints: tables for people, JSON for programs, progress for terminals.

use comfy_table::{Table, presets};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Prints a value as JSON, on lines of its own.
pub fn json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value)
        .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    line(&text);
}

/// Prints a line. A reader that went away (`| head`) is no failure.
pub fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Tells people something on standard error. That it cannot be written (a full disk behind it, a terminal that is gone) is
/// no failure: whoever keeps others alive must not die of what he has to say.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Standard error for diagnostics, with the same forbearance: what cannot be written is left out.
#[derive(Debug, Clone, Copy)]
pub struct Forgiving;

impl Write for Forgiving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().lock().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A table without frames, as `ls -l` would print it.
#[must_use]
pub fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    table
}

/// Prints a table.
pub fn rows(table: &Table) {
    for row in table.to_string().lines() {
        line(row.trim_end());
    }
}

/// Prints pairs of a name and a value, aligned.
pub fn pairs(pairs: &[(&str, String)]) {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in pairs {
        let pad = " ".repeat(width - name.chars().count());
        line(format!("{name}{pad}  {value}").trim_end());
    }
}

/// A progress bar on standard error, if somebody watches.
#[must_use]
pub fn progress(what: &'static str) -> indicatif::ProgressBar {
    if !io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{msg} [{bar:40}] {percent}%  {eta} left")
        .map_or_else(
            |_| indicatif::ProgressStyle::default_bar(),
            |style| style.progress_chars("=> "),
        );
    indicatif::ProgressBar::new(0).with_style(style).with_message(what)
}

/// Milliseconds for people: `250 ms`, `12 s`, `3 min`.
#[must_use]
pub fn time(milliseconds: u64) -> String {
    match milliseconds {
        0..=9_999 => format!("{milliseconds} ms"),
        10_000..=599_999 => format!("{} s", milliseconds / 1000),
        _ => format!("{} min", milliseconds / 60_000),
    }
}

/// A moment (microseconds since 1970) for people, UTC.
#[must_use]
pub fn moment(microseconds: u64) -> String {
    i64::try_from(microseconds)
        .ok()
        .and_then(|microseconds| jiff::Timestamp::from_microsecond(microseconds).ok())
        .map_or_else(|| "?".to_owned(), |moment| format!("{moment:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(time(250), "250 ms");
        assert_eq!(time(12_400), "12 s");
        assert_eq!(time(600_000), "10 min");
        assert_eq!(moment(1_700_000_000_000_000), "2023-11-14T22:13:20Z");
    }
}
