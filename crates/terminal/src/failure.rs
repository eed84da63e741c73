//! The failure of a command: what failed, why, and what to do next.

use rekindle_base::Kind;
use serde::Serialize;
use std::fmt::Display;

/// Exit code of a request that is wrong in itself.
pub const EXIT_USAGE: u8 = 2;
/// Exit code of everything else that failed.
pub const EXIT_FAILED: u8 = 1;

/// Exit code of a daemon that another copy of its folder has replaced: starting it again as it is
/// does not help.
pub const EXIT_FENCED: u8 = 3;
/// Exit code of a daemon that was asked to stop and could not do all of it: it is not started
/// again.
pub const EXIT_UNCLEAN: u8 = 4;

/// A command that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The action that failed.
    pub error: String,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Advice: what to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The text of a [`Kind`].
    pub kind: String,
    /// Exit code of the process.
    #[serde(skip)]
    pub exit: u8,
}

/// The outcome of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Makes a failure of kind `Io` with exit code [`EXIT_FAILED`].
    pub fn new(error: impl Display) -> Self {
        Self {
            error: error.to_string(),
            cause: None,
            next: None,
            kind: Kind::Io.to_string(),
            exit: EXIT_FAILED,
        }
    }

    /// Makes a failure for a request that is wrong in itself.
    pub fn usage(error: impl Display) -> Self {
        Self { kind: Kind::Invalid.to_string(), exit: EXIT_USAGE, ..Self::new(error) }
    }

    /// Adds the reason.
    #[must_use]
    pub fn because(mut self, cause: impl Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn next(mut self, next: impl Display) -> Self {
        self.next = Some(next.to_string());
        self
    }

    /// Sets the kind.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind.to_string();
        self
    }

    /// Prints the failure to standard error, for users or, with `json`, for programs.
    pub fn print(&self, json: bool) {
        if json {
            let text = serde_json::to_string(self)
                .unwrap_or_else(|_| "{\"error\":\"unprintable\"}".to_owned());
            crate::output::tell(&text);
            return;
        }
        crate::output::tell(&format!("rekindle: {}", self.line()));
    }

    fn line(&self) -> String {
        let mut line = self.error.clone();
        if let Some(cause) = &self.cause {
            line = format!("{line}: {cause}");
        }
        if let Some(next) = &self.next {
            line = format!("{line}\n  next: {next}");
        }
        line
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_why_and_what_next() {
        let failure =
            Failure::new("cannot reach the daemon").because("nobody listens").next("rekindle up");
        assert_eq!(failure.line(), "cannot reach the daemon: nobody listens\n  next: rekindle up");
        let json = serde_json::to_value(&failure).expect("plain data");
        assert_eq!(json["next"], "rekindle up");
        assert!(json.get("exit").is_none());
    }
}
