//! The owner's side of a life whose log has copies: sends the log and beats to its holders, and
//! finds others in place of those that are lost. [`crate::machine::owner`] decides.

use crate::beats::{self, News};
use crate::calls::Calls;
use crate::limits::{
    AVOID_FOR, CANDIDATES, CHOOSE_PAUSE, CHOOSE_PAUSE_MAX, OFFER_TIME_MAX, ROSTER_TIME_MAX,
};
use crate::machine::Pace;
use crate::machine::choice::{self, Candidate, Spread};
use crate::machine::owner::{Command, Event, Owner, Reads, Stand};
use crate::peer::Peer;
use crate::roster::Entry;
use futures_util::future::{Either, join_all, select};
use parking_lot::Mutex;
use rekindle_base::{Life, NodeId};
use rekindle_env::{BoxFuture, Moment, TaskHandle};
use rekindle_log::limits::REPLICAS_MAX;
use rekindle_log::{Follower, Log, Position, Replica};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// The node whose life owns the log.
pub trait Home: Send + Sync + 'static {
    /// Names these holders in the node's record. Returns when the write is known to have succeeded;
    /// an error: another life has the node, or this one was removed.
    fn name(&self, holders: BTreeSet<NodeId>) -> BoxFuture<'_, Result<(), String>>;
    /// Lets reads go on for that time.
    fn read(&self, reads: Reads);
    /// Count of the holders that the node's volumes want.
    fn wanted(&self) -> usize;
    /// Notes that a holder has refused this life, or that the record names another one: this life
    /// may be over.
    fn doubt(&self, why: &str);
    /// Notes that writes wait for other holders from now on.
    fn changed(&self);
}

/// The means of an owner.
pub struct Parts {
    pub calls: Arc<Calls>,
    pub log: Log,
    pub life: Life,
    /// The life's `node.json`, so that the copies can be started from.
    pub file_of_copies: Vec<u8>,
    /// The holders that the record names, whose replicas the log requires already, in this order.
    pub recorded: Vec<NodeId>,
    /// The fault domain of this host.
    pub domain: String,
    pub spread: Spread,
    pub pace: Pace,
    pub home: Arc<dyn Home>,
}

/// A holder as an observer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub node: NodeId,
    pub name: String,
    pub stand: Stand,
    /// Bytes of the log that it lacks.
    pub lacks: u64,
    pub problem: Option<String>,
    /// Time in this stand.
    pub since: Duration,
}

/// A life that keeps copies of its log elsewhere, for as long as the value lives.
pub struct Keeping {
    shared: Arc<Shared>,
    task: TaskHandle,
}

struct Shared {
    parts: Parts,
    machine: Mutex<Owner>,
    links: Mutex<BTreeMap<NodeId, Link>>,
    news: mpsc::UnboundedSender<Note>,
    /// Holders that were lost, and when.
    lost: Mutex<BTreeMap<NodeId, Moment>>,
    choice: Mutex<Choice>,
    has_stopped: AtomicBool,
}

/// The connection to one holder.
struct Link {
    follower: Follower,
    beats: TaskHandle,
    /// The position that the holder must reach in its stand, and the stand.
    goal: (Stand, Position),
    /// The position that it had last, and the moment at which it reached that.
    reached: (Position, Moment),
}

/// The state of the search for another holder.
struct Choice {
    is_under_way: bool,
    not_before: Moment,
    pause: Duration,
}

/// A note to the driver's task.
enum Note {
    Beat(NodeId, News),
    Chosen(Option<NodeId>),
    Written,
    Over(String),
    /// A node has come, or has news.
    Met,
}

/// The replicas of the holders that a record names: a log of a new life requires them from its
/// first moment on.
#[must_use]
pub fn replicas(
    calls: &Arc<Calls>,
    life: Life,
    file_of_copies: &[u8],
    recorded: &[NodeId],
) -> Vec<Arc<dyn Replica>> {
    recorded.iter().map(|holder| replica(calls, life, file_of_copies, *holder)).collect()
}

fn replica(
    calls: &Arc<Calls>,
    life: Life,
    file_of_copies: &[u8],
    holder: NodeId,
) -> Arc<dyn Replica> {
    Arc::new(Peer::new(calls, life, holder, file_of_copies.to_vec()))
}

impl Keeping {
    /// Begins to keep copies.
    #[must_use]
    pub fn begin(parts: Parts) -> Keeping {
        let (news, notes) = mpsc::unbounded_channel();
        let env = parts.calls.env.clone();
        let now = env.now();
        let machine = Owner::begin(parts.pace, parts.recorded.iter().copied(), now);
        parts.home.read(machine.reads());
        let shared = Arc::new(Shared {
            machine: Mutex::new(machine),
            links: Mutex::default(),
            news,
            lost: Mutex::default(),
            choice: Mutex::new(Choice {
                is_under_way: false,
                not_before: now,
                pause: CHOOSE_PAUSE,
            }),
            has_stopped: AtomicBool::new(false),
            parts,
        });
        let followers = shared.parts.log.followers();
        for (holder, follower) in shared.parts.recorded.clone().into_iter().zip(followers) {
            shared.link(holder, follower);
        }
        let task = env.spawn_foreground("cluster-owner", run(Arc::clone(&shared), notes));
        Keeping { shared, task }
    }

    /// The holders.
    #[must_use]
    pub fn view(&self) -> Vec<View> {
        let shared = &self.shared;
        let committed = shared.parts.log.committed();
        let (now, machine) = (shared.parts.calls.env.now(), shared.machine.lock().clone());
        let links = shared.links.lock();
        let view = |(node, holder): (&NodeId, &crate::machine::owner::Holder)| {
            let follower = &links.get(node)?.follower;
            Some(View {
                node: *node,
                name: follower.name(),
                stand: holder.stand,
                lacks: committed.0.saturating_sub(follower.position().0),
                problem: follower.problem(),
                since: now.since(holder.since),
            })
        };
        machine.holders().iter().filter_map(view).collect()
    }

    /// Notes that a node has come, or has news: it may become a holder, or drain.
    pub fn met(&self) {
        // The task may have ended.
        let _ = self.shared.news.send(Note::Met).is_err();
    }

    /// Tells the holders that this life stops in good order, and ends the beats.
    pub async fn rest(&self) {
        self.end();
        let holders: Vec<NodeId> = self.shared.links.lock().keys().copied().collect();
        let Parts { calls, life, .. } = &self.shared.parts;
        join_all(holders.into_iter().map(|holder| beats::rest(calls, *life, holder))).await;
    }

    /// Ends the beats: this life is over.
    pub fn end(&self) {
        self.shared.has_stopped.store(true, Ordering::Release);
        self.task.abort();
        self.shared.links.lock().values().for_each(|link| link.beats.abort());
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.end();
    }
}

async fn run(shared: Arc<Shared>, mut notes: mpsc::UnboundedReceiver<Note>) {
    let env = shared.parts.calls.env.clone();
    loop {
        let note = match select(pin!(notes.recv()), env.sleep(shared.parts.pace.beat / 2)).await {
            Either::Left((Some(note), _)) => Some(note),
            Either::Left((None, _)) => return,
            Either::Right(((), _)) => None,
        };
        if shared.has_stopped.load(Ordering::Acquire) {
            return;
        }
        match note {
            None => {}
            Some(Note::Beat(holder, News::Granted(asked))) => {
                shared.take(Event::Granted(holder, asked));
            }
            Some(Note::Beat(holder, News::Refused(why))) => {
                tracing::debug!(%holder, why, "a holder refuses this life");
                shared.parts.home.doubt(&why);
                shared.take(Event::Refused(holder));
            }
            Some(Note::Chosen(chosen)) => shared.chosen(chosen),
            Some(Note::Written) => shared.take(Event::Written),
            Some(Note::Over(why)) => return shared.parts.home.doubt(&why),
            Some(Note::Met) => {
                let mut choice = shared.choice.lock();
                (choice.not_before, choice.pause) = (env.now(), CHOOSE_PAUSE);
            }
        }
        shared.look();
    }
}

impl Shared {
    /// Takes an event, and carries the commands out.
    fn take(self: &Arc<Self>, event: Event) {
        let now = self.parts.calls.env.now();
        let commands = self.machine.lock().step(now, event);
        for command in commands {
            self.carry_out(command);
        }
    }

    fn carry_out(self: &Arc<Self>, command: Command) {
        let Parts { calls, life, log, home, file_of_copies, .. } = &self.parts;
        let follower =
            |holder: NodeId| self.links.lock().get(&holder).map(|link| link.follower.clone());
        match command {
            Command::Read(reads) => home.read(reads),
            Command::Follow(holder) => {
                tracing::info!(%holder, "copies of the log go to another holder");
                let follower = log.follow(replica(calls, *life, file_of_copies, holder));
                self.link(holder, follower);
            }
            Command::Require(holder) => {
                if let Some(follower) = follower(holder) {
                    follower.require();
                    home.changed();
                }
            }
            Command::Excuse(holder) => {
                if let Some(follower) = follower(holder) {
                    tracing::warn!(%holder, "a holder is behind: no write waits for it");
                    follower.excuse();
                    home.changed();
                }
            }
            Command::Drop(holder) => {
                if let Some(link) = self.links.lock().remove(&holder) {
                    tracing::warn!(%holder, "a holder of copies is lost, or let go");
                    link.beats.abort();
                    link.follower.dismiss();
                }
                self.lost.lock().insert(holder, self.parts.calls.env.now());
                home.changed();
            }
            Command::Record(holders) => {
                let shared = Arc::clone(self);
                self.parts.calls.env.spawn("cluster-record", async move {
                    let note = match shared.parts.home.name(holders).await {
                        Ok(()) => Note::Written,
                        Err(why) => Note::Over(why),
                    };
                    let _ = shared.news.send(note).is_err();
                });
            }
        }
    }

    fn link(self: &Arc<Self>, holder: NodeId, follower: Follower) {
        let Parts { calls, life, pace, .. } = &self.parts;
        let news = self.news.clone();
        let tell = move |one| {
            let _ = news.send(Note::Beat(holder, one)).is_err();
        };
        let beats = beats::beat(Arc::clone(calls), *life, holder, *pace, tell);
        let beats = calls.env.spawn_foreground("cluster-beat", beats);
        let reached = (follower.position(), calls.env.now());
        let goal = (Stand::Following, self.parts.log.committed());
        self.links.lock().insert(holder, Link { follower, beats, goal, reached });
    }

    /// Looks at the time, at the followers, and at the count of the holders.
    fn look(self: &Arc<Self>) {
        self.take(Event::Tick);
        let holders = self.machine.lock().holders().clone();
        for (node, holder) in holders {
            for event in self.look_at(node, holder.stand) {
                self.take(event);
            }
        }
        self.let_draining_go();
        self.choose();
    }

    fn look_at(&self, node: NodeId, stand: Stand) -> Vec<Event> {
        let mut links = self.links.lock();
        let Some(link) = links.get_mut(&node) else { return Vec::new() };
        let Parts { log, calls, pace, .. } = &self.parts;
        let now = calls.env.now();
        let progress = log.progress();
        if std::mem::discriminant(&link.goal.0) != std::mem::discriminant(&stand) {
            let goal = match stand {
                Stand::Following => progress.flash,
                Stand::Required { .. } => progress.appended,
                Stand::Recorded { .. } | Stand::Leaving { .. } => log.begins(),
            };
            (link.goal, link.reached.1) = ((stand, goal), now);
        }
        let position = link.follower.position();
        let has_all = position >= progress.flash;
        if position != link.reached.0 || has_all {
            link.reached = (position, now);
        }
        let is_there = link.follower.is_following() && position >= link.goal.1;
        let mut events = Vec::new();
        if is_there && !stand.is_whole() {
            events.push(Event::CaughtUp(node));
        }
        let is_waited_for = matches!(stand, Stand::Required { .. } | Stand::Recorded { .. });
        if is_waited_for && !has_all && now.since(link.reached.1) > pace.lag {
            link.reached.1 = now;
            events.push(Event::Lags(node));
        }
        events
    }

    fn is_draining(&self, node: NodeId) -> bool {
        let entry = self.parts.calls.roster.find(node);
        entry.is_some_and(|entry| entry.is_draining || entry.is_removed)
    }

    /// Lets a holder go that drains, once there are enough others.
    fn let_draining_go(self: &Arc<Self>) {
        let wanted = self.wanted();
        let mut ready: Vec<NodeId> = {
            let machine = self.machine.lock();
            let ready = machine.holders().iter().filter(|(_, holder)| holder.stand.is_ready());
            ready.map(|(node, _)| *node).collect()
        };
        let draining: Vec<_> = ready.extract_if(.., |node| self.is_draining(*node)).collect();
        if ready.len() >= wanted {
            draining.into_iter().for_each(|node| self.take(Event::Dismissed(node)));
        }
    }

    fn wanted(&self) -> usize {
        self.parts.home.wanted().clamp(1, REPLICAS_MAX)
    }

    /// Looks for another holder, if there are too few.
    fn choose(self: &Arc<Self>) {
        let (staying, room): (Vec<NodeId>, bool) = {
            let machine = self.machine.lock();
            (machine.staying().collect(), machine.holders().len() < REPLICAS_MAX)
        };
        let staying = staying.into_iter().filter(|node| !self.is_draining(*node)).count();
        let now = self.parts.calls.env.now();
        let mut choice = self.choice.lock();
        if staying >= self.wanted() || !room || choice.is_under_way || now < choice.not_before {
            return;
        }
        choice.is_under_way = true;
        let shared = Arc::clone(self);
        self.parts.calls.env.spawn("cluster-choose", async move {
            let chosen = shared.find_holder().await;
            let _ = shared.news.send(Note::Chosen(chosen)).is_err();
        });
    }

    fn chosen(self: &Arc<Self>, chosen: Option<NodeId>) {
        {
            let mut choice = self.choice.lock();
            let now = self.parts.calls.env.now();
            choice.is_under_way = false;
            (choice.not_before, choice.pause) = match chosen {
                Some(_) => (now, CHOOSE_PAUSE),
                None => (now + choice.pause, (choice.pause * 2).min(CHOOSE_PAUSE_MAX)),
            };
        }
        if let Some(node) = chosen {
            self.take(Event::Chosen(node));
        }
    }

    /// Finds the best of a few nodes that may become a holder.
    async fn find_holder(&self) -> Option<NodeId> {
        let Parts { calls, log, domain, spread, .. } = &self.parts;
        let mut known = calls.roster.known();
        if self.candidates(&known).is_empty() {
            let all = calls.env.timeout(ROSTER_TIME_MAX, calls.roster.read_all()).await;
            known = all.ok()?.ok()?;
        }
        let candidates = self.candidates(&known);
        let used: Vec<String> = {
            let machine = self.machine.lock();
            let domain_of = |node: &NodeId| {
                let entry = known.iter().find(|entry| entry.node == *node)?;
                Some(entry.contact.as_ref()?.domain.clone())
            };
            machine.holders().keys().filter_map(domain_of).collect()
        };
        let eligible = choice::eligible(candidates, *spread, (domain, &used));
        let random = |below: usize| (calls.env.random_u64() % below as u64) as usize;
        let drawn = choice::draw(eligible, CANDIDATES, random);
        let offers = drawn.iter().map(async |one| {
            // As it is known, it may have been taken over since: then its host is about to be
            // another node.
            let entry = calls.read(one.node).await.ok()?;
            if self.candidates(&[entry]).is_empty() {
                return None;
            }
            let offer = calls.offer(one.node, OFFER_TIME_MAX).await;
            offer.inspect_err(|why| tracing::debug!(node = %one.node, why, "no holder")).ok()
        });
        let offers = join_all(offers).await;
        let offers: Vec<_> =
            drawn.iter().zip(offers).filter_map(|(one, offer)| Some((one.node, offer?))).collect();
        choice::best(&offers, log.usage().flash_bytes)
    }

    /// The nodes that may become a holder.
    fn candidates(&self, known: &[Arc<Entry>]) -> Vec<Candidate> {
        let Parts { calls, .. } = &self.parts;
        let now = calls.env.now();
        let holders = self.machine.lock().holders().clone();
        let lost = self.lost.lock().clone();
        let is_avoided = |node| lost.get(&node).is_some_and(|lost| now.since(*lost) < AVOID_FOR);
        let may_hold = |entry: &&Arc<Entry>| {
            entry.node == entry.host
                && entry.node != calls.home.node
                && !holders.contains_key(&entry.node)
                && !(entry.is_resting || entry.is_draining || entry.is_removed)
        };
        let candidate = |entry: &Arc<Entry>| {
            let domain = entry.contact.as_ref()?.domain.clone();
            Some(Candidate { node: entry.node, domain })
        };
        let all = known.iter().filter(may_hold);
        let (avoided, fresh): (Vec<_>, Vec<_>) = all.partition(|entry| is_avoided(entry.node));
        let of = |entries: Vec<&Arc<Entry>>| -> Vec<Candidate> {
            entries.into_iter().filter_map(candidate).collect()
        };
        let fresh = of(fresh);
        // One that was lost a moment ago is better than none.
        if fresh.is_empty() { of(avoided) } else { fresh }
    }
}
