//! `rekindle space`: what volumes take in the store.

use super::{client, job};
use crate::arguments::{Common, Space};
use rekindle_base::units::format_size;
use rekindle_front::http::api::Job;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use serde_json::{Value, json};

/// Runs the command.
pub fn run(common: &Common, space: &Space) -> Outcome<u8> {
    let client = client(common)?;
    let begun: Job = client.post("/api/v1/space", &json!({ "volume": space.name }))?;
    let done = job::follow(&client, begun, "count of what volumes take")?;
    common.shown(&done.result, || print(&done.result));
    Ok(0)
}

fn print(found: &Value) {
    let bytes = |value: &Value| value.as_u64().unwrap_or(0);
    let mut table =
        output::table(["VOLUME", "SIZE", "USED", "ONLY ITS OWN", "SNAPSHOTS", "METADATA"]);
    for volume in found["volumes"].as_array().into_iter().flatten() {
        table.add_row([
            volume["name"].as_str().unwrap_or_default().to_owned(),
            format_size(bytes(&volume["size"])),
            format_size(bytes(&volume["used"])),
            format_size(bytes(&volume["unique"])),
            format_size(bytes(&volume["snapshots"])),
            format_size(bytes(&volume["metadata"])),
        ]);
    }
    output::rows(&table);
    let all = &found["all"];
    let (used, distinct, stored) =
        (bytes(&all["used"]), bytes(&all["distinct"]), bytes(&all["stored"]));
    let about = if found["exact"].as_bool() == Some(true) { "" } else { "about " };
    output::line(&format!(
        "\nall volumes: {} used; {about}{} after deduplication ({}), {about}{} as stored ({} by compression)",
        format_size(used),
        format_size(distinct),
        ratio(used, distinct),
        format_size(stored),
        ratio(distinct, stored),
    ));
    let past = bytes(&all["snapshots"]);
    if past > 0 {
        output::line(&format!("snapshots keep {about}{} more as stored", format_size(past)));
    }
    output::line(
        "USED counts what was written and not trimmed, as of the last commit to the store;",
    );
    output::line("ONLY ITS OWN is what the store gets back when the volume is purged,");
    output::line("SNAPSHOTS what of that only its snapshots keep.");
}

/// Formats how often the smaller fits into the larger, to a tenth.
fn ratio(large: u64, small: u64) -> String {
    match small {
        0 => "-".to_owned(),
        _ => {
            let (large, small) = (u128::from(large), u128::from(small));
            let tenths = (large * 10 + small / 2) / small;
            format!("{}.{}x", tenths / 10, tenths % 10)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ratio;

    #[test]
    fn ratios_never_divide_by_nothing() {
        assert_eq!([ratio(0, 0), ratio(30, 10), ratio(25, 10)], ["-", "3.0x", "2.5x"]);
        assert_eq!([ratio(999, 1000), ratio(94, 100), ratio(u64::MAX, 1)][..2], ["1.0x", "0.9x"]);
    }
}
