//! Names that people give to volumes.

/// A name that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Nothing, or white space only.
    #[error("a volume name must not be empty")]
    Empty,
    /// Longer than 255 bytes.
    #[error("a volume name has at most 255 bytes, this one has {0}")]
    TooLong(usize),
    /// `/`, `\`, a control character, or the like.
    #[error(
        "a volume name must not contain {0:?}: use letters, digits, '.', '-', '_' and other printable characters"
    )]
    Character(char),
    /// `.` or `..`, or one that starts with a dot.
    #[error("a volume name must not begin with '.'")]
    Dot,
    /// White space at an end.
    #[error("a volume name must not begin or end with white space")]
    Blank,
}

/// Checks a volume name: 1-255 bytes of UTF-8, printable, no `/` or `\`, no leading dot.
pub fn check(name: &str) -> Result<(), BadName> {
    if name.trim().is_empty() {
        return Err(BadName::Empty);
    }
    if name.len() > crate::limits::NAME_BYTES_MAX {
        return Err(BadName::TooLong(name.len()));
    }
    if let Some(bad) = name.chars().find(|&c| c.is_control() || matches!(c, '/' | '\\')) {
        return Err(BadName::Character(bad));
    }
    if name.starts_with('.') {
        return Err(BadName::Dot);
    }
    if name.trim() != name {
        return Err(BadName::Blank);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_paths_or_tricks_are_refused() {
        for bad in [
            "",
            " ",
            "a/b",
            "..",
            ".",
            ".hidden",
            "a\nb",
            "a\0b",
            "a\\b",
            " a",
            "a ",
            &"x".repeat(256),
        ] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        for good in ["vm1", "Mail store", "größe", "a..b", &"x".repeat(255)] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
    }
}
