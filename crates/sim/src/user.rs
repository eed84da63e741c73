//! A user of the HTTP API beside the clients: looks at everything, and commands what does not touch
//! the clients' data.

use crate::boot::{Served, Setup, kind_of};
use crate::clients::Table;
use crate::subject::What;
use crate::{heard, records};
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_base::units::MIB;
use rekindle_front::http::Api;
use rekindle_front::http::api::kept::{CloneVolume, Keep, Rename, Resize, Restore, TakeSnapshot};
use rekindle_front::http::api::{ApiError, Debug, Job, StartAttach, StartSpace, StartVerify};
use rekindle_staging::Policy;
use rekindle_volume::WriteSettings;
use std::sync::Arc;
use std::time::Duration;

/// Longest pause between two commands, milliseconds.
const PAUSE_MS: u64 = 100;
/// Names of the user's own volumes.
const NAMES: [&str; 2] = ["mine", "other"];

/// The commands up to this one take no name away. A store that carries a creation out once more may
/// make a name again that was taken away meanwhile, and leave it without a vault: a known gap of
/// the product.
const LAST_TO_KEEP: u64 = 14;

/// Looks and commands as long as there are clients.
pub async fn look_and_command(
    served: Served,
    table: Arc<Table>,
    was_hurt: bool,
    mut dice: Random,
) -> Result<(), String> {
    while table.is_busy() {
        served.env.sleep(Duration::from_millis(dice.below(PAUSE_MS))).await;
        let number = match dice.below(24) {
            number if number > LAST_TO_KEEP && table.trouble().repeats_writes() => LAST_TO_KEEP,
            number => number,
        };
        match command(&served, number, table.has_map(), &mut dice).await {
            Ok(()) => heard::note("answered"),
            Err(error) if table.trouble().explains(error.kind) => heard::note("not answered"),
            Err(error) if is_lawful(&error) => {}
            Err(error) if table.trouble().ends(error.kind) => heard::note("the log had ended"),
            // The log has lost changes of the user's volume.
            Err(error) if was_hurt && error.kind == Kind::Damaged => heard::note("told: lost"),
            Err(error) => return Err(format!("a user's command {number}: {error}")),
        }
    }
    Ok(())
}

/// Whether an error comes from a volume that is there, that is not, or that would lose its end; or
/// from a map that has taken the name of a disk since the command began.
fn is_lawful(error: &ApiError) -> bool {
    let is_map = error.kind == Kind::Unsupported && error.message.contains("'map'");
    is_map || matches!(error.kind, Kind::NotFound | Kind::Exists | Kind::Invalid)
}

/// Knocks at a map by NBD, and wants another size for it, as long as there are clients: both are
/// refused in words that name its kind.
pub async fn knock(served: Served, table: Arc<Table>, mut dice: Random) -> Result<(), String> {
    let name = What::Map.name();
    while table.is_busy() {
        served.env.sleep(Duration::from_millis(dice.below(PAUSE_MS))).await;
        let (kind, said, note) = match dice.below(2) {
            0 => match served.attach(name).await {
                Ok(_) => return Err("a map is served as bytes".to_owned()),
                Err(error) => (error.kind, error.message, "map: refused by NBD"),
            },
            _ => {
                let request = Resize { size: MIB * (1 + dice.below(3)), shrink: true };
                match served.service.resize_volume(name, request).await {
                    Ok(_) => return Err("a map has another size".to_owned()),
                    Err(error) => (error.kind, error.message, "map: keeps its size"),
                }
            }
        };
        match kind {
            Kind::Unsupported | Kind::Invalid if said.contains("'map'") => heard::note(note),
            kind if table.trouble().explains(kind) || table.trouble().ends(kind) => {}
            _ => return Err(format!("a map is refused: {said}")),
        }
    }
    Ok(())
}

async fn command(
    served: &Served,
    number: u64,
    has_map: bool,
    dice: &mut Random,
) -> Result<(), ApiError> {
    let service = &served.service;
    let (name, other) = match dice.below(2) {
        0 => (NAMES[0], NAMES[1]),
        _ => (NAMES[1], NAMES[0]),
    };
    let forces = dice.below(2) == 0;
    match number {
        0 => service.status().await.map(drop),
        1 => service.volumes().await.map(drop),
        2 => {
            for volume in service.volumes().await? {
                service.history(&volume.name).await?;
                service.versions(&volume.name).await?;
            }
            Ok(())
        }
        3 => service.log_usage().await.map(drop),
        4 => service.store().await.map(drop),
        5 => {
            service.warm().await?;
            service.boot().await.map(drop)
        }
        6 => {
            let whats = [Debug::Volumes, Debug::Queue, Debug::Log, Debug::Warm, Debug::Locks];
            service.debug(whats[dice.below(5) as usize], "").await.map(drop)
        }
        7 => {
            service.salvages().await?;
            service.salvage_history(None).await.map(drop)
        }
        8 => {
            service.sweep().await?;
            Api::jobs(service).await.map(drop)
        }
        9 => end_of(served, service.start_verify(StartVerify::default()).await?).await,
        10 => end_of(served, service.start_space(StartSpace::default()).await?).await,
        11 => {
            let request = StartAttach { reads: 4, ..StartAttach::default() };
            end_of(served, service.start_attach(request).await?).await
        }
        12 => end_of(served, service.drain_volume(name).await?).await,
        13 => {
            let policies = [Policy::Back, Policy::Through, Policy::Uncached];
            let policy = Some(policies[dice.below(3) as usize]);
            let settings = WriteSettings { policy, ..WriteSettings::default() };
            service.set_volume(name, settings).await.map(drop)
        }
        14 => {
            let kind = (has_map && forces).then_some(records::KIND);
            served.create(name, &Setup { kind, size: MIB, ..Setup::default() }).await
        }
        15 => service.rename_volume(name, Rename { name: other.to_owned() }).await.map(drop),
        16 => {
            let request = Resize { size: MIB * (1 + dice.below(3)), shrink: forces };
            service.resize_volume(name, request).await.map(drop)
        }
        17 => service.remove_volume(name, forces, dice.below(2) == 0).await,
        18 => service.restore_volume(name, Restore::default()).await.map(drop),
        19 => {
            service.trash().await?;
            service.purge_volume(name).await
        }
        20 | 21 => {
            let snapshot = TakeSnapshot { name: "kept".to_owned() };
            service.take_snapshot(name, snapshot).await?;
            heard::note("snapshots taken");
            Ok(())
        }
        22 => {
            service.snapshots(name).await?;
            service.remove_snapshot(name, "kept").await
        }
        _ => {
            let clone = CloneVolume { snapshot: "kept".to_owned(), name: other.to_owned() };
            service.clone_volume(name, clone).await?;
            heard::note("clones made");
            Ok(())
        }
    }
}

async fn end_of(served: &Served, job: Job) -> Result<(), ApiError> {
    let ended = served.end_of(job).await;
    ended.map(drop).map_err(|problem| ApiError::new(kind_of(&problem), problem.message))
}
