//! Records of the datastore and the JSON files of a daemon's folder.

use super::report::Report;
use rekindle_terminal::output;
use serde_json::Value;

/// Decodes a JSON object of ours: a record in its envelope, or a plain file.
pub fn report(subject: &str, bytes: &[u8]) -> Report {
    match rekindle_datastore::record::decode(subject, bytes) {
        Ok(envelope) => {
            let mut report = Report::new(subject, &format!("record: {}", envelope.what));
            report.fact("format", envelope.format);
            report.shown("written by", envelope.writer);
            report.shown("written at", output::moment(envelope.written.0));
            report.fact("edition", envelope.mark.edition);
            report.shown("nonce", envelope.mark.nonce);
            facts(&mut report, &envelope.body);
            check(&mut report, &envelope.what, subject, bytes);
            report
        }
        Err(error) => plain(subject, bytes, &error.to_string()),
    }
}

/// A JSON file without an envelope (`node.json`, `endpoints.json`).
fn plain(subject: &str, bytes: &[u8], why_no_record: &str) -> Report {
    let mut report = Report::new(subject, "JSON");
    match serde_json::from_slice::<Value>(bytes) {
        Ok(value) => {
            if let Some(what) = value.get("rekindle").and_then(Value::as_str) {
                report.format = what.to_owned();
                if what != "node" {
                    report.problem(why_no_record);
                }
            }
            facts(&mut report, &value);
        }
        Err(error) => report.problem(error),
    }
    report
}

fn facts(report: &mut Report, body: &Value) {
    for (name, value) in body.as_object().into_iter().flatten() {
        // The key of all names: with it a user can tell whether the store holds a file that this
        // user has as well.
        let value = if name == "secret" { Value::from("(not shown)") } else { value.clone() };
        report.fact(name, value);
    }
}

/// Decodes the kinds that this binary knows, so that a misfit is found.
fn check(report: &mut Report, what: &str, subject: &str, bytes: &[u8]) {
    let checked = match what {
        "vault" => return check_vault(report, subject, bytes),
        "store" => {
            rekindle_datastore::record::decode_as::<rekindle_datastore::Identity>(subject, bytes)
                .map(|_| ())
        }
        "node" => rekindle_datastore::record::decode_as::<rekindle_node::record::NodeRecord>(
            subject, bytes,
        )
        .map(|_| ()),
        _ => Ok(()),
    };
    if let Err(error) = checked {
        report.problem(error);
    }
}

/// Decodes a vault, and has its kind check the part that only the kind understands.
fn check_vault(report: &mut Report, subject: &str, bytes: &[u8]) {
    match rekindle_datastore::record::decode_as::<rekindle_staging::Vault>(subject, bytes) {
        Ok((vault, _)) => {
            if let Err(error) =
                rekindle_volume::Kinds::new(rekindle_node::core::kinds()).check(&vault)
            {
                report.problem(error);
            }
        }
        Err(error) => report.problem(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_files_and_garbage() {
        let endpoints = report("endpoints.json", b"{\"pid\": 7, \"nbd\": []}");
        assert!(endpoints.problems.is_empty());
        assert_eq!(endpoints.facts.len(), 2);
        for bad in [&b""[..], b"{", b"\xff\xff", b"{\"rekindle\": \"vault\", \"format\": 1}"] {
            assert!(!report("x", bad).problems.is_empty(), "{bad:?}");
        }
    }

    #[test]
    fn a_vault_that_its_kind_refuses_is_a_problem() {
        let golden = include_str!("../../../staging/golden/vault-6.json");
        assert_eq!(report("volumes/x", golden.as_bytes()).problems, Vec::<String>::new());
        for (old, new, word) in [
            ("\"block_size\": 16384", "\"block_size\": 7", "7 bytes"),
            ("\"block\"", "\"tape\"", "tape"),
        ] {
            let problems = report("volumes/x", golden.replace(old, new).as_bytes()).problems;
            assert!(problems.iter().any(|problem| problem.contains(word)), "{word}: {problems:?}");
        }
    }

    #[test]
    fn the_secret_of_a_store_is_not_shown() {
        let mut report = Report::new("x", "store");
        facts(&mut report, &serde_json::json!({"secret": "00ff", "store": "1"}));
        assert!(!report.json().to_string().contains("00ff"));
    }
}
