//! The meaning of the answers of S3 servers.
//!
//! `object_store` keeps the status and the body of an answer only in the text of its errors, so
//! this module reads the text.

use crate::Error;
use object_store::Error as Theirs;

/// The kind of call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Replace,
    Other,
}

/// Codes that mean: no room. Some come with 403, some with 500.
const FULL: &[&str] = &[
    "QuotaExceeded",
    "XMinioStorageFull",
    "StorageFull",
    "InsufficientStorage",
    "InsufficientCapacity",
];
/// Codes that mean: do not try again, change the settings.
const REFUSED: &[&str] = &[
    "NoSuchBucket",
    "InvalidBucketName",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
    "EntityTooLarge",
    "NotImplemented",
    "MethodNotAllowed",
];
/// Codes of a 404 that means an absent object. Servers send other codes for an unknown bucket or
/// even an unknown user, and a proxy sends a page without any. If those counted as an absent
/// object, a store that cannot be read would look empty.
const ABSENT: &[&str] = &["NoSuchKey", "NotFound"];
/// Codes of servers that keep objects in a file system, for a key below an object or above others.
const CLASHES: &[&str] = &["ExistingObjectIsDirectory", "ObjectParentIsFile"];
/// Addresses of the metadata services that the client asks when it knows no credentials.
const METADATA_SERVICES: &[&str] = &["169.254.169.254", "169.254.170.2"];

/// Translates an error of `object_store` into ours.
pub(super) fn translate(key: &str, call: Call, error: &Theirs) -> Error {
    let text = full_text(error);
    if METADATA_SERVICES.iter().any(|address| text.contains(address)) {
        return Error::Refused(format!(
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({text})"
        ));
    }
    let answer = Answer::of(&text);
    let code = answer.code.unwrap_or("");
    if FULL.contains(&code) || answer.status == Some(507) {
        return Error::Full(answer.in_words(&text));
    }
    if code == "NoSuchBucket" {
        return Error::Refused(format!(
            "the bucket does not exist: make it, or correct its name or AWS_ENDPOINT_URL ({})",
            answer.in_words(&text)
        ));
    }
    if CLASHES.contains(&code) {
        return Error::Invalid(format!(
            "{key} cannot be written: no object can lie below another ({code})"
        ));
    }
    if REFUSED.contains(&code)
        || (answer.status == Some(404) && !code.is_empty() && !ABSENT.contains(&code))
    {
        return Error::Refused(answer.in_words(&text));
    }
    match error {
        // A 412 arrives as `Precondition` within. A 409 does not, and says only that another write
        // was under way.
        Theirs::AlreadyExists { source, .. }
            if call == Call::Create && is_precondition(source.as_ref()) =>
        {
            Error::Exists(key.to_owned())
        }
        Theirs::Precondition { .. } | Theirs::NotModified { .. } if call == Call::Replace => {
            Error::Conflict(key.to_owned())
        }
        Theirs::NotFound { .. } if ABSENT.contains(&code) && text.contains("<Error>") => {
            Error::NotFound(key.to_owned())
        }
        Theirs::NotFound { .. } => Error::Unavailable(format!(
            "something that is not the S3 server says that {key} does not exist: is a proxy, a load balancer or \
             another server at this address? ({})",
            shortened(&text)
        )),
        Theirs::PermissionDenied { .. }
        | Theirs::Unauthenticated { .. }
        | Theirs::UnknownConfigurationKey { .. }
        | Theirs::NotSupported { .. }
        | Theirs::NotImplemented { .. } => Error::Refused(answer.in_words(&text)),
        Theirs::InvalidPath { .. } => Error::Invalid(text),
        _ if text.contains("redirect without LOCATION")
            || matches!(answer.status, Some(301 | 405 | 501)) =>
        {
            Error::Refused(answer.in_words(&text))
        }
        _ => Error::Unavailable(answer.in_words(&text)),
    }
}

/// Whether the same call may succeed later.
pub(super) fn may_pass(error: &Theirs) -> bool {
    matches!(translate("", Call::Other, error), Error::Unavailable(_))
}

/// Whether the store does not know the upload in parts, any more.
pub(super) fn no_such_upload(error: &Error) -> bool {
    error.to_string().contains("NoSuchUpload")
}

/// Whether the call asked for a range that begins at or after the end of the object.
pub(super) fn beyond_the_end(error: &Theirs) -> bool {
    let text = full_text(error);
    let answer = Answer::of(&text);
    answer.status == Some(416)
        || answer.code == Some("InvalidRange")
        || text.contains("Wanted range starting at")
}

/// Whether the server ignored the range; versitygw does for an empty object.
pub(super) fn gave_the_whole(error: &Theirs) -> bool {
    full_text(error).contains("Received non-partial response")
}

fn is_precondition(source: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        source.downcast_ref::<Theirs>(),
        Some(Theirs::Precondition { .. } | Theirs::NotModified { .. })
    )
}

/// The answer of the server, as far as the text of the error has it.
#[derive(Debug, PartialEq, Eq)]
struct Answer<'a> {
    status: Option<u16>,
    code: Option<&'a str>,
    message: Option<&'a str>,
}

impl<'a> Answer<'a> {
    fn of(text: &'a str) -> Self {
        let rest = text.split_once("status code: ").map(|(_, rest)| rest);
        let status = rest.and_then(|rest| rest.get(..3)).and_then(|digits| digits.parse().ok());
        let body = rest.unwrap_or(text);
        Self { status, code: element(body, "Code"), message: element(body, "Message") }
    }

    /// Returns one line instead of a page of XML, which may hold half of the credentials.
    fn in_words(&self, text: &str) -> String {
        match (self.status, self.code) {
            (Some(status), Some(code)) => {
                format!("{code}: {} (HTTP {status})", self.message.unwrap_or("no message"))
            }
            _ => text.to_owned(),
        }
    }
}

/// Cuts a page to a length that fits into a message.
fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 300;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    rest.split_once("</").map(|(value, _)| value)
}

/// Returns the texts of an error and its causes, each once.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: &str, code: &str) -> Theirs {
        let body = format!(
            "Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: {status}: \
             <?xml?>\n<Error><Code>{code}</Code><Message>It is so.</Message></Error>"
        );
        Theirs::Generic { store: "S3", source: body.into() }
    }

    fn wrapped(status: &str, code: &str) -> Box<Theirs> {
        Box::new(answer(status, code))
    }

    #[test]
    fn a_404_is_an_absent_object_only_when_it_says_so() {
        let absent =
            |code| Theirs::NotFound { path: "k".into(), source: wrapped("404 Not Found", code) };
        assert!(matches!(translate("k", Call::Other, &absent("NoSuchKey")), Error::NotFound(_)));
        for code in ["NoSuchBucket", "XAdminUserNotFound", "NoSuchUpload"] {
            assert!(
                matches!(translate("k", Call::Other, &absent(code)), Error::Refused(_)),
                "{code}"
            );
        }
        let page = "<html><head><title>404 Not Found</title></head><body>nginx</body></html>";
        for body in ["", page, "<Code>NoSuchKey</Code>", "{\"error\": \"NotFound\"}"] {
            let source = format!("status code: 404 Not Found: {body}").into();
            let bare = Theirs::NotFound { path: "k".into(), source };
            let error = translate("k", Call::Other, &bare);
            assert!(
                matches!(&error, Error::Unavailable(text) if text.contains("proxy")),
                "{body}: {error}"
            );
        }
    }

    #[test]
    fn a_409_is_no_answer_and_a_412_is() {
        let conflict = |source| Theirs::AlreadyExists { path: "k".into(), source };
        let raced = conflict(wrapped("409 Conflict", "ConditionalRequestConflict"));
        assert!(matches!(translate("k", Call::Create, &raced), Error::Unavailable(_)));
        assert!(matches!(translate("k", Call::Replace, &raced), Error::Unavailable(_)));
        let source = wrapped("412 Precondition Failed", "PreconditionFailed");
        let exists = conflict(Box::new(Theirs::Precondition { path: "k".into(), source }));
        assert!(matches!(translate("k", Call::Create, &exists), Error::Exists(_)));
        let source = wrapped("412 Precondition Failed", "PreconditionFailed");
        let changed = Theirs::Precondition { path: "k".into(), source };
        assert!(matches!(translate("k", Call::Replace, &changed), Error::Conflict(_)));
    }

    #[test]
    fn other_answers_by_their_codes() {
        for (status, code, kind) in [
            ("503 Service Unavailable", "SlowDown", rekindle_base::Kind::Unavailable),
            ("500 Internal Server Error", "InternalError", rekindle_base::Kind::Unavailable),
            ("400 Bad Request", "RequestTimeout", rekindle_base::Kind::Unavailable),
            ("507 Insufficient Storage", "XMinioStorageFull", rekindle_base::Kind::Full),
            ("403 Forbidden", "QuotaExceeded", rekindle_base::Kind::Full),
            ("400 Bad Request", "ExpiredToken", rekindle_base::Kind::Refused),
            ("400 Bad Request", "AuthorizationHeaderMalformed", rekindle_base::Kind::Refused),
            ("501 Not Implemented", "NotImplemented", rekindle_base::Kind::Refused),
        ] {
            let error = translate("k", Call::Other, &answer(status, code));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(&format!("{code}: It is so.")), "{error}");
        }
    }
}
