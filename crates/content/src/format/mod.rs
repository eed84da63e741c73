//! The formats of this crate, one file a record. Decoders are total: any bytes give a value or an
//! error.

pub mod blob;
pub mod bundle;
pub mod counts;
pub mod footer;
pub mod moved;
pub mod node;
pub mod pack;
pub mod parity;
pub mod tally;

/// Bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// Not this format, or damaged.
    #[error("the {what} is damaged: {reason}")]
    Damaged {
        /// Name of the record.
        what: &'static str,
        /// The defect.
        reason: String,
    },
    /// Of a newer version.
    #[error(
        "the {what} has format version {found}, this binary knows up to {known}: upgrade rekindle"
    )]
    Newer {
        /// Name of the record.
        what: &'static str,
        /// The version of the record.
        found: u16,
        /// The newest version that this binary knows.
        known: u16,
    },
}

pub(crate) fn damaged(what: &'static str, reason: impl Into<String>) -> Bad {
    Bad::Damaged { what, reason: reason.into() }
}

/// Compares `encoded` with the golden image `name`, which is kept for ever; with
/// `REKINDLE_GOLDEN=write` writes it.
#[cfg(test)]
pub(crate) fn check_golden(name: &str, encoded: &[u8]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var("REKINDLE_GOLDEN").as_deref() == Ok("write") {
        #[expect(clippy::disallowed_methods, reason = "a test writes its golden image")]
        std::fs::write(&path, encoded).unwrap();
    }
    #[expect(clippy::disallowed_methods, reason = "a test reads its golden image")]
    let golden = std::fs::read(&path).unwrap();
    assert!(
        golden == encoded,
        "{name}: the encoding has changed, stores that exist could not be read"
    );
}
