//! `rekindle debug`: the inside of a live daemon, for the operator who looks for a cause.

use super::client;
use crate::arguments::{Common, Debug};
use rekindle_base::units::format_size;
use rekindle_front::uri::escape;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use serde_json::Value;

/// Runs the command.
pub fn run(common: &Common, debug: &Debug) -> Outcome {
    let client = client(common)?;
    let (word, prefix) = match debug {
        Debug::Volumes(narrow) => ("volumes", narrow.prefix.as_deref()),
        Debug::Queue(narrow) => ("queue", narrow.prefix.as_deref()),
        Debug::Log => ("log", None),
        Debug::Warm => ("warm", None),
        Debug::Locks => ("locks", None),
    };
    let query = prefix.map(|prefix| format!("?prefix={}", escape(prefix))).unwrap_or_default();
    let found: Value = client.get(&format!("/api/v1/debug/{word}{query}"))?;
    if common.json {
        output::json(&found);
        return Ok(());
    }
    match debug {
        Debug::Volumes(_) => volumes(&found),
        Debug::Queue(_) => queue(&found),
        Debug::Log => log(&found),
        Debug::Warm => warm(&found),
        Debug::Locks => locks(&found),
    }
    Ok(())
}

/// A value in a table: text as it is, nothing as `-`.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn time(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), output::time)
}

fn size(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), format_size)
}

fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Prints how many rows were left out.
fn rest(found: &Value, list: &str) {
    let shown = rows(&found[list]).count() as u64;
    let total = found["total"].as_u64().unwrap_or(shown);
    if total > shown {
        output::line(&format!(
            "... {} more: narrow it down with the beginning of a name",
            total - shown
        ));
    }
}

fn volumes(found: &Value) {
    let mut table = output::table([
        "NAME",
        "STATE",
        "SINCE",
        "SESSIONS",
        "SERIAL",
        "CHECKPOINT",
        "OVERLAY",
        "GENERATION",
        "IDLE",
        "PINNED",
        "NEXT LOOK",
        "DECISION",
    ]);
    for row in rows(&found["volumes"]) {
        let (staged, collector) = (&row["staged"], &row["collector"]);
        table.add_row([
            cell(&row["volume"]),
            cell(&row["state"]),
            time(&row["since_ms"]),
            cell(&row["sessions"]),
            cell(&staged["serial"]),
            cell(&staged["checkpoint"]),
            cell(&staged["overlay_pieces"]),
            cell(&collector["generation"]),
            time(&collector["idle_ms"]),
            cell(&collector["pinned"]),
            time(&collector["next_look_ms"]),
            cell(&collector["decision"]),
        ]);
    }
    output::rows(&table);
    rest(found, "volumes");
    let collector = &found["collector"];
    let idle = match collector["idle_ms"].as_u64() {
        Some(idle) => format!("takes what is idle for {} out of service", output::time(idle)),
        None => "is off".to_owned(),
    };
    output::line(&format!(
        "the collector {idle}: {} passes, {} went, {} were rescued by a client, {} were due at the last pass",
        cell(&collector["passes"]),
        cell(&collector["detached"]),
        cell(&collector["rescued"]),
        cell(&collector["due"]),
    ));
}

fn queue(found: &Value) {
    let destager = &found["destager"];
    let ring: Vec<String> = rows(&destager["ring"]).take(8).map(cell).collect();
    output::pairs(&[
        ("workers", cell(&destager["workers"])),
        ("ring", format!("{} wait: {}", cell(&destager["ring_length"]), ring.join(", "))),
        (
            "flash",
            format!("{} of {}", size(&destager["flash_bytes"]), size(&destager["flash_bytes_max"])),
        ),
        ("latency", format!("{} us of one operation of the store", cell(&destager["latency_us"]))),
    ]);
    let mut table = output::table([
        "NAME", "CHANGES", "BYTES", "AGE", "ETA", "SHARE", "PRESSURE", "DELAY", "WAITING",
        "IN HAND", "ERROR",
    ]);
    for row in rows(&found["volumes"]) {
        table.add_row([
            cell(&row["volume"]),
            cell(&row["changes"]),
            size(&row["bytes"]),
            time(&row["age_ms"]),
            time(&row["eta_ms"]),
            size(&row["share_bytes"]),
            format!("{}%", cell(&row["pressure_percent"])),
            time(&row["delay_ms"]),
            cell(&row["writes_waiting"]),
            cell(&row["in_hand"]),
            cell(&row["destage_error"]),
        ]);
    }
    output::rows(&table);
    rest(found, "volumes");
}

fn log(found: &Value) {
    let head = &found["head"];
    output::pairs(&[
        (
            "head",
            format!(
                "segment {}, {} of {} filled, {} of it on flash, {} volume(s)",
                cell(&head["segment"]),
                size(&head["filled"]),
                size(&head["capacity"]),
                size(&head["durable"]),
                cell(&head["volumes"]),
            ),
        ),
        (
            "appended",
            format!(
                "up to {}, committed up to {} in {} commits",
                cell(&found["appended"]),
                cell(&found["committed"]),
                cell(&found["commits"]),
            ),
        ),
        (
            "flash",
            format!("{} of {}", size(&found["flash_bytes"]), size(&found["flash_bytes_max"])),
        ),
        (
            "segments",
            format!(
                "1 head, {} live, {} dead, {} unread, {} lost",
                cell(&found["live"]),
                cell(&found["dead"]),
                cell(&found["unread"]),
                cell(&found["lost"]),
            ),
        ),
    ]);
    if let Some(why) = found["ended"].as_str() {
        output::line(&format!("it takes nothing any more: {why}"));
    }
    let mut table = output::table(["SEGMENT", "FILE", "STATE", "VOLUMES"]);
    for row in rows(&found["segments"]) {
        table.add_row(["segment", "file", "state", "volumes"].map(|key| cell(&row[key])));
    }
    output::rows(&table);
    rest(found, "segments");
}

fn warm(found: &Value) {
    output::pairs(&[
        ("memory", format!("{}, {}", cell(&found["path"]), size(&found["bytes"]))),
        (
            "slots",
            format!(
                "{} with segments, {} free, {} in all",
                cell(&found["total"]),
                cell(&found["slots_free"]),
                cell(&found["slots_all"])
            ),
        ),
    ]);
    let frames = &found["frames"];
    if !frames.is_null() {
        output::pairs(&[(
            "frames",
            format!(
                "{} when it began; {} in use, {} hits, {} misses ({} damaged), {} evicted",
                cell(&frames["began"]),
                cell(&frames["in_use"]),
                cell(&frames["hits"]),
                cell(&frames["misses"]),
                cell(&frames["damaged"]),
                cell(&frames["evictions"]),
            ),
        )]);
        let mut table = output::table(["WAYS TAKEN", "SETS, SMALL FRAMES", "SETS, LARGE FRAMES"]);
        let (small, large) = (&frames["sets_by_small_frames"], &frames["sets_by_large_frames"]);
        for (taken, (small, large)) in rows(small).zip(rows(large)).enumerate() {
            table.add_row([taken.to_string(), cell(small), cell(large)]);
        }
        output::rows(&table);
    }
    let mut table = output::table(["SLOT", "SEGMENT", "STATE"]);
    for row in rows(&found["slots"]) {
        table.add_row(["slot", "segment", "state"].map(|key| cell(&row[key])));
    }
    output::rows(&table);
    rest(found, "slots");
}

fn locks(found: &Value) {
    let mut table =
        output::table(["NAME", "STATE", "FOR", "WAITS FOR", "SINCE", "WAITING FOR IT", "CAUSE"]);
    for row in rows(&found["transitional"]) {
        table.add_row([
            cell(&row["volume"]),
            cell(&row["state"]),
            time(&row["age_ms"]),
            cell(&row["waits_for"]),
            time(&row["step_ms"]),
            cell(&row["waiting"]),
            cell(&row["cause"]),
        ]);
    }
    if table.is_empty() {
        output::line("no volume is in a transitional state");
    } else {
        output::rows(&table);
        rest(found, "transitional");
    }
    let names: Vec<String> = rows(&found["names"]).map(cell).collect();
    if !names.is_empty() {
        output::line(&format!("names that are being given or taken: {}", names.join(", ")));
    }
}
