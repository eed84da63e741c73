//! What a file volume stores: rows of its tables, and records in the log. See
//! `docs/format/files.md`.

pub(crate) mod inode;
pub(crate) mod page;
pub(crate) mod record;
pub(crate) mod rows;
mod scribe;

/// Bytes that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Bad(pub(crate) &'static str);

/// Compares with a golden image, which is kept for ever.
#[cfg(test)]
fn check_golden(name: &str, encoded: &[u8]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var("REKINDLE_GOLDEN").as_deref() == Ok("write") {
        #[expect(clippy::disallowed_methods, reason = "a test writes its golden image")]
        std::fs::write(&path, encoded).unwrap();
    }
    #[expect(clippy::disallowed_methods, reason = "a test reads its golden image")]
    let golden = std::fs::read(&path).unwrap();
    assert!(golden == encoded, "{name}: volumes that exist could not be read");
}
