//! The output of commands: tables for users, JSON for programs, progress for terminals.

use comfy_table::{Table, presets};
use rekindle_env::real::standard_error;
use rustix::process::Pid;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a value as JSON, on lines of its own.
pub fn json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value)
        .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    line(&text);
}

/// Whether standard output has refused a line.
static IS_CUT_OFF: AtomicBool = AtomicBool::new(false);

/// Prints a line. A reader that went away (`| head`) is no failure; any other error is told once,
/// and by [`is_cut_off`].
pub fn line(text: &str) {
    let mut output = io::stdout().lock();
    let written =
        writeln!(output, "{}", escaped(text, &['\n', '\t'])).and_then(|()| output.flush());
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
        && !IS_CUT_OFF.swap(true, Ordering::Relaxed)
    {
        tell(&format!("rekindle: the answer cannot be written: {error}"));
    }
}

/// Whether an answer could not be written as a whole, as on a full disk.
pub fn is_cut_off() -> bool {
    IS_CUT_OFF.load(Ordering::Relaxed)
}

/// Prints a line for the user on standard error.
pub fn tell(text: &str) {
    standard_error::write(format!("{}\n", escaped(text, &['\n', '\t'])).as_bytes());
}

/// Escapes control characters, apart from those in `kept`: names of files and folders may be
/// another user's words, and a terminal would obey them. JSON has such characters in strings only,
/// and these mean the same when they are escaped so.
fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let obeyed = |c: char| c.is_control() && !kept.contains(&c);
    if !text.contains(obeyed) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if obeyed(c) {
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// A writer to standard error for diagnostics. As in [`tell`], failures to write are ignored.
#[derive(Debug, Clone, Copy)]
pub struct Forgiving;

impl Write for Forgiving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        standard_error::write(bytes);
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
    for row in plain(table).to_string().lines() {
        line(row.trim_end());
    }
}

/// The same table with one line for each row, whatever is in its cells.
fn plain(table: &Table) -> Table {
    let mut plain = Table::new();
    plain.load_style(presets::NOTHING);
    if let Some(head) = table.header() {
        plain.set_header(head.clone());
    }
    for row in table.row_iter() {
        plain.add_row(row.cell_iter().map(|cell| escaped(&cell.content(), &[]).into_owned()));
    }
    plain
}

/// Prints pairs of a name and a value, aligned.
pub fn pairs(pairs: &[(&str, String)]) {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in pairs {
        let pad = " ".repeat(width - name.chars().count());
        line(format!("{name}{pad}  {value}").trim_end());
    }
}

/// Whether a user watches standard error: it is a terminal, and this process is in its foreground.
/// A process in the background would write into the output of another one.
#[must_use]
pub fn is_watched() -> bool {
    io::stderr().is_terminal() && foreground().is_some_and(|here| group(None) == Some(here))
}

/// The process group that the terminal at standard error belongs to at present.
#[must_use]
pub fn foreground() -> Option<Pid> {
    // SAFETY: a plain system call.
    Pid::from_raw(unsafe { libc::tcgetpgrp(libc::STDERR_FILENO) }.max(0))
}

/// The process group of a process, or of this one. `None`: the process is gone, or the group has no
/// number here. That is so in a container, when the group's leader is outside, and for the first
/// process of a machine. `rustix` takes such a group for a bug.
#[must_use]
pub fn group(process: Option<Pid>) -> Option<Pid> {
    // SAFETY: a plain system call.
    Pid::from_raw(unsafe { libc::getpgid(Pid::as_raw(process)) }.max(0))
}

/// Makes a progress bar on standard error, hidden unless a user watches. [`show_share`] and
/// [`show_count`] draw it.
#[must_use]
pub fn progress() -> indicatif::ProgressBar {
    if is_watched() { indicatif::ProgressBar::new(0) } else { indicatif::ProgressBar::hidden() }
}

/// Draws `done` of `total`.
pub fn show_share(bar: &indicatif::ProgressBar, line: &str, done: u64, total: u64) {
    // A line wider than the terminal would leave fragments behind: `wide_msg` cuts it.
    style(bar, "[{bar:30}] {percent:>3}%  {wide_msg}");
    // Each of these calls draws at once, and a bar of length 0 looks complete: the length comes
    // first.
    bar.set_length(total);
    bar.set_position(done);
    bar.set_message(line.to_owned());
}

/// Draws only what is done: the total is not known.
pub fn show_count(bar: &indicatif::ProgressBar, line: &str) {
    style(bar, "{spinner} {wide_msg}");
    bar.set_message(line.to_owned());
    bar.tick();
}

fn style(bar: &indicatif::ProgressBar, template: &str) {
    if let Ok(style) = indicatif::ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
}

/// Quotes a path or a name for a shell, if it needs quotes.
#[must_use]
pub fn quoted(text: impl AsRef<Path>) -> String {
    let text = text.as_ref().display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Formats milliseconds for users: `250 ms`, `12 s`, `3 min`.
#[must_use]
pub fn time(milliseconds: u64) -> String {
    match milliseconds {
        0..=9_999 => format!("{milliseconds} ms"),
        10_000..=599_999 => format!("{} s", milliseconds / 1000),
        _ => format!("{} min", milliseconds / 60_000),
    }
}

/// Formats a moment (microseconds since 1970) for users, in UTC.
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

    /// A process whose group's leader is outside its namespace, as in a container.
    #[test]
    fn a_group_from_outside_is_none() {
        const INSIDE: &str = "REKINDLE_TEST_INSIDE";
        if std::env::var_os(INSIDE).is_some() {
            assert_eq!((std::process::id(), group(None)), (1, None));
            return;
        }
        assert!(group(None).is_some());
        let unshared = |arguments: &[&str]| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--pid", "--fork"]).args(arguments).env(INSIDE, "1");
            command.output().ok().map(|output| output.status.success())
        };
        if unshared(&["true"]) != Some(true) {
            line("SKIPPED: `unshare --pid` needs root, and util-linux");
            assert!(std::env::var_os("CI").is_none(), "CI has both");
            return;
        }
        let program = std::env::current_exe().unwrap();
        let name = "output::tests::a_group_from_outside_is_none";
        assert_eq!(unshared(&[program.to_str().unwrap(), "--exact", name]), Some(true));
    }

    #[test]
    fn paths_can_be_pasted_into_a_shell() {
        assert_eq!(quoted(Path::new("/srv/x-1")), "/srv/x-1");
        assert_eq!(quoted(Path::new("/srv/a b's")), r"'/srv/a b'\''s'");
        assert_eq!(quoted("$(rm x)"), "'$(rm x)'");
    }

    #[test]
    fn another_users_words_are_shown_and_not_obeyed() {
        let name = "a\u{1b}[2J\u{9b}1m\r\u{7f}\tß\n";
        assert_eq!(escaped(name, &['\n']), "a\\u001b[2J\\u009b1m\\u000d\\u007f\\u0009ß\n");
        assert!(matches!(escaped("größe", &[]), Cow::Borrowed("größe")));
        let json = serde_json::to_string_pretty(&[name]).expect("plain data");
        let back: Vec<String> = serde_json::from_str(&escaped(&json, &['\n'])).expect("JSON");
        assert_eq!(back, [name]);
        let mut table = table(["FILE"]);
        table.add_row(["a\nb\u{1b}"]);
        let shown: Vec<String> = plain(&table).lines().map(|row| row.trim().to_owned()).collect();
        assert_eq!(shown, ["FILE", "a\\u000ab\\u001b"]);
    }

    #[test]
    fn times_are_short() {
        assert_eq!(time(250), "250 ms");
        assert_eq!(time(12_400), "12 s");
        assert_eq!(time(600_000), "10 min");
        assert_eq!(moment(1_700_000_000_000_000), "2023-11-14T22:13:20Z");
    }
}
