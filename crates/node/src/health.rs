//! The health of the node: one judgement over plain facts, for `/healthz`, `status` and users.
//!
//! [`judge`] is pure, and each of its sentences has a test. [`Looks`] holds the facts that no other
//! part reports: whether the store answers, and how much room the disk has. It asks the store only
//! while a volume owes it something or a user asks for the health, so an idle node leaves the store
//! alone.

use crate::assemble::Node;
use crate::jobs::Jobs;
use crate::limits;
use crate::space::{self, Files};
use parking_lot::Mutex;
use rekindle_base::NodeId;
use rekindle_base::units::format_size;
use rekindle_datastore::Room;
use rekindle_env::{Env, Moment};
use rekindle_front::http::api::{Health, Job, JobState, Trouble};
use rekindle_staging::{Backlog, Policy, Staged};
use rekindle_volume::machine::State;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The facts about a volume with a trouble.
#[derive(Debug, Clone, Default)]
pub(crate) struct VolumeFacts {
    pub(crate) name: String,
    /// Reason why its writes wait.
    pub(crate) stalled: Option<String>,
    /// Reason why its changes cannot reach the store.
    pub(crate) destage_error: Option<String>,
    /// Age of its oldest change, seconds, if it is late.
    pub(crate) late: Option<u64>,
    /// A client's wait for a write that only the store acknowledges, or for the volume to come into
    /// service: since when, and for what.
    pub(crate) clients_wait: Option<(Duration, String)>,
    /// The unreadable part of it: since when, and why.
    pub(crate) unreadable: Option<(Duration, String)>,
    /// Bytes that were given up and not written again.
    pub(crate) lost_bytes: u64,
}

/// The facts about the node. The default is a node without a fault.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Time since the store stopped answering, and its last error.
    pub(crate) store_away: Option<(Duration, String)>,
    /// Folders of the store that are not what they should be, in words.
    pub(crate) folders_unproven: Vec<String>,
    /// Reason why the log takes no more writes.
    pub(crate) log_failed: Option<String>,
    /// Flash of the log, used and at most, bytes.
    pub(crate) flash: (u64, u64),
    /// Acknowledged bytes that are not in the store.
    pub(crate) backlog: u64,
    /// Room on the disk of the node's folder, bytes, if it is low.
    pub(crate) disk_free: Option<u64>,
    pub(crate) volumes: Vec<VolumeFacts>,
    /// Volumes that have been in a transitional state for too long, in words.
    pub(crate) stuck: Vec<String>,
    /// Number of volumes in state `error`.
    pub(crate) failed: u64,
    pub(crate) salvaging: u64,
    /// Count of the volumes that ask for more copies than there are, and count of the copies.
    pub(crate) copies_missing: Option<(usize, u8)>,
    /// Holders of copies that lack something, in words.
    pub(crate) copies_behind: Vec<String>,
    /// Volumes that cannot come into service and keep room of the log, each with the reason.
    pub(crate) pinned: Vec<(String, String)>,
    /// Volumes that only a log has which an earlier node has left here, in words.
    pub(crate) left_behind: Vec<String>,
    /// Damage that the start found in the log.
    pub(crate) damage: Vec<String>,
    /// Whether the log lacks changes, and it is not known yet that no volume misses them.
    pub(crate) losses: bool,
    /// Whether the start found the warm memory damaged as a whole.
    pub(crate) warm_damaged: bool,
    /// The path of the warm memory's file, if the file was removed.
    pub(crate) warm_removed: Option<String>,
    /// Time since the last sweep, if it failed, and its error.
    pub(crate) sweep_failed: Option<(Duration, String)>,
}

/// Puts the facts into words; troubles that stop clients come first.
pub(crate) fn judge(facts: &Facts) -> Health {
    let mut troubles = Troubles(Vec::new());
    troubles.of_log_and_store(facts);
    troubles.of_copies(facts);
    for volume in &facts.volumes {
        troubles.of_volume(volume);
    }
    troubles.of_states(facts);
    troubles.of_sweep_and_start(facts);
    let Troubles(mut troubles) = troubles;
    troubles.sort_by_key(|trouble| !trouble.clients_wait);
    let notes = facts.warm_removed.iter().map(|path| removed(path)).collect();
    Health { notes, ..health(troubles) }
}

/// The troubles that were found so far.
struct Troubles(Vec<Trouble>);

impl Troubles {
    fn say(&mut self, what: &str, clients_wait: bool, since: Option<Duration>, message: String) {
        let since_ms = since.map(milliseconds);
        self.0.push(Trouble { what: what.to_owned(), clients_wait, since_ms, message });
    }

    fn of_log_and_store(&mut self, facts: &Facts) {
        if let Some(error) = &facts.log_failed {
            let message = format!(
                "the log has failed, no write is taken until the daemon is started again: {error}"
            );
            self.say("log-failed", true, None, message);
        }
        let (used, most) = facts.flash;
        if let Some((since, error)) = &facts.store_away {
            self.of_store_away(facts, *since, error);
        }
        for folder in &facts.folders_unproven {
            self.say("store-folder", true, None, format!("a folder of the store: {folder}"));
        }
        if most > 0 && used >= most {
            let message = format!(
                "the log is full ({}): writes wait until changes are in the store",
                format_size(used)
            );
            self.say("log-full", facts.backlog > 0, None, message);
        }
        if let Some(free) = facts.disk_free {
            let message = format!(
                "the disk of the daemon's folder has only {} left: the log cannot grow, writes may have to wait",
                format_size(free)
            );
            self.say("disk-full", false, None, message);
        }
    }

    fn of_store_away(&mut self, facts: &Facts, since: Duration, error: &str) {
        let (used, most) = facts.flash;
        let room = format_size(most.saturating_sub(used));
        let waits = facts.volumes.iter().any(|volume| volume.clients_wait.is_some());
        let safe = match (facts.backlog, waits) {
            (0, true) => "clients wait for it".to_owned(),
            (0, false) => "no write waits for it".to_owned(),
            (bytes, _) => format!("{} wait safely on flash", format_size(bytes)),
        };
        // "Other": the writes that the store acknowledges do not go on.
        let whose = if waits { "other writes" } else { "writes" };
        let message = format!(
            "the store has not answered for {} s ({error}): {safe}, {whose} go on while there is room for {room} more",
            since.as_secs()
        );
        self.say("store-away", false, Some(since), message);
    }

    fn of_copies(&mut self, facts: &Facts) {
        if let Some((volumes, required)) = facts.copies_missing {
            let message = format!(
                "{volumes} volume(s) ask for more copies on other nodes than the {required} that there are: their writes wait for the \
                 store, or for copies (`--on-missing-copy stall`; `rekindle volume set NAME --on-missing-copy step-down` lets them go on); \
                 see `rekindle cluster ls`"
            );
            self.say("copy-missing", false, None, message);
        }
        for holder in &facts.copies_behind {
            self.say("copy-behind", false, None, format!("the copies of the log at {holder}"));
        }
    }

    fn of_volume(&mut self, volume: &VolumeFacts) {
        let name = &volume.name;
        if let Some((since, what)) = &volume.clients_wait {
            let seconds = since.as_secs();
            let message = format!("volume '{name}': clients wait for {seconds} s: {what}");
            self.say("clients-wait", true, Some(*since), message);
        }
        if let Some((since, what)) = &volume.unreadable {
            let message = format!("volume '{name}': {what}");
            self.say("volume-unreadable", false, Some(*since), message);
        }
        if volume.lost_bytes > 0 {
            let message = format!(
                "volume '{name}': {} of it were given up; reads of them are errors until they are written again",
                format_size(volume.lost_bytes)
            );
            self.say("volume-lost-bytes", false, None, message);
        }
        if let Some(reason) = &volume.stalled {
            self.say(
                "volume-stalled",
                true,
                None,
                format!("volume '{name}': writes wait: {reason}"),
            );
        }
        if let Some(error) = &volume.destage_error {
            let message = format!(
                "volume '{name}': its changes cannot be brought into the store now: {error}"
            );
            self.say("volume-not-destaged", false, None, message);
        } else if let Some(age) = volume.late {
            let message = format!("volume '{name}': its oldest change is {age} s old");
            self.say("volume-late", false, Some(Duration::from_secs(age)), message);
        }
    }

    fn of_states(&mut self, facts: &Facts) {
        if facts.failed > 0 {
            let message = format!(
                "{} volume(s) cannot be served: `rekindle volume ls` says why",
                facts.failed
            );
            self.say("volumes-failed", true, None, message);
        }
        if facts.salvaging > 0 {
            let message = format!(
                "{} volume(s) are out of service for a salvage: `rekindle salvage queue` shows them",
                facts.salvaging
            );
            self.say("volumes-salvaging", true, None, message);
        }
        for (name, reason) in &facts.pinned {
            let message = format!(
                "{name} keeps its changes in the log, and their room, until it can be served: {reason}"
            );
            self.say("volume-keeps-log", false, None, message);
        }
        for sentence in &facts.left_behind {
            self.say("volumes-left-behind", false, None, sentence.clone());
        }
        for sentence in &facts.stuck {
            // A restart of the daemon would not help, so it is not a wait of clients.
            self.say("volume-stuck", false, None, sentence.clone());
        }
    }

    fn of_sweep_and_start(&mut self, facts: &Facts) {
        if let Some((since, error)) = &facts.sweep_failed {
            let message = format!(
                "the last sweep failed, {} s ago, and gave no space back: {error}",
                since.as_secs()
            );
            self.say("sweep-failed", false, Some(*since), message);
        }
        for damage in &facts.damage {
            self.say("log-damage", false, None, format!("found at the start: {damage}"));
        }
        // An earlier start may have found the damage.
        if facts.losses && facts.damage.is_empty() {
            let message = "the log has lost acknowledged changes, and goes on telling so until no volume misses any: \
                `rekindle verify` names the volumes that do"
                .to_owned();
            self.say("log-losses", false, None, message);
        }
        if facts.warm_damaged {
            let message = "the start found the warm memory damaged, and began with an empty one: what only it had, if anything, is \
                lost, and `rekindle volume ls` names the volumes that miss it"
                .to_owned();
            self.say("warm-damaged", false, None, message);
        }
    }
}

/// Says what the removal of the warm memory's file means.
fn removed(path: &str) -> String {
    format!(
        "the file of the warm memory, {path}, was removed: what is in it is kept until this daemon ends, and the next start is \
         cold; a kill would lose what `--ack memory` acknowledged and no flush covered. After `rekindle stop` and \
         `rekindle up` there is a new one (logind removes files of ordinary users: RemoveIPC=no, or another place by --warm)"
    )
}

/// Derives the health from the troubles.
fn health(troubles: Vec<Trouble>) -> Health {
    let ok = !troubles.iter().any(|trouble| trouble.clients_wait);
    let state = match (ok, troubles.is_empty()) {
        (_, true) => "well",
        (true, false) => "degraded",
        (false, false) => "failing",
    };
    let reasons = troubles.iter().map(|trouble| trouble.message.clone()).collect();
    Health { ok, state: state.to_owned(), reasons, troubles, notes: Vec::new() }
}

/// Returns the health of a node that does not serve yet, or any more.
pub(crate) fn away(what: &str, reason: &str) -> Health {
    let message = reason.to_owned();
    health(vec![Trouble { what: what.to_owned(), clients_wait: true, since_ms: None, message }])
}

/// Adds the troubles of guests to the health of their host. The troubles that both have, such as a
/// store that is away, are told once.
pub(crate) fn with_guests(own: Health, guests: impl Iterator<Item = (NodeId, Health)>) -> Health {
    let (mut troubles, notes) = (own.troubles, own.notes);
    for (id, guest) in guests {
        for mut trouble in guest.troubles {
            if !troubles.iter().any(|known| known.message == trouble.message) {
                trouble.message = format!("node {id}, which was taken over: {}", trouble.message);
                troubles.push(trouble);
            }
        }
    }
    troubles.sort_by_key(|trouble| !trouble.clients_wait);
    Health { notes, ..health(troubles) }
}

/// Collects the facts about the node. A plain call; it asks neither the store nor the disk.
pub(crate) fn facts(node: &Node, looks: &Looks, jobs: &Jobs) -> Facts {
    let usage = node.log.usage();
    let clock = node.env.wall_clock().0;
    let states: BTreeMap<State, u64> = node.volumes.states();
    let count = |state: State| states.get(&state).copied().unwrap_or(0);
    let behind = node.log.replicas_behind().into_iter();
    let copies_behind =
        behind.filter_map(|(name, problem)| Some(format!("{name} are behind ({})", problem?)));
    let stuck = node.volumes.stuck().volumes;
    let (volumes, backlog) = volumes(node, clock);
    let seen = looks.seen.lock();
    let away = seen.store_away.as_ref();
    let removed = || node.warm.path.as_ref().map(|path| path.display().to_string());
    Facts {
        store_away: away.map(|(since, error)| (node.env.now().since(*since), error.clone())),
        folders_unproven: seen.folders_unproven.clone(),
        log_failed: node.log.failure().map(|error| error.to_string()),
        flash: (usage.flash_bytes, usage.flash_bytes_max),
        backlog,
        disk_free: seen.disk_free.filter(|&free| free < limits::DISK_FREE_LOW),
        volumes,
        stuck: stuck.iter().map(rekindle_volume::Transitional::sentence).collect(),
        sweep_failed: sweep_failed(jobs, clock),
        failed: count(State::Error),
        salvaging: count(State::Salvaging),
        pinned: node.pinned.now(|volume| node.staging.find(volume).is_some()),
        losses: node.staging.has_losses(),
        left_behind: node.left_behind.now(),
        damage: node.opened.damage.clone(),
        warm_damaged: node.warm.began == rekindle_warm::Began::Damaged,
        copies_missing: copies_missing(node),
        copies_behind: copies_behind.collect(),
        warm_removed: seen.warm_removed.then(|| removed().unwrap_or_default()),
    }
}

/// Collects the facts about each volume with a trouble, and counts the acknowledged bytes that all
/// volumes owe to the store.
fn volumes(node: &Node, clock: u64) -> (Vec<VolumeFacts>, u64) {
    let (mut found, mut backlog_bytes) = (BTreeMap::<String, VolumeFacts>::new(), 0);
    let named = |name: &str| VolumeFacts { name: name.to_owned(), ..VolumeFacts::default() };
    for staged in node.staging.volumes() {
        let backlog = staged.backlog();
        backlog_bytes += acknowledged(&staged, &backlog);
        let clients_wait = waits_for_store(&staged, &backlog);
        let is_quiet = backlog.stalled.is_none() && backlog.destage_error.is_none();
        if is_quiet && !backlog.late && clients_wait.is_none() {
            continue;
        }
        let facts = VolumeFacts {
            stalled: backlog.stalled,
            destage_error: backlog.destage_error,
            late: backlog.late.then_some(backlog.age_ms / 1000),
            clients_wait,
            ..named(&staged.vault().name)
        };
        found.insert(facts.name.clone(), facts);
    }
    for transitional in node.volumes.transitional().0 {
        let age = Duration::from_millis(transitional.age_ms);
        let clients_wait = transitional.state == State::Attaching && transitional.waiting > 0;
        if clients_wait && age >= limits::CLIENT_PATIENCE {
            let what = format!("it comes into service, which waits for {}", transitional.waits_for);
            let name = &transitional.volume;
            found.entry(name.clone()).or_insert_with(|| named(name)).clients_wait =
                Some((age, what));
        }
    }
    for impaired in node.volumes.impaired() {
        let age = |since: u64| Duration::from_micros(clock.saturating_sub(since));
        let name = &impaired.volume;
        let facts = found.entry(name.clone()).or_insert_with(|| named(name));
        facts.unreadable = impaired.unreadable.map(|(since, what)| (age(since), what));
        facts.lost_bytes = impaired.lost_bytes;
    }
    (found.into_values().collect(), backlog_bytes)
}

fn copies_missing(node: &Node) -> Option<(usize, u8)> {
    let required = node.log.progress().copies.required;
    let volumes = node.staging.volumes();
    let count = volumes.iter().filter(|staged| staged.copies() > required).count();
    (count > 0).then_some((count, required))
}

/// Counts the acknowledged bytes that a volume owes to the store. A write that the store
/// acknowledges does not count before it is there.
pub(crate) fn acknowledged(staged: &Staged, backlog: &Backlog) -> u64 {
    match staged.vault().policy {
        Policy::Back => backlog.bytes,
        Policy::Through | Policy::Uncached => 0,
    }
}

/// Returns how long the client of a volume whose writes the store acknowledges has waited for one,
/// and the reason.
fn waits_for_store(staged: &Staged, backlog: &Backlog) -> Option<(Duration, String)> {
    let age = Duration::from_millis(backlog.age_ms);
    let policy = match staged.vault().policy {
        Policy::Back => return None,
        Policy::Through => "through",
        Policy::Uncached => "uncached",
    };
    let what =
        format!("a write is not in the store, and with the policy {policy} that acknowledges it");
    (backlog.changes > 0 && age >= limits::CLIENT_PATIENCE).then_some((age, what))
}

/// Returns when and why the last sweep failed, if it did. A cancelled sweep tells nothing.
fn sweep_failed(jobs: &Jobs, clock: u64) -> Option<(Duration, String)> {
    let ended = |job: &Job| {
        let is_sweep = job.kind == "sweep" && job.subject == "the store";
        is_sweep && matches!(job.state, JobState::Done | JobState::Failed)
    };
    let last = jobs.all().into_iter().find(ended)?;
    let why = last.problem.filter(|_| last.state == JobState::Failed)?;
    let ago = clock.saturating_sub(last.finished.unwrap_or(clock));
    Some((Duration::from_micros(ago), why.message))
}

/// The facts that the node has to look for from time to time.
#[derive(Default)]
pub(crate) struct Looks {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Time at which the store stopped answering, and its last error.
    store_away: Option<(Moment, String)>,
    disk_free: Option<u64>,
    folders_unproven: Vec<String>,
    warm_removed: bool,
    files: Option<Files>,
    /// Room in the store.
    room: Option<Room>,
    /// Time of the last question for the health.
    asked: Option<Moment>,
    /// Time of the last look at the store.
    looked: Option<Moment>,
    /// Calls to the store that had succeeded at the last look.
    succeeded: u64,
}

impl Looks {
    /// Notes that the health was asked for, so that the looks go on for a while.
    pub(crate) fn asked(&self, env: &Env) {
        self.seen.lock().asked = Some(env.now());
    }

    /// Returns the room on the disk at the last look, bytes.
    pub(crate) fn disk_free(&self) -> Option<u64> {
        self.seen.lock().disk_free
    }

    /// Whether the store did not answer at the last look.
    pub(crate) fn store_is_away(&self) -> bool {
        self.seen.lock().store_away.is_some()
    }

    /// Returns for how long the store has not answered, and its last error, if a look has just
    /// found that.
    pub(crate) fn away(&self, env: &Env) -> Option<(Duration, String)> {
        let seen = self.seen.lock();
        let is_fresh = seen.looked.is_some_and(|at| env.now().since(at) < limits::LOOK_FRESH);
        let (since, error) = seen.store_away.as_ref().filter(|_| is_fresh)?;
        Some((env.now().since(*since), error.clone()))
    }

    /// Whether the file of the warm memory was gone at the last look.
    pub(crate) fn warm_is_removed(&self) -> bool {
        self.seen.lock().warm_removed
    }

    /// Returns the log's files on the disk, and the room in the store, at the last look.
    pub(crate) fn space(&self) -> (Option<Files>, Option<Room>) {
        let seen = self.seen.lock();
        (seen.files, seen.room)
    }

    /// Checks that the warm memory still has its file; warns once.
    fn look_at_warm(&self, node: &Node) {
        let is_removed = node.warm.is_removed();
        let mut seen = self.seen.lock();
        if is_removed && !std::mem::replace(&mut seen.warm_removed, true) {
            let path = node.warm.path.as_ref().map(|path| path.display().to_string());
            tracing::warn!("{}", removed(&path.unwrap_or_default()));
        }
    }

    /// Checks that the open segment of the log still has its file; if not, the log ends.
    async fn look_at_log(&self, node: &Node) {
        if let Err(error) = node.log.look().await {
            tracing::debug!(%error, "the log");
        }
    }

    /// Looks at once, and keeps the results.
    pub(crate) async fn look(&self, node: &Arc<Node>) {
        self.see(node, false).await;
    }

    /// Like [`Looks::look`], but asks the store even if it has just answered: it may be away since.
    pub(crate) async fn look_afresh(&self, node: &Arc<Node>) {
        self.see(node, true).await;
    }

    async fn see(&self, node: &Arc<Node>, afresh: bool) {
        self.look_at_warm(node);
        self.look_at_log(node).await;
        let free = node.env.disk().free_bytes(&node.config.dir).await.ok();
        let succeeded = successes(node);
        let answered = {
            let mut seen = self.seen.lock();
            seen.disk_free = free;
            std::mem::replace(&mut seen.succeeded, succeeded) < succeeded
        };
        let began = node.env.now();
        let outcome =
            if answered && !afresh { Ok(()) } else { probe(node, limits::PROBE_TIME).await };
        let (files, room) = match &outcome {
            Ok(()) => (space::files(node).await, room(node, limits::PROBE_TIME).await),
            Err(_) => (space::files(node).await, None),
        };
        let patience = limits::PROBE_TIME;
        let unproven = node.env.timeout(patience, node.marks.unproven()).await;
        let mut seen = self.seen.lock();
        if let Ok(unproven) = unproven {
            seen.folders_unproven = unproven;
        }
        (seen.files, seen.room) = (files, room);
        match outcome {
            Ok(()) => seen.store_away = None,
            Err(error) => {
                let since = seen.store_away.take().map_or(began, |(since, _)| since);
                seen.store_away = Some((since, error));
            }
        }
        seen.succeeded = successes(node);
        seen.looked = Some(node.env.now());
    }
}

/// Looks again and again while the node lives.
pub(crate) async fn watch(env: Env, node: Weak<Node>, looks: Arc<Looks>) {
    loop {
        env.sleep(limits::LOOK_INTERVAL).await;
        let Some(node) = node.upgrade() else { return };
        looks.look_at_warm(&node);
        looks.look_at_log(&node).await;
        let asked = looks.seen.lock().asked;
        let wanted = asked.is_some_and(|asked| env.now().since(asked) < limits::LOOK_WANTED);
        let owes = || node.staging.volumes().iter().any(|staged| staged.backlog().bytes > 0);
        if wanted || owes() {
            looks.look(&node).await;
        }
    }
}

/// Counts the successful calls to the store since the start.
fn successes(node: &Node) -> u64 {
    let calls =
        rekindle_datastore::layer::meter::Call::ALL.into_iter().map(|call| node.meter.read(call));
    calls.map(|reading| reading.calls.saturating_sub(reading.errors)).sum()
}

/// Asks the store for one small object, and waits for it for `patience`.
pub(crate) async fn probe(node: &Node, patience: Duration) -> Result<(), String> {
    let ask = rekindle_datastore::identity::find(&node.writer);
    match node.env.timeout(patience, ask).await {
        Ok(Ok(Some(_))) => Ok(()),
        Ok(Ok(None)) => Err("it holds no store of rekindle".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", patience.as_secs())),
    }
}

/// Asks the store for its room; `None` without an answer within `patience`.
pub(crate) async fn room(node: &Node, patience: Duration) -> Option<Room> {
    node.env.timeout(patience, node.store.room()).await.ok()?.ok()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
