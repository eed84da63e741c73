//! `rekindle volume rename|resize|set|versions|rollback|trash|restore|purge`.

use super::client;
use crate::arguments::{Common, Named, Purge, Rename, Resize, Restore, Rollback, Set};
use crate::client::{Client, volume_path};
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_front::http::api::Volume;
use rekindle_front::uri::escape;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use rekindle_volume::{TrashedVolume, VolumeVersion, WriteSettings};
use serde_json::{Value, json};

pub fn rename(common: &Common, request: &Rename) -> Outcome {
    let body = json!({"name": request.new_name});
    let volume: Volume = client(common)?.post(&volume_path(&request.name, "/rename"), &body)?;
    common.told(&volume, &format!("volume '{}' is called '{}' now", request.name, volume.name));
    Ok(())
}

pub fn resize(common: &Common, request: &Resize) -> Outcome {
    let body = json!({"size": request.size, "shrink": request.shrink});
    let volume: Volume = client(common)?.post(&volume_path(&request.name, "/resize"), &body)?;
    let size = format_size(volume.size);
    let anew = match volume.clients {
        // A file system sees it at once.
        _ if volume.kind == "file" => "",
        0 => "",
        _ => "; those who use it see that when they connect anew",
    };
    common.told(&volume, &format!("volume '{}' has {size} now{anew}", volume.name));
    Ok(())
}

pub fn set(common: &Common, request: &Set) -> Outcome {
    let Set { policy, ack, copies, on_missing_copy, .. } = *request;
    let body = json!(WriteSettings { policy, ack, copies, on_missing_copy });
    let volume: Volume = client(common)?.post(&volume_path(&request.name, "/settings"), &body)?;
    let told = format!(
        "the settings of volume '{}' are changed\nnext: rekindle volume show {}",
        volume.name,
        output::quoted(&volume.name)
    );
    common.told(&volume, &told);
    Ok(())
}

pub fn versions(common: &Common, named: &Named) -> Outcome {
    let versions: Vec<VolumeVersion> =
        client(common)?.get(&volume_path(&named.name, "/versions"))?;
    common.rows(
        versions,
        &format!("nothing earlier is kept of volume '{}'", named.name),
        ["VERSION", "CONTENT UNTIL", "SIZE", "KEEPS AT MOST", "LOST"],
        |one| {
            let lost = if one.lost == 0 { "-".to_owned() } else { format_size(one.lost) };
            let until = output::moment(one.until);
            [one.version, until, format_size(one.size), format_size(one.keeps), lost]
        },
    );
    Ok(())
}

pub fn rollback(common: &Common, request: &Rollback) -> Outcome {
    let body = json!({"version": request.to, "discard": request.discard});
    let volume: Volume = client(common)?.post(&volume_path(&request.name, "/rollback"), &body)?;
    let (name, to) = (&volume.name, &request.to);
    common.told(
        &volume,
        &format!(
            "volume '{name}' is as in version {to} again; what it was before is a version now"
        ),
    );
    Ok(())
}

pub fn trash(common: &Common) -> Outcome {
    let rows: Vec<TrashedVolume> = client(common)?.get("/api/v1/trash")?;
    common.rows(
        rows,
        "the trash is empty",
        ["NAME", "SIZE", "REMOVED", "KEPT UNTIL", "ID"],
        |row| {
            let (since, until) = (output::moment(row.since), output::moment(row.until));
            [row.name, format_size(row.size), since, until, row.id]
        },
    );
    Ok(())
}

/// Returns the words by which volumes in the trash can be asked for: a name that no other has, else
/// the id.
pub fn names(client: &Client) -> Vec<String> {
    let rows: Vec<TrashedVolume> = client.get("/api/v1/trash").unwrap_or_default();
    let alone = |row: &TrashedVolume| rows.iter().filter(|one| one.name == row.name).count() == 1;
    rows.iter().map(|row| if alone(row) { row.name.clone() } else { row.id.clone() }).collect()
}

/// Finds the one volume in the trash that has this id, else the one that had this name.
fn only(client: &Client, asked: &str) -> Outcome<TrashedVolume> {
    let rows: Vec<TrashedVolume> = client.get("/api/v1/trash")?;
    if let Some(row) = rows.iter().find(|row| row.id == asked) {
        return Ok(row.clone());
    }
    let named: Vec<&TrashedVolume> = rows.iter().filter(|row| row.name == asked).collect();
    match named[..] {
        [row] => Ok(row.clone()),
        [] => Err(Failure::new(format!("there is no volume '{asked}' in the trash"))
            .next("`rekindle volume trash` shows which there are")
            .kind(Kind::NotFound)),
        _ => {
            let row = |row: &&TrashedVolume| {
                format!(
                    "\n    {}  {}, removed {}",
                    row.id,
                    format_size(row.size),
                    output::moment(row.since)
                )
            };
            let rows: String = named.iter().map(row).collect();
            Err(Failure::new(format!(
                "{} volumes in the trash had the name '{asked}'",
                named.len()
            ))
            .next(format!("name one of them by its id:{rows}"))
            .kind(Kind::Conflict))
        }
    }
}

pub fn restore(common: &Common, request: &Restore) -> Outcome {
    let (path, body) = (
        format!("/api/v1/trash/{}/restore", escape(&request.name)),
        json!({"name": request.new_name}),
    );
    let volume: Volume = client(common)?.post(&path, &body)?;
    common.told(&volume, &format!("volume '{}' is back", volume.name));
    Ok(())
}

pub fn purge(common: &Common, request: &Purge) -> Outcome {
    let client = client(common)?;
    let row = only(&client, &request.name)?;
    // By its id: no other volume that had the same name may go with it.
    let _: Value = client.delete(&format!("/api/v1/trash/{}", escape(&row.id)))?;
    common.told(
        &json!({"purged": row.name, "id": row.id}),
        &format!("'{}' is gone for good; the sweep gives its space back", row.name),
    );
    Ok(())
}
