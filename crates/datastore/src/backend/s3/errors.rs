//! What the answers of S3 servers mean.
//!
//! `object_store` keeps the status and the body of an answer in the text of its errors only, so the text is read here.

use crate::Error;
use object_store::Error as Theirs;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Replace,
    Other,
}

/// Codes (and statuses) that mean: no room. Some come as 403, some as 500.
const FULL: &[&str] = &[
    "QuotaExceeded",
    "StorageFull",
    "InsufficientStorage",
    "InsufficientCapacity",
    "code: 507",
    "no space left",
];
/// Codes (and statuses) that mean: do not try again, change the settings.
const REFUSED: &[&str] = &[
    "NoSuchBucket",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraint",
    "PermanentRedirect",
    "redirect without LOCATION",
    "EntityTooLarge",
    "InvalidBucketName",
    "NotImplemented",
    "MethodNotAllowed",
    "code: 301",
    "code: 401",
    "code: 403",
    "code: 405",
    "code: 501",
];
/// Addresses of the metadata services that the client asks when it knows no credentials.
const METADATA_SERVICES: &[&str] = &["169.254.169.254", "169.254.170.2"];

/// Our error for theirs.
pub(super) fn translate(key: &str, call: Call, error: &Theirs) -> Error {
    let text = full_text(error);
    let has = |codes: &[&str]| codes.iter().any(|code| text.contains(code));
    if has(METADATA_SERVICES) {
        return Error::Refused(format!(
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({text})"
        ));
    }
    if has(FULL) {
        return Error::Full(text);
    }
    if text.contains("NoSuchBucket") {
        // As 404 it would look like an absent object, and an absent bucket like an empty store.
        return Error::Refused(format!(
            "the bucket does not exist: make it, or correct its name or AWS_ENDPOINT_URL ({text})"
        ));
    }
    match error {
        // A 412 arrives as `Precondition` within; a 409 does not, and says only that another write was under way.
        Theirs::AlreadyExists { source, .. }
            if call == Call::Create && is_precondition(source.as_ref()) =>
        {
            Error::Exists(key.to_owned())
        }
        Theirs::Precondition { .. } | Theirs::NotModified { .. } if call == Call::Replace => {
            Error::Conflict(key.to_owned())
        }
        Theirs::NotFound { .. } => Error::NotFound(key.to_owned()),
        Theirs::PermissionDenied { .. }
        | Theirs::Unauthenticated { .. }
        | Theirs::UnknownConfigurationKey { .. } => Error::Refused(text),
        Theirs::NotSupported { .. } | Theirs::NotImplemented { .. } => Error::Refused(text),
        Theirs::InvalidPath { .. } => Error::Invalid(text),
        _ if has(REFUSED) => Error::Refused(text),
        _ => Error::Unavailable(text),
    }
}

/// Whether a range was asked for that begins at or after the end of the object.
pub(super) fn beyond_the_end(error: &Theirs) -> bool {
    let text = full_text(error);
    ["code: 416", "InvalidRange", "starting at"].iter().any(|sign| text.contains(sign))
}

fn is_precondition(source: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        source.downcast_ref::<Theirs>(),
        Some(Theirs::Precondition { .. } | Theirs::NotModified { .. })
    )
}

/// The texts of an error and its causes, each once.
fn full_text(error: &Theirs) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}
