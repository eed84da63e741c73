//! The findings in one object: facts, entries, and problems.

use rekindle_terminal::output;
use serde::Serialize;
use serde_json::Value;

/// Entries that are shown unless all are wanted.
const ENTRIES_SHOWN: usize = 20;

/// The findings in one object.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Path or key of the object.
    pub subject: String,
    /// "segment", "pack", "vault", ...
    pub format: String,
    /// Names and values, in the order of the output.
    pub facts: Vec<(String, Value)>,
    /// Noun for the entries, in the heading.
    #[serde(skip)]
    pub entries_are: String,
    pub entries: Vec<Vec<(String, Value)>>,
    /// Exact problems; empty when all is well.
    pub problems: Vec<String>,
}

impl Report {
    pub fn new(subject: &str, format: &str) -> Self {
        Self { subject: subject.to_owned(), format: format.to_owned(), ..Self::default() }
    }

    pub fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.push((name.to_owned(), value.into()));
    }

    /// Adds a fact in words.
    pub fn shown(&mut self, name: &str, value: impl std::fmt::Display) {
        self.fact(name, value.to_string());
    }

    pub fn entry(&mut self, entry: Vec<(&str, Value)>) {
        self.entries
            .push(entry.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    }

    pub fn problem(&mut self, problem: impl std::fmt::Display) {
        self.problems.push(problem.to_string());
    }

    /// Returns the report for programs.
    pub fn json(&self) -> Value {
        let object = |pairs: &[(String, Value)]| Value::Object(pairs.iter().cloned().collect());
        serde_json::json!({
            "subject": self.subject,
            "format": self.format,
            "facts": object(&self.facts),
            "entries": self.entries.iter().map(|entry| object(entry)).collect::<Vec<_>>(),
            "problems": self.problems,
        })
    }

    /// Prints the report for users.
    pub fn print(&self, all: bool) {
        output::line(&format!("{}: {}", self.subject, self.format));
        let pairs: Vec<_> =
            self.facts.iter().map(|(name, value)| (name.as_str(), plain(value))).collect();
        output::pairs(&pairs);
        if !self.entries.is_empty() {
            self.print_entries(if all { self.entries.len() } else { ENTRIES_SHOWN });
        }
        for problem in &self.problems {
            output::line(&format!("damaged: {problem}"));
        }
    }

    fn print_entries(&self, shown: usize) {
        let names = |entry: &[(String, Value)]| {
            entry.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let Some(first) = self.entries.first() else { return };
        output::line("");
        let mut table = output::table([]);
        table.set_header(names(first));
        for entry in self.entries.iter().take(shown) {
            table.add_row(entry.iter().map(|(_, value)| plain(value)).collect::<Vec<_>>());
        }
        output::rows(&table);
        if let Some(hidden) = self.entries.len().checked_sub(shown).filter(|&hidden| hidden > 0) {
            output::line(&format!("... and {hidden} more {} (--all shows them)", self.entries_are));
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}
