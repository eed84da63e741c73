//! The reports of recoveries: lost nodes that have gone on in this process, and what that took.
//! Reports are for users, and decide nothing. The last ones are kept in `recoveries.json` in the
//! host's folder. Page: docs/format/cluster.md.

use parking_lot::Mutex;
use rekindle_base::NodeId;
use rekindle_env::{Env, Moment};
use rekindle_front::http::api::{BootPhase, Recovery};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;

const NAME: &str = "recoveries.json";
const WHAT: &str = "recoveries";
const FORMAT: u32 = 1;
/// Longest accepted file, bytes.
const BYTES_MAX: u64 = 4 << 20;
/// Most reports that are kept.
const KEPT: usize = 64;
/// Most volumes in a report.
const VOLUMES_MAX: usize = 32;
/// Time for which the volumes that clients get back belong to the recovery.
pub(crate) const RECOVERY_TIME: Duration = Duration::from_secs(60);

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct RecoveriesFile {
    /// Always "recoveries".
    rekindle: String,
    format: u32,
    /// Oldest first.
    recoveries: Vec<Recovery>,
}

/// The reports of a host.
#[derive(Default)]
pub(crate) struct Recoveries {
    /// Oldest first, each with the origin of its times; `None`: an earlier process made it.
    all: Mutex<Vec<(Option<Moment>, Recovery)>>,
}

impl Recoveries {
    /// Reads the reports of earlier processes.
    pub(crate) async fn load(&self, env: &Env, dir: &Path) {
        match read(env, dir).await {
            Ok(found) => {
                let earlier = found.into_iter().map(|report| (None, report));
                self.all.lock().splice(0..0, earlier);
            }
            Err(error) => tracing::warn!(%error, "earlier recoveries are not known: {NAME}"),
        }
    }

    /// Returns the reports, the last one first.
    pub(crate) fn all(&self) -> Vec<Recovery> {
        self.all.lock().iter().rev().map(|(_, report)| report.clone()).collect()
    }

    /// Notes a recovery whose times begin with `origin`.
    pub(crate) fn note(&self, origin: Moment, report: Recovery) {
        let mut all = self.all.lock();
        all.push((Some(origin), report));
        let surplus = all.len().saturating_sub(KEPT);
        all.drain(..surplus);
    }

    /// Notes that a client has got a volume of the node `owner` back, with so many bytes of changes
    /// from the log.
    pub(crate) fn attached(
        &self,
        owner: NodeId,
        (volume, bytes): (&str, u64),
        (began, ended): (Moment, Moment),
    ) {
        let (mut all, owner) = (self.all.lock(), owner.to_string());
        let last = all.iter_mut().rev().find(|(_, report)| report.node == owner);
        let Some((Some(origin), report)) = last else { return };
        let volumes = report.phases.iter().filter(|phase| phase.part_of.is_some());
        let is_new = volumes.clone().count() < VOLUMES_MAX
            && !volumes.clone().any(|phase| phase.name == volume);
        if is_new && ended.since(*origin) < RECOVERY_TIME {
            let part_of = Some("clients".to_owned());
            let phase = phase(volume, *origin, began, ended);
            report.phases.push(BootPhase { part_of, bytes: Some(bytes), ..phase });
        }
    }

    /// Writes the file.
    pub(crate) async fn keep(&self, env: &Env, dir: &Path) {
        let recoveries = self.all.lock().iter().map(|(_, report)| report.clone()).collect();
        let file = RecoveriesFile { rekindle: WHAT.to_owned(), format: FORMAT, recoveries };
        let written = async {
            let bytes = serde_json::to_vec_pretty(&file).map_err(io::Error::other)?;
            env.replace_file(dir, NAME, &bytes).await
        };
        if let Err(error) = written.await {
            tracing::warn!(%error, "the report of a recovery is in memory only: {NAME}");
        }
    }
}

/// A phase of a recovery.
pub(crate) fn phase(name: &str, origin: Moment, began: Moment, ended: Moment) -> BootPhase {
    let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    BootPhase {
        name: name.to_owned(),
        part_of: None,
        began_us: microseconds(began.since(origin)),
        took_us: microseconds(ended.since(began)),
        bytes: None,
    }
}

async fn read(env: &Env, dir: &Path) -> io::Result<Vec<Recovery>> {
    let bytes = match env.read_file(&dir.join(NAME), BYTES_MAX).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let file: RecoveriesFile = serde_json::from_slice(&bytes)?;
    if file.rekindle != WHAT || file.format > FORMAT {
        let found = format!("a '{}' of format {}", file.rekindle, file.format);
        return Err(io::Error::new(io::ErrorKind::InvalidData, found));
    }
    Ok(file.recoveries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_env::sim::{Faults, World};

    fn at(milliseconds: u64) -> Moment {
        Moment(Duration::from_millis(milliseconds))
    }

    #[test]
    fn a_report_has_the_volumes_of_its_own_node_and_time() {
        let (owner, other) = (NodeId([1; 16]), NodeId([2; 16]));
        let reports = Recoveries::default();
        let report = |node: NodeId| Recovery { node: node.to_string(), ..Recovery::default() };
        reports.note(at(0), Recovery { from: "before".to_owned(), ..report(owner) });
        reports.note(at(1000), report(owner));
        reports.note(at(1000), report(other));
        reports.attached(owner, ("a", 7), (at(1200), at(1500)));
        reports.attached(owner, ("a", 9), (at(1700), at(1800)));
        reports.attached(owner, ("late", 0), (at(61_500), at(61_600)));
        for number in 0..2 * VOLUMES_MAX {
            reports.attached(other, (&number.to_string(), 0), (at(1001), at(1002)));
        }
        let [second, first, before] = reports.all().try_into().expect("three");
        assert_eq!(second.phases.len(), VOLUMES_MAX);
        let [told] = &first.phases[..] else { panic!("one") };
        assert_eq!((told.name.as_str(), told.began_us, told.took_us), ("a", 200_000, 300_000));
        assert_eq!(told.bytes, Some(7));
        assert_eq!(first.first_client_us(), Some(500_000));
        assert_eq!((before.phases.len(), before.from.as_str()), (0, "before"));
    }

    #[test]
    fn reports_are_kept_and_damage_of_the_file_costs_only_them() {
        let world = World::new(7, Faults::none());
        let (env, dir) = (world.env(), Path::new("/node"));
        world.block_on(async {
            env.disk().create_folder(dir).await.expect("a folder");
            let reports = Recoveries::default();
            for number in 0..KEPT as u64 + 5 {
                reports.note(at(0), Recovery { incarnation: number, ..Recovery::default() });
            }
            reports.keep(&env, dir).await;
            let again = Recoveries::default();
            again.note(at(0), Recovery { incarnation: 1000, ..Recovery::default() });
            again.load(&env, dir).await;
            let starts: Vec<u64> = again.all().iter().map(|report| report.incarnation).collect();
            assert_eq!((starts.len(), starts[0], starts[1]), (KEPT + 1, 1000, KEPT as u64 + 4));
            again.attached(NodeId([1; 16]), ("of an earlier process", 0), (at(1), at(2)));
            env.replace_file(dir, NAME, b"{\"rekindle\": \"recoveries\", \"format\": 2}")
                .await
                .expect("it is written");
            let damaged = Recoveries::default();
            damaged.load(&env, dir).await;
            assert_eq!(damaged.all(), []);
        });
    }
}
