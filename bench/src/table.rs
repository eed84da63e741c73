//! The table: one row a comparison, as text, as JSON, and into docs/benchmarks.md.

use crate::arguments::Arguments;
use crate::machine;
use crate::rounds::{Bench, repository, short};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write;

/// Bound that a figure should reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    Above(f64),
}

impl Wanted {
    fn is_reached_by(self, value: f64) -> bool {
        match self {
            Wanted::AtLeast(bound) => value >= bound,
            Wanted::AtMost(bound) => value <= bound,
            Wanted::Above(bound) => value > bound,
        }
    }
}

/// A comparison.
#[derive(Debug, Clone)]
pub struct Row {
    pub experiment: &'static str,
    pub what: String,
    pub ours: String,
    pub theirs: String,
    /// The figure that counts, and its unit (`x` for a ratio).
    pub value: Option<(f64, &'static str)>,
    pub wanted: Option<Wanted>,
    /// Facts that a reader must know to believe the figure.
    pub notes: Vec<String>,
    /// The larger share of one core that others used during the runs that count.
    pub others: f64,
}

impl Row {
    /// Creates a row for information.
    pub fn new(experiment: &'static str, what: impl Into<String>) -> Self {
        Self {
            experiment,
            what: what.into(),
            ours: String::new(),
            theirs: String::new(),
            value: None,
            wanted: None,
            notes: Vec::new(),
            others: 0.0,
        }
    }

    /// Creates a row for an experiment that could not be carried out.
    pub fn failed(experiment: &'static str, error: &anyhow::Error) -> Self {
        eprintln!("{experiment} failed: {error:#}");
        let text = format!("{error:#}");
        let first = text.lines().next().unwrap_or_default().chars().take(120).collect::<String>();
        Self::new(experiment, format!("FAILED: {first}"))
    }

    /// Notes the rivals that are not installed.
    pub fn skipped(self, rivals: &[&str]) -> Self {
        rivals
            .iter()
            .fold(self, |row, rival| row.note(format!("{rival}: SKIPPED, it is not installed")))
    }

    pub fn ours(mut self, text: impl Into<String>) -> Self {
        self.ours = text.into();
        self
    }

    pub fn theirs(mut self, text: impl Into<String>) -> Self {
        self.theirs = text.into();
        self
    }

    pub fn value(mut self, value: f64, unit: &'static str) -> Self {
        self.value = Some((value, unit));
        self
    }

    pub fn wanted(mut self, wanted: Wanted) -> Self {
        self.wanted = Some(wanted);
        self
    }

    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    pub fn others(mut self, share: f64) -> Self {
        self.others = self.others.max(share);
        self
    }

    fn figure(&self) -> String {
        self.value.map_or_else(String::new, |(value, unit)| with_unit(value, unit))
    }

    fn bound(&self) -> String {
        let unit = self.value.map_or("", |(_, unit)| unit);
        match self.wanted {
            Some(Wanted::AtLeast(bound)) => format!(">= {}", with_unit(bound, unit)),
            Some(Wanted::AtMost(bound)) => format!("<= {}", with_unit(bound, unit)),
            Some(Wanted::Above(bound)) => format!("> {}", with_unit(bound, unit)),
            None => String::new(),
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.value, self.wanted) {
            (Some((value, _)), Some(wanted)) if wanted.is_reached_by(value) => "yes",
            (_, Some(_)) => "**no**",
            _ => "",
        }
    }

    /// Prints the row to the terminal.
    pub fn print(&self) {
        println!(
            "{:<12} {}: {} | {} | {} {} {}",
            self.experiment,
            self.what,
            self.ours,
            self.theirs,
            self.figure(),
            self.bound(),
            self.verdict()
        );
        self.notes.iter().for_each(|note| println!("{:<12}   {note}", ""));
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "x" => format!("{value:.2}x"),
        unit => format!("{} {unit}", short(value)),
    }
}

/// Formats the table in Markdown, with the notes below it.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| experiment | what | Rekindle | against | figure | wanted | reached | others |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} | {} | {} | {:.0} % |",
            row.experiment,
            row.what,
            row.ours,
            row.theirs,
            row.figure(),
            row.bound(),
            row.verdict(),
            row.others * 100.0
        );
    }
    text.push('\n');
    for row in rows {
        for note in &row.notes {
            let _ = writeln!(text, "- `{}`, {}: {note}", row.experiment, row.what);
        }
    }
    text
}

/// Formats all rows as JSON.
pub fn json(rows: &[Row]) -> Value {
    let one = |row: &Row| {
        json!({
            "experiment": row.experiment, "what": row.what, "ours": row.ours, "theirs": row.theirs,
            "value": row.value.map(|(value, _)| value), "unit": row.value.map(|(_, unit)| unit),
            "wanted": row.bound(), "reached": row.wanted.map(|_| row.verdict() == "yes"),
            "notes": row.notes, "others": row.others,
        })
    };
    rows.iter().map(one).collect()
}

/// Formats the text between the markers of docs/benchmarks.md.
pub fn section(bench: &Bench, arguments: &Arguments, rows: &[Row]) -> String {
    format!(
        "Command: `{}`  \nMachine: {}  \nDate: {}; medians of {} rounds a side, {} s each; clients on core {}, servers on \
         {}; CPU pressure (avg10) at the end: {:.1}\n\n{}",
        arguments.command,
        machine::describe(),
        machine::today(),
        bench.rounds,
        bench.seconds,
        bench.layout.client,
        bench.layout.server,
        machine::pressure(),
        markdown(rows)
    )
}

/// Replaces the section of a suite in docs/benchmarks.md.
pub fn write(suite: &str, section: &str) -> Result<()> {
    let path = repository().join("docs/benchmarks.md");
    let old = std::fs::read_to_string(&path).context("docs/benchmarks.md")?;
    std::fs::write(&path, replace(&old, suite, section)?)?;
    println!("written: docs/benchmarks.md");
    Ok(())
}

fn replace(old: &str, suite: &str, section: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {suite} -->"), format!("<!-- /{suite} -->"));
    let missing = |mark: &str| format!("no {mark} in docs/benchmarks.md");
    let (before, rest) = old.split_once(&begin).with_context(|| missing(&begin))?;
    let (_, after) = rest.split_once(&end).with_context(|| missing(&end))?;
    Ok(format!("{before}{begin}\n{}\n{end}{after}", section.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_whether_what_was_wanted_was_reached() {
        let row = Row::new("flush", "a").value(0.9, "x").wanted(Wanted::AtLeast(0.8));
        assert_eq!(
            (row.figure(), row.bound(), row.verdict()),
            ("0.90x".into(), ">= 0.80x".into(), "yes")
        );
        assert_eq!(row.clone().wanted(Wanted::Above(0.9)).verdict(), "**no**");
        assert_eq!(row.wanted(Wanted::AtMost(0.5)).verdict(), "**no**");
        let nothing = Row::new("flush", "not measured").wanted(Wanted::AtMost(1.0));
        assert_eq!(nothing.verdict(), "**no**");
    }

    #[test]
    fn only_the_section_is_replaced() {
        let old = "intro\n<!-- block -->\nold\n<!-- /block -->\nrest\n";
        let new = replace(old, "block", "new\n").unwrap();
        assert_eq!(new, "intro\n<!-- block -->\nnew\n<!-- /block -->\nrest\n");
        assert_eq!(replace(&new, "block", "new").unwrap(), new);
        assert!(replace(old, "restart", "new").is_err());
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [12345.6, 1234.5, 12.34, 1.234].map(short).to_vec();
        assert_eq!(shown, ["12.3k", "1234", "12.3", "1.23"]);
    }
}
