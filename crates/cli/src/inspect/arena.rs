//! Warm memory: the header, the certificates, the segments in its slots, and its block frames.

use super::report::Report;
use rekindle_terminal::failure::Outcome;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Decodes the file of an arena without reading the slots that hold nothing.
pub fn report(subject: &str, path: &Path) -> Outcome<Report> {
    let mut report = Report::new(subject, "warm memory");
    let mut file = super::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(rekindle_warm::inspect::BYTES_WANTED as u64).read_to_end(&mut head)?;
    let found = match rekindle_warm::inspect::arena(&head) {
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
    frames(&mut report, &file, &head);
    "slots".clone_into(&mut report.entries_are);
    let mut bytes = vec![0; found.slot_bytes as usize];
    for (slot, certificate) in &found.used {
        let at = rekindle_warm::inspect::BYTES_WANTED as u64
            + *slot as u64 * u64::from(found.slot_bytes);
        let said = match file.read_exact_at(&mut bytes, at) {
            Ok(()) => match rekindle_log::inspect::segment(&bytes) {
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

/// Reports the frames part. Damage there costs a cold start of that part, nothing else; it is
/// reported all the same.
fn frames(report: &mut Report, file: &File, head: &[u8]) {
    let part = match rekindle_warm::inspect::frames(head) {
        Ok(Some(part)) => part,
        Ok(None) => return report.fact("frames", 0),
        Err(why) => return report.problem(why),
    };
    // Read whole: set by set would be a read for every frame, and the part is at most a share of
    // the host's memory.
    let mut bytes = Vec::new();
    let length = file.metadata().map_or(0, |file| file.len()).saturating_sub(part.start);
    bytes.resize(usize::try_from(length.min(part.bytes)).unwrap_or(0), 0);
    if let Err(error) = file.read_exact_at(&mut bytes, part.start) {
        return report.problem(format!("the frames cannot be read: {error}"));
    }
    let found = part.count(&bytes);
    report.fact("frames", found.frames.iter().sum::<u64>());
    report.fact("frames_bytes", found.bytes);
    report.fact("frame_sets", part.sets);
    if found.damaged > 0 {
        report.problem(format!("{} frames are damaged: they will not be used", found.damaged));
    }
}
