//! The check that keeps web pages out. A browser on this machine can be made to call a loopback
//! port by any page it shows: by a name that suddenly resolves to 127.0.0.1 (DNS rebinding), or by
//! a plain cross-site form. Both betray themselves in headers.

use super::api::ApiError;
use axum::http::{HeaderMap, Method, header};
use rekindle_base::Kind;
use std::net::IpAddr;

/// The requests that a listener answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// A Unix socket: the file system's permissions have decided.
    Unix,
    /// A loopback port: only requests that name this machine.
    Loopback,
    /// A port that other machines reach, by the operator's wish. A Host header with an address
    /// cannot come from DNS rebinding.
    Remote,
}

impl Guard {
    pub(super) fn check(self, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        if self == Guard::Unix {
            return Ok(());
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        if !self.is_ours(host_name(host)) {
            let message = format!(
                "the Host header '{host}' does not name this machine by address: use 127.0.0.1, [::1] or localhost"
            );
            return Err(ApiError::new(Kind::Invalid, message));
        }
        if method.is_safe() {
            return Ok(());
        }
        // Any web page can send a form, or a body of plain text, without a preflight request; it
        // cannot send JSON.
        if (has_body(headers) || headers.contains_key(header::CONTENT_TYPE)) && !is_json(headers) {
            let message = "a request with a body must say Content-Type: application/json";
            return Err(ApiError::new(Kind::Invalid, message));
        }
        let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("null"));
        match origin {
            Some(origin)
                if origin.split_once("://").is_none_or(|(_, authority)| authority != host) =>
            {
                let message = format!("a page of '{origin}' must not change anything here");
                Err(ApiError::new(Kind::Invalid, message))
            }
            _ => Ok(()),
        }
    }

    fn is_ours(self, name: &str) -> bool {
        match name.parse::<IpAddr>() {
            Ok(address) => self == Guard::Remote || address.is_loopback(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    length || headers.contains_key(header::TRANSFER_ENCODING)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Returns the host without its port and brackets.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(name, _)| name);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_names_of_this_machine_pass() {
        for host in
            ["localhost", "LOCALHOST:7070", "127.0.0.1:7070", "127.1.2.3", "[::1]:7070", "[::1]"]
        {
            assert_eq!(Guard::Loopback.check(&Method::GET, &headers(host, None)), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7070",
            "localhost.evil.example",
            "192.168.1.1",
            "[",
            "",
            "::1",
        ] {
            assert!(Guard::Loopback.check(&Method::GET, &headers(host, None)).is_err(), "{host}");
        }
        assert!(Guard::Loopback.check(&Method::GET, &HeaderMap::new()).is_err());
        assert_eq!(Guard::Unix.check(&Method::GET, &HeaderMap::new()), Ok(()));
    }

    #[test]
    fn a_port_open_to_others_is_reached_by_address() {
        assert_eq!(Guard::Remote.check(&Method::GET, &headers("192.168.1.1:7070", None)), Ok(()));
        assert!(Guard::Remote.check(&Method::GET, &headers("evil.example:7070", None)).is_err());
    }

    #[test]
    fn a_body_is_json_and_says_so() {
        let with = |kind: Option<&str>, length: &str| {
            let mut headers = headers("127.0.0.1:7070", None);
            headers.insert(header::CONTENT_LENGTH, length.parse().unwrap());
            if let Some(kind) = kind {
                headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            }
            headers
        };
        let check = |headers| Guard::Loopback.check(&Method::POST, &headers);
        for kind in [
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data; boundary=application/json"),
            Some("application/jsonx"),
            Some(""),
            None,
        ] {
            let error = check(with(kind, "12")).unwrap_err();
            assert!(error.message.contains("application/json"), "{kind:?}");
        }
        assert_eq!(check(with(Some("application/json"), "12")), Ok(()));
        assert_eq!(check(with(Some("Application/JSON; charset=utf-8"), "12")), Ok(()));
        assert_eq!(check(with(None, "0")), Ok(()), "nothing needs no kind");
        assert!(check(with(Some("text/plain"), "0")).is_err(), "a form without fields");
        let mut chunked = headers("127.0.0.1:7070", None);
        chunked.insert(header::TRANSFER_ENCODING, "chunked".parse().unwrap());
        assert!(check(chunked).is_err());
    }

    #[test]
    fn a_foreign_page_changes_nothing() {
        let foreign = headers("127.0.0.1:7070", Some("http://evil.example"));
        assert!(Guard::Loopback.check(&Method::POST, &foreign).is_err());
        assert!(
            Guard::Loopback.check(&Method::DELETE, &headers("localhost", Some("null"))).is_err()
        );
        let own = headers("127.0.0.1:7070", Some("http://127.0.0.1:7070"));
        assert_eq!(Guard::Loopback.check(&Method::POST, &own), Ok(()));
    }
}
