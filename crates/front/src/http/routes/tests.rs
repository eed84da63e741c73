//! Every route, by its table; the answers are tested in `serve/tests.rs`.

use super::*;
use crate::http::Problem;
use axum::http::header;
use axum::response::IntoResponse;
use std::collections::BTreeSet;

#[test]
fn the_document_names_every_route_and_no_other() {
    let document = serde_json::to_value(crate::http::document()).unwrap();
    let mut documented = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            documented.insert((method.to_uppercase(), path.clone()));
            assert!(operation["summary"].is_string(), "{method} {path}");
            assert!(operation["responses"]["default"]["content"].is_object(), "{method} {path}");
        }
    }
    let routes = table().into_iter().map(|(method, path, _)| (method.to_string(), path.to_owned()));
    assert_eq!(routes.collect::<BTreeSet<_>>(), documented);
}

#[test]
fn every_schema_that_is_referred_to_is_there() {
    let document = serde_json::to_value(crate::http::document()).unwrap();
    let text = document.to_string();
    let mut count = 0;
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
        count += 1;
    }
    assert!(count > 20);
    for name in ["CreateVolume", "Volume", "Status", "Job", "Problem"] {
        assert!(document["components"]["schemas"][name]["properties"].is_object(), "{name}");
    }
}

#[test]
fn kinds_of_error_become_statuses() {
    for (kind, status, retryable) in [
        (Kind::Invalid, 400, false),
        (Kind::NotFound, 404, false),
        (Kind::Exists, 409, false),
        (Kind::Conflict, 409, true),
        (Kind::Full, 507, true),
        (Kind::Unavailable, 503, true),
        (Kind::Refused, 502, false),
        (Kind::Damaged, 500, false),
    ] {
        let error = ApiError::new(kind, "words");
        assert_eq!(Problem::from(&error).retryable, retryable);
        let response = error.into_response();
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers().contains_key(header::RETRY_AFTER), kind == Kind::Unavailable);
    }
}
