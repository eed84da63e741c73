//! A segment of the log, from flash or from a slot of warm memory.

use super::report::Report;
use rekindle_log::inspect::{Entry, Inspected};
use serde_json::{Value, json};

/// Decodes a segment's bytes.
pub fn report(subject: &str, bytes: &[u8]) -> Report {
    let mut report = Report::new(subject, "log segment");
    match rekindle_log::inspect::segment(bytes) {
        Ok(found) => describe(&mut report, &found),
        Err(why) if bytes.iter().take(4096).all(|&byte| byte == 0) => {
            report.fact("state", "preallocated, never used");
            report.shown("because", why);
        }
        Err(why) => report.problem(why),
    }
    report
}

/// Decodes the record of the open segment's end.
pub fn known_end(subject: &str, bytes: &[u8]) -> Report {
    let mut report = Report::new(subject, "known end of the log");
    match rekindle_log::inspect::known_end(bytes) {
        Some(found) => {
            report.shown("segment", found.segment);
            report.shown("node", found.node);
            report.fact("number", found.number);
            report.fact("durable", found.durable);
            report.fact("changes", found.changes);
        }
        None => report.problem("neither of its two records is whole"),
    }
    report
}

fn describe(report: &mut Report, found: &Inspected) {
    report.shown("segment", found.segment);
    report.shown("node", found.node);
    report.shown("incarnation", found.incarnation);
    report.fact("epoch", found.epoch);
    report.fact("capacity", found.capacity);
    let sealed = found.sealed.map(|sealed| match sealed.successor {
        Some(next) => format!(
            "sealed at {}, {} changes; segment {next} follows",
            sealed.valid_bytes, sealed.changes
        ),
        None => format!(
            "sealed at {}, {} changes; the log was closed here",
            sealed.valid_bytes, sealed.changes
        ),
    });
    report.shown("state", sealed.unwrap_or_else(|| "open".to_owned()));
    report.fact("commits", found.batches);
    report.fact("changes", found.entries.len());
    report.shown("ends", format!("after {} bytes: {}", found.valid_bytes, found.ends_because));
    let digest: Vec<String> =
        found.digest.iter().map(|(segment, file)| format!("{segment} (file {file})")).collect();
    report.shown("digest", digest.join(", "));
    for (volume, serial) in &found.statistics {
        report.shown("volume", format!("{volume} up to serial {serial}"));
    }
    if found.sealed.is_some_and(|sealed| sealed.valid_bytes != found.valid_bytes) {
        report.problem(format!("it was sealed further on, but {}", found.ends_because));
    }
    "changes".clone_into(&mut report.entries_are);
    for entry in &found.entries {
        report.entry(row(entry));
        if !entry.payload_is_whole {
            let what = format!(
                "the payload of serial {} of volume {} at {}",
                entry.serial, entry.volume, entry.offset
            );
            report.problem(format!("{what} does not match its checksum"));
        }
    }
}

fn row(entry: &Entry) -> Vec<(&'static str, Value)> {
    let range = |name: &str| (name.to_owned(), json!(entry.position));
    let (change, position) = match entry.change {
        rekindle_log::Change::Write => range("write"),
        rekindle_log::Change::Zero => range("zero"),
        rekindle_log::Change::Trim => range("trim"),
        // A record has no range: its kind lies in the place of the position.
        rekindle_log::Change::Record => (format!("record {}", entry.position), Value::Null),
    };
    vec![
        ("offset", json!(entry.offset)),
        ("volume", json!(entry.volume.to_string())),
        ("generation", json!(entry.generation.0)),
        ("serial", json!(entry.serial.0)),
        ("change", json!(change)),
        ("joined", json!(entry.joined)),
        ("position", position),
        ("span", json!(entry.span)),
        ("whole", json!(entry.payload_is_whole)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_give_a_report() {
        assert!(report("x", &[0; 8192]).problems.is_empty());
        assert_eq!(report("x", b"RKNDLseg and then nothing").problems.len(), 1);
        assert_eq!(report("x", &[0xa5; 65536]).problems.len(), 1);
        assert!(report("x", &[]).problems.is_empty());
        assert_eq!(known_end("x", &[0; 99]).problems.len(), 1);
        let image = include_bytes!("../../../log/golden/known-end-v1.bin");
        assert!(known_end("x", image).problems.is_empty());
    }

    #[test]
    fn records_and_groups_are_shown() {
        let image = include_bytes!("../../../log/golden/segment-v5-records.bin");
        let rows = report("x", image).entries;
        let column = |name: &str| -> Vec<Value> {
            let cell = |row: &Vec<(String, Value)>| {
                row.iter().find(|(column, _)| column == name).map(|(_, value)| value.clone())
            };
            rows.iter().filter_map(cell).collect()
        };
        let changes = ["record 7", "record 7", "record 9", "write", "trim", "write"];
        assert_eq!(column("change"), changes);
        assert_eq!(column("joined"), [true, true, false, false, true, false]);
        assert_eq!(column("position")[..3], [Value::Null, Value::Null, Value::Null]);
    }
}
