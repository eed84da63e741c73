//! Whether all is well: one judgement over plain facts, for `/healthz`, `status` and people.
//!
//! [`judge`] is pure, and every sentence it can say has a test that makes it say it. [`Looks`] holds the two facts that
//! nobody tells by himself: whether the store answers, and how much room the disk has. It looks only while something is
//! unfinished or somebody asks, so an idle node asks the store for nothing.

use crate::assemble::Node;
use crate::limits;
use base::units::format_size;
use env::{Env, Moment};
use front::http::api::{Health, Trouble};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use volume::machine::State;

/// A volume of which something is to be said.
#[derive(Debug, Clone, Default)]
pub(crate) struct VolumeFacts {
    pub(crate) name: String,
    /// Why its writes wait.
    pub(crate) stalled: Option<String>,
    /// Why nothing of it gets into the store.
    pub(crate) destage_error: Option<String>,
    /// Seconds, when its oldest change is older than it should be.
    pub(crate) late: Option<u64>,
}

/// What is known of the node. The default is a node without a fault.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// For how long the store has not answered, and what it said last.
    pub(crate) store_away: Option<(Duration, String)>,
    /// Why the log takes nothing any more.
    pub(crate) log_failed: Option<String>,
    /// The log's flash: used and at most, bytes.
    pub(crate) flash: (u64, u64),
    /// What is acknowledged and not in the store, bytes.
    pub(crate) backlog: u64,
    /// Room on the disk of the node's folder, bytes, when it is little.
    pub(crate) disk_free: Option<u64>,
    pub(crate) volumes: Vec<VolumeFacts>,
    /// Volumes that take too long to change their state, in words.
    pub(crate) stuck: Vec<String>,
    /// How many volumes are in states that serve nobody.
    pub(crate) failed: u64,
    pub(crate) salvaging: u64,
    /// What the start found damaged in the log.
    pub(crate) damage: Vec<String>,
    /// The start found the warm memory damaged as a whole.
    pub(crate) warm_damaged: bool,
}

/// Puts the facts into words, what stops clients first.
pub(crate) fn judge(facts: &Facts) -> Health {
    let mut troubles = Vec::new();
    let mut say = |what: &str, clients_wait: bool, since: Option<Duration>, message: String| {
        let since_ms = since.map(milliseconds);
        troubles.push(Trouble { what: what.to_owned(), clients_wait, since_ms, message });
    };
    if let Some(error) = &facts.log_failed {
        let message = format!(
            "the log has failed, no write is taken until the daemon is started again: {error}"
        );
        say("log-failed", true, None, message);
    }
    let (used, most) = facts.flash;
    let room = format_size(most.saturating_sub(used));
    if let Some((since, error)) = &facts.store_away {
        let safe = match facts.backlog {
            0 => "nothing waits for it".to_owned(),
            bytes => format!("{} wait safely on flash", format_size(bytes)),
        };
        let message = format!(
            "the store has not answered for {} s ({error}): {safe}, writes go on while there is room for {room} more",
            since.as_secs()
        );
        say("store-away", false, Some(*since), message);
    }
    if most > 0 && used >= most {
        let message = format!(
            "the log is full ({}): writes wait until changes are in the store",
            format_size(used)
        );
        say("log-full", facts.backlog > 0, None, message);
    }
    if let Some(free) = facts.disk_free {
        let message = format!(
            "the disk of the daemon's folder has only {} left: the log cannot grow, writes may have to wait",
            format_size(free)
        );
        say("disk-full", false, None, message);
    }
    for volume in &facts.volumes {
        let name = &volume.name;
        if let Some(reason) = &volume.stalled {
            say("volume-stalled", true, None, format!("volume '{name}': writes wait: {reason}"));
        }
        if let Some(error) = &volume.destage_error {
            let message = format!(
                "volume '{name}': its changes cannot be brought into the store now: {error}"
            );
            say("volume-not-destaged", false, None, message);
        } else if let Some(age) = volume.late {
            let message = format!("volume '{name}': its oldest change is {age} s old");
            say("volume-late", false, Some(Duration::from_secs(age)), message);
        }
    }
    if facts.failed > 0 {
        let message =
            format!("{} volume(s) cannot be served: `rekindle volume ls` says why", facts.failed);
        say("volumes-failed", true, None, message);
    }
    if facts.salvaging > 0 {
        let message = format!(
            "{} volume(s) are out of service for a salvage: `rekindle salvage queue` shows them",
            facts.salvaging
        );
        say("volumes-salvaging", true, None, message);
    }
    for sentence in &facts.stuck {
        // A restart of the daemon would not mend it.
        say("volume-stuck", false, None, sentence.clone());
    }
    for damage in &facts.damage {
        say("log-damage", false, None, format!("found at the start: {damage}"));
    }
    if facts.warm_damaged {
        let message = "the start found the warm memory damaged, and began with an empty one: what only it had, if anything, is \
            lost, and `rekindle volume ls` names the volumes that miss it"
            .to_owned();
        say("warm-damaged", false, None, message);
    }
    troubles.sort_by_key(|trouble| !trouble.clients_wait);
    health(troubles)
}

/// The health that follows from the troubles.
fn health(troubles: Vec<Trouble>) -> Health {
    let ok = !troubles.iter().any(|trouble| trouble.clients_wait);
    let state = match (ok, troubles.is_empty()) {
        (_, true) => "well",
        (true, false) => "degraded",
        (false, false) => "failing",
    };
    let reasons = troubles.iter().map(|trouble| trouble.message.clone()).collect();
    Health { ok, state: state.to_owned(), reasons, troubles }
}

/// The health of a node that does not serve (yet, or any more).
pub(crate) fn away(what: &str, reason: &str) -> Health {
    let message = reason.to_owned();
    health(vec![Trouble { what: what.to_owned(), clients_wait: true, since_ms: None, message }])
}

/// What is known of the node now. A plain call; it asks neither the store nor the disk.
pub(crate) fn facts(node: &Node, looks: &Looks) -> Facts {
    let usage = node.log.usage();
    let (mut volumes, mut backlog_bytes) = (Vec::new(), 0);
    for staged in node.staging.volumes() {
        let backlog = staged.backlog();
        backlog_bytes += backlog.bytes;
        if backlog.stalled.is_none() && backlog.destage_error.is_none() && !backlog.late {
            continue;
        }
        volumes.push(VolumeFacts {
            name: staged.vault().name,
            stalled: backlog.stalled,
            destage_error: backlog.destage_error,
            late: backlog.late.then_some(backlog.age_ms / 1000),
        });
    }
    let states: BTreeMap<State, u64> = node.volumes.states();
    let count = |state: State| states.get(&state).copied().unwrap_or(0);
    let seen = looks.seen.lock();
    Facts {
        store_away: seen
            .store_away
            .as_ref()
            .map(|(since, error)| (node.env.now().since(*since), error.clone())),
        log_failed: node.log.failure().map(|error| error.to_string()),
        flash: (usage.flash_bytes, usage.flash_bytes_max),
        backlog: backlog_bytes,
        disk_free: seen.disk_free.filter(|&free| free < limits::DISK_FREE_LOW),
        volumes,
        stuck: node.volumes.stuck().volumes.iter().map(volume::Passing::sentence).collect(),
        failed: count(State::Error),
        salvaging: count(State::Salvaging),
        damage: node.opened.damage.clone(),
        warm_damaged: node.warm.began == warm::Began::Damaged,
    }
}

/// What somebody has to look at from time to time.
#[derive(Default)]
pub(crate) struct Looks {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Since when the store does not answer, and what it says.
    store_away: Option<(Moment, String)>,
    disk_free: Option<u64>,
    /// When somebody asked last.
    asked: Option<Moment>,
    /// Calls to the store that had succeeded at the last look.
    succeeded: u64,
}

impl Looks {
    /// Somebody asks how the node is: keep looking for a while.
    pub(crate) fn asked(&self, env: &Env) {
        self.seen.lock().asked = Some(env.now());
    }

    /// Room on the disk at the last look, bytes.
    pub(crate) fn disk_free(&self) -> Option<u64> {
        self.seen.lock().disk_free
    }

    /// Whether the store did not answer at the last look.
    pub(crate) fn store_is_away(&self) -> bool {
        self.seen.lock().store_away.is_some()
    }

    /// Looks at once, and notes what it saw.
    pub(crate) async fn look(&self, node: &Arc<Node>) {
        let free = node.env.disk().free_bytes(&node.config.dir).await.ok();
        let succeeded = successes(node);
        let answered = {
            let mut seen = self.seen.lock();
            seen.disk_free = free;
            std::mem::replace(&mut seen.succeeded, succeeded) < succeeded
        };
        let began = node.env.now();
        let outcome = if answered { Ok(()) } else { probe(node).await };
        let mut seen = self.seen.lock();
        match outcome {
            Ok(()) => seen.store_away = None,
            Err(error) => {
                let since = seen.store_away.take().map_or(began, |(since, _)| since);
                seen.store_away = Some((since, error));
            }
        }
        seen.succeeded = successes(node);
    }
}

/// Looks again and again, for as long as the node lives.
pub(crate) async fn watch(env: Env, node: Weak<Node>, looks: Arc<Looks>) {
    loop {
        env.sleep(limits::LOOK_INTERVAL).await;
        let Some(node) = node.upgrade() else { return };
        let asked = looks.seen.lock().asked;
        let wanted = asked.is_some_and(|asked| env.now().since(asked) < limits::LOOK_WANTED);
        let owes = || node.staging.volumes().iter().any(|staged| staged.backlog().bytes > 0);
        if wanted || owes() {
            looks.look(&node).await;
        }
    }
}

/// Calls to the store that have succeeded since the start.
fn successes(node: &Node) -> u64 {
    let calls = datastore::layer::meter::Call::ALL.into_iter().map(|call| node.meter.read(call));
    calls.map(|reading| reading.calls.saturating_sub(reading.errors)).sum()
}

/// Asks the store for one small object. On the background threads, whoever asks.
async fn probe(node: &Arc<Node>) -> Result<(), String> {
    let writer = node.writer.clone();
    let read = async move {
        match datastore::identity::find(&writer).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("it holds no store of rekindle".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    };
    let ask = node.env.run("store-probe", read);
    match node.env.timeout(limits::PROBE_TIME, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", limits::PROBE_TIME.as_secs())),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(facts: Facts) -> (Health, Trouble) {
        let health = judge(&facts);
        assert_eq!(health.troubles.len(), 1, "{health:?}");
        let trouble = health.troubles[0].clone();
        (health, trouble)
    }

    #[test]
    fn a_node_without_a_fault_is_well() {
        let health = judge(&Facts { flash: (1, 2), ..Facts::default() });
        assert_eq!((health.ok, health.state.as_str()), (true, "well"));
        assert!(health.reasons.is_empty());
    }

    #[test]
    fn a_store_that_is_away_is_never_well_and_says_what_still_works() {
        let (health, trouble) = one(Facts {
            store_away: Some((Duration::from_secs(25), "connection refused".into())),
            flash: (200 << 20, 4 << 30),
            backlog: 200 << 20,
            ..Facts::default()
        });
        assert_eq!((health.ok, health.state.as_str()), (true, "degraded"));
        assert_eq!((trouble.what.as_str(), trouble.since_ms), ("store-away", Some(25_000)));
        for word in ["25 s", "connection refused", "200 MiB wait safely on flash", "3.8 GiB"] {
            assert!(trouble.message.contains(word), "{word}: {}", trouble.message);
        }
    }

    #[test]
    fn a_log_that_has_failed_is_failing() {
        let (health, trouble) = one(Facts { log_failed: Some("EIO".into()), ..Facts::default() });
        assert_eq!((health.ok, health.state.as_str()), (false, "failing"));
        assert!(trouble.message.contains("EIO") && trouble.what == "log-failed");
    }

    #[test]
    fn a_full_log_and_a_full_disk_are_said() {
        let (health, trouble) =
            one(Facts { flash: (8 << 20, 8 << 20), backlog: 1, ..Facts::default() });
        assert!(!health.ok && trouble.message.contains("the log is full (8 MiB)"), "{trouble:?}");
        let (health, trouble) = one(Facts { disk_free: Some(4096), ..Facts::default() });
        assert!(health.ok && trouble.message.contains("4 KiB left"), "{trouble:?}");
    }

    #[test]
    fn volumes_that_wait_come_before_volumes_that_worry() {
        let late = VolumeFacts { name: "a".into(), late: Some(400), ..VolumeFacts::default() };
        let stalled = VolumeFacts {
            name: "b".into(),
            stalled: Some("no room".into()),
            destage_error: Some("away".into()),
            ..VolumeFacts::default()
        };
        let health = judge(&Facts { volumes: vec![late, stalled], ..Facts::default() });
        let whats: Vec<_> = health.troubles.iter().map(|trouble| trouble.what.as_str()).collect();
        assert_eq!(whats, ["volume-stalled", "volume-late", "volume-not-destaged"]);
        assert!(!health.ok && health.reasons[0].contains("'b': writes wait: no room"));
    }

    #[test]
    fn volumes_out_of_service_and_damage_are_said() {
        let facts = Facts {
            failed: 2,
            salvaging: 1,
            stuck: vec!["volume 'c' is attaching for 12 s".into()],
            damage: vec!["segment 7: a torn tail".into()],
            warm_damaged: true,
            ..Facts::default()
        };
        let health = judge(&facts);
        let text = health.reasons.join("; ");
        for word in [
            "2 volume(s) cannot",
            "1 volume(s) are out",
            "'c' is attaching",
            "segment 7",
            "warm memory",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!((health.ok, health.troubles.len()), (false, 5));
    }

    #[test]
    fn a_node_that_starts_is_not_ok_and_says_so() {
        let health = away("starting", "the daemon is starting");
        assert_eq!(
            (health.ok, health.reasons.as_slice()),
            (false, &["the daemon is starting".to_owned()][..])
        );
    }
}
