//! `rekindle volume`: make, list, show, remove, drain, move, history, pin.

use super::{client, create, job, kept};
use crate::arguments::{Common, Create, Move, Named, Remove, Volume as Request};
use crate::client::volume_path;
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_front::http::api::{Event, Job, Volume};
use rekindle_front::uri;
use rekindle_staging::Policy;
use rekindle_supervise::endpoints;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use serde_json::{Value, json};
use std::path::Path;

/// Runs the command.
pub fn run(common: &Common, request: &Request) -> Outcome {
    match request {
        Request::Create(create) => make(common, create),
        Request::Ls => list(common),
        Request::Show(named) => show(common, named),
        Request::Rm(remove) => rm(common, remove),
        Request::Trash => kept::trash(common),
        Request::Restore(restore) => kept::restore(common, restore),
        Request::Purge(named) => kept::purge(common, named),
        Request::Rename(rename) => kept::rename(common, rename),
        Request::Resize(resize) => kept::resize(common, resize),
        Request::Set(set) => kept::set(common, set),
        Request::Versions(named) => kept::versions(common, named),
        Request::Rollback(rollback) => kept::rollback(common, rollback),
        Request::Import(import) => crate::transfer::import(common, import),
        Request::Export(export) => crate::transfer::export(common, export),
        Request::Drain(named) => drain(common, named),
        Request::Move(wanted) => move_to(common, wanted),
        Request::History(named) => history(common, named),
        Request::Pin(named) => pin(common, named, true),
        Request::Unpin(named) => pin(common, named, false),
    }
}

fn word(value: impl serde::Serialize) -> String {
    json!(value).as_str().unwrap_or_default().to_owned()
}

fn make(common: &Common, wanted: &Create) -> Outcome {
    create::agree(wanted.writes.policy, wanted.writes.ack)?;
    let client = client(common)?;
    let made = client.post("/api/v1/volumes", &create::request(wanted))?;
    let volume = seen_from(client.dir(), made);
    if common.json {
        output::json(&volume);
        return Ok(());
    }
    output::line(&format!("volume '{}' of {} is there", volume.name, format_size(volume.size)));
    if let Some(why) = &volume.downgrade {
        output::line(&format!("  {why}"));
    }
    for uri in &volume.uris {
        output::line(&format!("  {uri}"));
    }
    Ok(())
}

fn list(common: &Common) -> Outcome {
    let client = client(common)?;
    let volumes: Vec<Volume> = client.get("/api/v1/volumes")?;
    let volumes: Vec<Volume> =
        volumes.into_iter().map(|volume| seen_from(client.dir(), volume)).collect();
    if common.json {
        output::json(&volumes);
    } else if volumes.is_empty() {
        output::line("there are no volumes: `rekindle volume create vm1 --size 20G` makes one");
    } else {
        print_list(&volumes);
    }
    Ok(())
}

/// Prints a table of volumes.
pub fn print_list(volumes: &[Volume]) {
    let mut table = output::table([
        "NAME", "KIND", "SIZE", "POLICY", "ACK", "STATE", "CLIENTS", "BACKLOG", "AGE",
    ]);
    for volume in volumes {
        let backlog = volume.backlog.clone().unwrap_or_default();
        table.add_row([
            volume.name.clone(),
            volume.kind.clone(),
            format_size(volume.size),
            policy(volume),
            acknowledged(volume).unwrap_or_else(|| "-".to_owned()),
            format!("{}{}", volume.state, mark(volume)),
            volume.clients.to_string(),
            format_size(backlog.bytes),
            if backlog.changes > 0 { output::time(backlog.age_ms) } else { "-".to_owned() },
        ]);
    }
    output::rows(&table);
}

/// Returns the policy, with the copies that a write waits for: `back+1`.
fn policy(volume: &Volume) -> String {
    let copies = (volume.copies > 0).then(|| format!("+{}", volume.copies));
    word(volume.policy) + &copies.unwrap_or_default()
}

/// Returns what acknowledges a write, for the policy that leaves the choice.
fn acknowledged(volume: &Volume) -> Option<String> {
    (volume.policy == Policy::Back).then(|| word(volume.ack))
}

/// Returns the mark of a volume that is not whole.
fn mark(volume: &Volume) -> &'static str {
    match (&volume.unreadable, volume.lost_bytes) {
        (Some(_), _) => ", not all readable",
        (None, 1..) => ", bytes given up",
        (None, 0) => "",
    }
}

/// Shows one volume.
pub fn show(common: &Common, named: &Named) -> Outcome {
    let client = client(common)?;
    let volume = seen_from(client.dir(), client.get(&volume_path(&named.name, ""))?);
    if common.json {
        output::json(&volume);
        return Ok(());
    }
    let reason = volume.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let ack = acknowledged(&volume).map(|ack| format!(", ack {ack}")).unwrap_or_default();
    let mut pairs = vec![
        ("name", volume.name.clone()),
        ("id", volume.id.clone()),
        ("size", format!("{} ({} bytes)", format_size(volume.size), volume.size)),
        ("kind", kind(&volume)),
        ("policy", format!("{}{ack}", policy(&volume))),
        ("state", format!("{}{reason}", volume.state)),
        ("created", output::moment(volume.created)),
        ("owner", owner(&volume)),
        ("clients", volume.clients.to_string()),
        ("pinned", if volume.pinned { "yes: it stays in service" } else { "no" }.to_owned()),
        ("checkpoint", format!("{} (generation {})", volume.checkpoint, volume.generation)),
    ];
    pairs.extend(volume.downgrade.iter().map(|why| ("ack", why.clone())));
    if volume.lost_bytes > 0 {
        let lost = format_size(volume.lost_bytes);
        let till = "reads of them are errors until they are written again";
        pairs.push(("given up", format!("{lost}: {till}")));
    }
    pairs.extend(backlog(&volume));
    let protocol = if volume.kind == "file" { "nfs" } else { "nbd" };
    pairs.extend(volume.uris.iter().map(|uri| (protocol, uri.clone())));
    if protocol == "nfs" {
        let found = endpoints::read(client.dir()).map(|found| found.nfs).unwrap_or_default();
        let places = found.iter().filter_map(|place| place.parse().ok());
        for place in places {
            pairs.push(("mount", uri::nfs_mount(&place, &volume.name, "DIR")));
            pairs.push(("or", uri::nfs4_mount(&place, &volume.name, "DIR")));
        }
    }
    output::pairs(&pairs);
    Ok(())
}

/// Describes the kind of a volume, with the fields that only the kind understands.
fn kind(volume: &Volume) -> String {
    let field = |(name, value): (&String, &Value)| match value.as_u64() {
        Some(bytes) if name.ends_with("_size") => format!(", {name} {}", format_size(bytes)),
        _ => format!(", {name} {value}"),
    };
    volume.body.iter().map(field).fold(volume.kind.clone(), |told, field| told + &field)
}

fn owner(volume: &Volume) -> String {
    match (&volume.owner, &volume.owner_host) {
        (None, _) => "none yet".to_owned(),
        (Some(node), None) => node.clone(),
        (Some(node), Some(host)) => format!("{node}, at the host {host}"),
    }
}

/// Replaces the addresses of a daemon in a guest, which are the guest's, by the sockets here that
/// lead to them.
fn seen_from(dir: &Path, mut volume: Volume) -> Volume {
    let is_served = !volume.uris.is_empty();
    let is_disk = volume.kind != "file";
    if let Some(here) = endpoints::read(dir).filter(|found| found.guest && is_served && is_disk) {
        let places = here.nbd.iter().filter_map(|place| place.parse().ok());
        volume.uris = places.map(|place| uri::nbd(&place, &volume.name)).collect();
    }
    volume
}

/// Describes the backlog of a volume in service.
fn backlog(volume: &Volume) -> Vec<(&'static str, String)> {
    let Some(backlog) = &volume.backlog else { return Vec::new() };
    let mut pairs = Vec::new();
    if backlog.changes == 0 {
        pairs.push(("backlog", "none".to_owned()));
    } else {
        let eta =
            backlog.eta_ms.map(|eta| format!(", in the store in about {}", output::time(eta)));
        let late = if backlog.late { ", late" } else { "" };
        let (bytes, age) = (format_size(backlog.bytes), output::time(backlog.age_ms));
        let eta = eta.unwrap_or_default();
        pairs.push((
            "backlog",
            format!("{bytes} in {} changes, {age} old{late}{eta}", backlog.changes),
        ));
    }
    if backlog.delay_ms > 0 && backlog.stalled.is_none() {
        pairs.push((
            "delayed",
            format!("writes wait {} (flow control)", output::time(backlog.delay_ms)),
        ));
    }
    pairs.extend(backlog.stalled.iter().map(|reason| ("stalled", reason.clone())));
    pairs.extend(backlog.destage_error.iter().map(|error| ("store", error.clone())));
    pairs
}

fn rm(common: &Common, remove: &Remove) -> Outcome {
    let how = format!("?force={}&now={}", remove.force, remove.now);
    let removed: Outcome<Value> = client(common)?.delete(&volume_path(&remove.name, &how));
    removed.map_err(|failure| {
        let busy =
            failure.kind == Kind::Conflict.to_string() && failure.error.contains("client(s)");
        if busy { failure.next("or let go of them with --force") } else { failure }
    })?;
    if common.json {
        output::json(&json!({"removed": remove.name, "kept": !remove.now}));
    } else if !remove.now {
        output::line(&format!(
            "volume '{}' is in the trash for a week: `rekindle volume restore {}` brings it back",
            remove.name,
            output::quoted(&remove.name)
        ));
    } else {
        output::line(&format!("volume '{}' is gone; the sweep gives its space back", remove.name));
    }
    Ok(())
}

fn drain(common: &Common, named: &Named) -> Outcome {
    let client = client(common)?;
    let begun: Job = client.post(&volume_path(&named.name, "/drain"), &json!({}))?;
    let done = job::follow(&client, begun, "drain")?;
    common.told(&done, &format!("everything that '{}' acknowledged is in the store", named.name));
    Ok(())
}

fn move_to(common: &Common, wanted: &Move) -> Outcome {
    let client = client(common)?;
    let path = volume_path(&wanted.name, "/move");
    let begun: Job = client.post(&path, &json!({ "to": wanted.to }))?;
    let done = job::follow(&client, begun, "move")?;
    let word = |field: &str| done.result[field].as_str().unwrap_or_default().to_owned();
    let told =
        format!("volume '{}' is at node {} now: {}", wanted.name, word("name"), word("told"));
    common.told(&done, &told);
    Ok(())
}

fn pin(common: &Common, named: &Named, pinned: bool) -> Outcome {
    let (client, path) = (client(common)?, volume_path(&named.name, "/pin"));
    let volume: Volume =
        if pinned { client.post(&path, &json!({}))? } else { client.delete(&path)? };
    if common.json {
        output::json(&volume);
    } else if pinned {
        output::line(&format!("'{}' stays in service once a client has asked for it", named.name));
    } else {
        output::line(&format!(
            "'{}' goes out of service when no client uses it for long",
            named.name
        ));
    }
    Ok(())
}

fn history(common: &Common, named: &Named) -> Outcome {
    let events: Vec<Event> = client(common)?.get(&volume_path(&named.name, "/history"))?;
    if common.json {
        output::json(&events);
        return Ok(());
    }
    if events.is_empty() {
        let name = &named.name;
        output::line(&format!("nothing has happened to '{name}' since the daemon started"));
        return Ok(());
    }
    let mut table = output::table(["TIME", "EVENT", "FROM", "TO", "AFTER", "CAUSE"]);
    for event in &events {
        let time = output::moment(event.time);
        let after = output::time(event.duration_ms);
        table.add_row([&time, &event.event, &event.from, &event.to, &after, &event.cause]);
    }
    output::rows(&table);
    Ok(())
}
