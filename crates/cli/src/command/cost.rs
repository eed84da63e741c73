//! `rekindle cost`: what the store will charge.

use super::client;
use crate::arguments::Common;
use rekindle_base::units::format_size;
use rekindle_front::http::api::{Status, StoreInfo, SweepStatus};
use rekindle_node::prices::Prices;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

const DAY_MS: u64 = 24 * 3600 * 1000;
/// A shorter time tells little about a day.
const TELLING_MS: u64 = 3600 * 1000;
/// Days of the month for which stored bytes are charged.
const MONTH_DAYS: f64 = 30.0;
const GB: f64 = 1e9;

/// The requests for one part of the store.
#[derive(Debug, Default, PartialEq, Serialize)]
struct PartCost {
    part: String,
    /// Requests that write or list, since the start.
    writes: u64,
    /// Requests that read.
    reads: u64,
    /// Requests that delete, which are free.
    deletes: u64,
    /// The cost of a day like the time since the start.
    cost_per_day: f64,
}

/// The costs of a day.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Bill {
    counted_ms: u64,
    parts: Vec<PartCost>,
    received_bytes: u64,
    received_per_day: f64,
    /// Length of the packs, as of the last sweep; absent before the first one.
    stored_bytes: Option<u64>,
    stored_per_day: Option<f64>,
    total_per_day: f64,
    prices: BTreeMap<&'static str, String>,
}

/// Runs the command.
pub fn run(common: &Common) -> Outcome<u8> {
    let client = client(common)?;
    let store: StoreInfo = client.get("/api/v1/store")?;
    let status: Status = client.get("/api/v1/status")?;
    let sweep: SweepStatus = client.get("/api/v1/sweep")?;
    let stored = sweep.finished.and_then(|_| sweep.last["bytes_total"].as_u64());
    let Some(bill) = bill(&store.detail, status.uptime_ms, stored) else {
        return Err(Failure::new("the daemon does not count its requests by part: upgrade it"));
    };
    common.shown(&bill, || print(&bill, &store.url));
    Ok(0)
}

/// Adds up what the counters of a daemon cost; `None` when it does not give them.
fn bill(detail: &Value, counted_ms: u64, stored_bytes: Option<u64>) -> Option<Bill> {
    let prices: Prices = serde_json::from_value(detail["prices"].clone()).ok()?;
    let a_day = DAY_MS as f64 / counted_ms.max(1) as f64;
    let mut parts = Vec::new();
    for (part, calls) in detail["requests"].as_object()? {
        let count =
            |names: &[&str]| -> u64 { names.iter().filter_map(|name| calls[*name].as_u64()).sum() };
        let (writes, reads) =
            (count(&["put", "create", "replace", "list"]), count(&["get", "get_range"]));
        let cost =
            (writes as f64 * prices.write.units() + reads as f64 * prices.read.units()) / 1e3;
        parts.push(PartCost {
            part: part.clone(),
            writes,
            reads,
            deletes: count(&["delete"]),
            cost_per_day: cost * a_day,
        });
    }
    parts.sort_by(|one, other| other.cost_per_day.total_cmp(&one.cost_per_day));
    let received = |call: &str| detail["calls"][call]["bytes"].as_u64().unwrap_or(0);
    let received_bytes = received("get") + received("get_range");
    let received_per_day = received_bytes as f64 / GB * prices.received.units() * a_day;
    let stored_per_day =
        stored_bytes.map(|bytes| bytes as f64 / GB * prices.stored.units() / MONTH_DAYS);
    let requests: f64 = parts.iter().map(|part| part.cost_per_day).sum();
    Some(Bill {
        counted_ms,
        parts,
        received_bytes,
        received_per_day,
        stored_bytes,
        stored_per_day,
        total_per_day: requests + received_per_day + stored_per_day.unwrap_or(0.0),
        prices: [
            ("write", prices.write),
            ("read", prices.read),
            ("stored", prices.stored),
            ("received", prices.received),
        ]
        .map(|(name, price)| (name, price.to_string()))
        .into(),
    })
}

fn print(bill: &Bill, url: &str) {
    let mut table = output::table(["REQUESTS FOR", "WRITE, LIST", "READ", "DELETE", "COST A DAY"]);
    for part in &bill.parts {
        table.add_row([
            part.part.clone(),
            part.writes.to_string(),
            part.reads.to_string(),
            part.deletes.to_string(),
            money(part.cost_per_day),
        ]);
    }
    output::rows(&table);
    let stored = match (bill.stored_bytes, bill.stored_per_day) {
        (Some(bytes), Some(cost)) => {
            format!("{} as of the last sweep: {} a day", format_size(bytes), money(cost))
        }
        _ => "not known before the first sweep: rekindle sweep run".to_owned(),
    };
    let price = |name: &str| bill.prices.get(name).cloned().unwrap_or_default();
    output::line("");
    output::pairs(&[
        ("counted over", output::time(bill.counted_ms)),
        ("stored", stored),
        (
            "received",
            format!("{}: {} a day", format_size(bill.received_bytes), money(bill.received_per_day)),
        ),
        ("in all", format!("{} a day", money(bill.total_per_day))),
        (
            "prices",
            format!("{} for 1,000 writes, {} for 1,000 reads,", price("write"), price("read")),
        ),
        (
            "",
            format!(
                "{} for a GB stored for a month, {} for a GB received",
                price("stored"),
                price("received")
            ),
        ),
    ]);
    if bill.counted_ms < TELLING_MS {
        output::line("so short a time says little about a day");
    }
    if url.starts_with("file:") {
        output::line("the store is a folder, which charges nothing: this is what a bucket would");
    }
}

/// Formats an amount of money: small amounts with more places.
fn money(amount: f64) -> String {
    if amount >= 1.0 || amount == 0.0 { format!("{amount:.2}") } else { format!("{amount:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_day_costs_what_its_requests_and_bytes_do() {
        let detail = json!({
            "requests": { "data": { "put": 900, "list": 100, "get_range": 10_000, "delete": 7 }, "nodes": {} },
            "calls": { "get_range": { "bytes": 2_000_000_000_u64 }, "put": { "bytes": 5 } },
            "prices": { "write": 5_000_000, "read": 400_000, "stored": 23_000_000, "received": 90_000_000 },
        });
        let bill = bill(&detail, DAY_MS / 2, Some(300_000_000_000)).expect("all is there");
        let data = &bill.parts[0];
        assert_eq!((data.writes, data.reads, data.deletes), (1000, 10_000, 7));
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(data.cost_per_day, 2.0 * (0.005 + 10.0 * 0.0004));
        near(bill.received_per_day, 2.0 * 2.0 * 0.09);
        near(bill.stored_per_day.expect("known"), 300.0 * 0.023 / 30.0);
        near(bill.total_per_day, 0.018 + 0.36 + 0.23);
        assert_eq!(money(bill.total_per_day), "0.6080");
    }

    #[test]
    fn a_daemon_that_does_not_count_by_part_is_told_apart() {
        assert_eq!(bill(&json!({ "calls": {} }), 5, None), None);
    }
}
