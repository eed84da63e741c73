//! `rekindle snapshot`: take, list, remove, clone.

use super::client;
use crate::arguments::{CloneVolume, Common, Named, Snapshot, Snapshotted};
use crate::client::volume_path;
use rekindle_base::units::format_size;
use rekindle_front::http::api::Volume;
use rekindle_front::uri::escape;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use rekindle_volume::VolumeSnapshot;
use serde_json::{Value, json};

/// Runs the command.
pub fn run(common: &Common, request: &Snapshot) -> Outcome {
    match request {
        Snapshot::Take(wanted) => take(common, wanted),
        Snapshot::Ls(named) => list(common, named),
        Snapshot::Rm(wanted) => remove(common, wanted),
        Snapshot::Clone(wanted) => clone(common, wanted),
    }
}

pub fn take(common: &Common, Snapshotted { name, snapshot }: &Snapshotted) -> Outcome {
    let body = json!({"name": snapshot});
    let taken: VolumeSnapshot = client(common)?.post(&volume_path(name, "/snapshots"), &body)?;
    let next = format!(
        "next: rekindle snapshot clone {} {} NEW",
        output::quoted(name),
        output::quoted(&taken.name)
    );
    common.told(&taken, &format!("volume '{name}' has the snapshot '{}'\n{next}", taken.name));
    Ok(())
}

fn list(common: &Common, Named { name }: &Named) -> Outcome {
    let snapshots: Vec<VolumeSnapshot> = client(common)?.get(&volume_path(name, "/snapshots"))?;
    common.rows(
        snapshots,
        &format!("volume '{name}' has no snapshots"),
        ["SNAPSHOT", "TAKEN", "SIZE", "STORED", "LOST"],
        |one| {
            let stored = if one.stored { "yes" } else { "not yet" }.to_owned();
            let lost = if one.lost == 0 { "-".to_owned() } else { format_size(one.lost) };
            [one.name, output::moment(one.taken), format_size(one.size), stored, lost]
        },
    );
    Ok(())
}

fn remove(common: &Common, Snapshotted { name, snapshot }: &Snapshotted) -> Outcome {
    let path = volume_path(name, &format!("/snapshots/{}", escape(snapshot)));
    let _: Value = client(common)?.delete(&path)?;
    common.told(
        &json!({"removed": snapshot, "volume": name}),
        &format!(
            "the snapshot '{snapshot}' of volume '{name}' is gone; the sweep gives its space back"
        ),
    );
    Ok(())
}

pub fn clone(common: &Common, CloneVolume { name, snapshot, new_name }: &CloneVolume) -> Outcome {
    let body = json!({"snapshot": snapshot, "name": new_name});
    let made: Volume = client(common)?.post(&volume_path(name, "/clone"), &body)?;
    let next = match made.kind.as_str() {
        "file" => format!("rekindle mount {} DIR", output::quoted(&made.name)),
        _ => format!("rekindle volume show {}", output::quoted(&made.name)),
    };
    let told = format!(
        "volume '{}' begins with the snapshot '{snapshot}' of '{name}'\nnext: {next}",
        made.name
    );
    common.told(&made, &told);
    Ok(())
}
