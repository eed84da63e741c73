//! Warm memory: the header, the certificates, and the segments that its slots hold.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::report::Report;
use crate::failure::Outcome;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Decodes the file of an arena without reading the slots that hold nothing.
pub fn report(subject: &str, path: &Path) -> Outcome<Report> {
    let mut report = Report::new(subject, "warm memory");
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(warm::inspect::BYTES_WANTED as u64).read_to_end(&mut head)?;
    let found = match warm::inspect::arena(&head) {
        Ok(found) => found,
        Err(why) => {
            report.problem(why);
            return Ok(report);
        }
    };
    report.shown("node", found.node);
    report.fact("slots", found.slots);
    report.fact("slot_bytes", found.slot_bytes);
    report.fact("used", found.used.len());
    "slots".clone_into(&mut report.entries_are);
    let mut bytes = vec![0; found.slot_bytes as usize];
    for (slot, certificate) in &found.used {
        let at = warm::inspect::BYTES_WANTED as u64 + *slot as u64 * u64::from(found.slot_bytes);
        let said = match file.read_exact_at(&mut bytes, at) {
            Ok(()) => match log::inspect::segment(&bytes) {
                Ok(segment) => {
                    format!("{} changes, {}", segment.entries.len(), segment.ends_because)
                }
                Err(why) => {
                    report.problem(format!("slot {slot}: {why}"));
                    why
                }
            },
            Err(error) => {
                report.problem(format!("slot {slot} cannot be read: {error}"));
                error.to_string()
            }
        };
        report.entry(vec![
            ("slot", json!(slot)),
            ("segment", json!(certificate.label.segment.0)),
            ("file", json!(certificate.label.file)),
            ("published", json!(certificate.front)),
            ("on_flash", json!(certificate.durable)),
            ("sealed", json!(certificate.foot)),
            ("holds", json!(said)),
        ]);
    }
    Ok(report)
}
