//! Names that users give to volumes.

/// A name that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Nothing, or white space only.
    #[error("a volume name must not be empty")]
    Empty,
    /// Longer than 255 bytes.
    #[error("a volume name has at most 255 bytes, this one has {0}")]
    TooLong(usize),
    /// `/`, `\`, a control character, or (in a new name) an invisible character.
    #[error(
        "a volume name must not contain {0:?}: use letters, digits, '.', '-', '_' and other printable characters"
    )]
    Character(char),
    /// A leading dot, as in `.` and `..`.
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

/// Checks the name of a volume that is made or renamed: as [`check`], and every character must be
/// visible. A volume of an earlier version may have another name, by which it is still found.
pub fn check_new(name: &str) -> Result<(), BadName> {
    check(name)?;
    match name.chars().find(|&c| !is_seen(c)) {
        Some(bad) => Err(BadName::Character(bad)),
        None => Ok(()),
    }
}

/// Whether a character is visible and leaves its neighbours in place. The others make one name look
/// like another: characters without width, those that turn the direction of writing, separators and
/// blanks other than the space, fillers and tags.
fn is_seen(c: char) -> bool {
    !c.is_control()
        && (c == ' ' || !c.is_whitespace())
        && !matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffd}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_like_others_are_refused() {
        for bad in [
            "vm\u{200b}1",
            "vm\u{202e}1",
            "\u{2066}vm1\u{2069}",
            "\u{feff}vm1",
            "vm\u{ad}1",
            "vm\u{a0}1",
            "vm\u{2028}1",
            "vm\u{200d}1",
            "vm\u{3164}1",
            "vm\u{e0041}1",
        ] {
            assert!(matches!(check_new(bad), Err(BadName::Character(_))), "{bad:?}");
        }
        assert_eq!(check("vm\u{200b}1"), Ok(()), "one that is there already is found");
        for good in ["größe", "диск 1", "ディスク", "磁盤", "قرص", "नाम"] {
            assert_eq!(check_new(good), Ok(()), "{good:?}");
        }
    }

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
