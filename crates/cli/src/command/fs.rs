//! `rekindle fs`: file systems, which are volumes of kind `file`.

use super::{client, create, snapshot, volume};
use crate::arguments::{Common, Create, CreateFs, Fs, Named};
use crate::client::volume_path;
use crate::transfer::trees;
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_front::http::api::Volume;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;

/// The kind of volume that a file system is.
const FILE: &str = "file";

/// Runs the command.
pub fn run(common: &Common, request: &Fs) -> Outcome {
    match request {
        Fs::Create(create) => make(common, create),
        Fs::Ls => list(common),
        Fs::Show(named) => show(common, named),
        Fs::Snapshot(wanted) => {
            file_system(common, &wanted.name)?;
            snapshot::take(common, wanted)
        }
        Fs::Clone(wanted) => {
            file_system(common, &wanted.name)?;
            snapshot::clone(common, wanted)
        }
        Fs::Import(import) => trees::import(common, import),
        Fs::Export(export) => trees::export(common, export),
    }
}

fn make(common: &Common, wanted: &CreateFs) -> Outcome {
    let CreateFs { name, size, writes } = wanted;
    create::agree(writes.policy, writes.ack)?;
    let wanted = Create {
        name: name.clone(),
        size: *size,
        writes: writes.clone(),
        kind: Some(FILE.to_owned()),
        block_size: None,
    };
    let made: Volume = client(common)?.post("/api/v1/volumes", &create::request(&wanted))?;
    common.shown(&made, || {
        output::line(&format!("file system '{name}' of {} is there", format_size(made.size)));
        if let Some(why) = &made.downgrade {
            output::line(&format!("  {why}"));
        }
        output::line(&format!("  rekindle mount {} DIR", output::quoted(name)));
    });
    Ok(())
}

fn list(common: &Common) -> Outcome {
    let mut volumes: Vec<Volume> = client(common)?.get("/api/v1/volumes")?;
    volumes.retain(|volume| volume.kind == FILE);
    if common.json {
        output::json(&volumes);
    } else if volumes.is_empty() {
        output::line("there are no file systems: `rekindle fs create home` makes one");
    } else {
        volume::print_list(&volumes);
    }
    Ok(())
}

fn show(common: &Common, named: &Named) -> Outcome {
    file_system(common, &named.name)?;
    volume::show(common, named)
}

/// An error when a volume is no file system.
fn file_system(common: &Common, name: &str) -> Outcome {
    let found: Volume = client(common)?.get(&volume_path(name, ""))?;
    if found.kind != FILE {
        let message =
            format!("volume '{}' is of kind '{}', no file system", found.name, found.kind);
        return Err(Failure::new(message)
            .next(format!("`rekindle volume show {}` shows it", output::quoted(name)))
            .kind(Kind::Unsupported));
    }
    Ok(())
}
