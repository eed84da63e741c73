//! The copies of all nodes: which peer may write to which of them, and when they are given up to a
//! log that starts from them.

use crate::copies::{Copies, Failure, absent_is_well, at, refused, replace};
use crate::limits::{NODES_MAX, SPEED_BYTES, SPEED_PIECE};
use crate::machine;
use crate::machine::Pace;
use crate::machine::choice::Offer;
use crate::machine::holder::State as MachineState;
use crate::room::{Room, Speed};
use crate::roster::Entry;
use crate::wire::Message;
use rekindle_base::{Incarnation, Life, NodeId};
use rekindle_env::{BoxFuture, Env, File, FileKind, Moment, Open, Timestamp};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The name of a marker of earlier versions: the copies have been taken over. The store's record
/// says that by now.
const RELEASED: &str = "released";
const LATER_CONNECTION: &str = "this node has a later connection";
const LENT: &str = "this node has been taken over here";

/// Keeps copies of other nodes' logs, each in a folder of its own: `<folder>/<node id>/`.
pub struct Holder {
    env: Env,
    folder: PathBuf,
    room: Arc<Room>,
    speed: Arc<Speed>,
    pace: Pace,
    /// Time for an owner to be heard first.
    patience: Duration,
    nodes: parking_lot::Mutex<BTreeMap<NodeId, Arc<Node>>>,
}

/// The copies of one node's log, as an observer sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldNode {
    pub node: NodeId,
    /// `None` when the copies are not this holder's: another process has them, or the node goes on
    /// here.
    pub held: Option<Held>,
    /// The time at which the node last sent bytes, since the holder's start.
    pub last_copy: Option<Timestamp>,
    /// The part that this holder plays towards the node.
    pub state: machine::holder::State,
    /// Time since the node was heard last; `None`: never since the holder's start.
    pub silence: Option<Duration>,
}

/// The copies that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub bytes: u64,
    pub segments: usize,
    /// The newest life of the node that is known here.
    pub newest: Option<Incarnation>,
}

/// The copies of one node's log.
pub(crate) struct Node {
    /// The promises to the owner. Never held over an await.
    pub(crate) promises: parking_lot::Mutex<machine::holder::Holder>,
    /// Its record, as the last look has shown it.
    pub(crate) seen: parking_lot::Mutex<Option<Arc<Entry>>>,
    state: tokio::sync::Mutex<State>,
}

struct State {
    env: Env,
    node: NodeId,
    folder: PathBuf,
    room: Arc<Room>,
    speed: Arc<Speed>,
    /// Keeps a log from starting from the copies.
    lock: Option<Arc<dyn File>>,
    /// `None` before they are read, after the disk has failed, and while a call runs.
    copies: Option<Copies>,
    /// The node's log runs in the folder.
    is_lent: bool,
    /// Number of the newest session; only that one may call.
    session: u64,
    last_copy: Option<Timestamp>,
}

impl Holder {
    /// Opens the copies below `folder`. Copies that cannot be read, or that another process uses,
    /// are tried again when their owner calls.
    pub async fn open(
        env: &Env,
        folder: &Path,
        budget_bytes: u64,
        (pace, patience): (Pace, Duration),
    ) -> Result<Arc<Holder>, String> {
        let holder = Holder {
            env: env.clone(),
            folder: folder.to_owned(),
            room: Room::new(budget_bytes),
            speed: Arc::default(),
            pace,
            patience,
            nodes: parking_lot::Mutex::default(),
        };
        let opened = holder.open_all().await;
        opened.map(|()| Arc::new(holder)).map_err(|failure| failure.to_string())
    }

    async fn open_all(&self) -> Result<(), Failure> {
        let (disk, folder) = (self.env.disk(), &self.folder);
        disk.create_folder(folder).await.map_err(at(folder))?;
        for above in folder.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            match disk.sync_folder(above).await {
                // A folder that this process may not open is not one that it has made.
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                    return Err(at(above)(error));
                }
                _ => {}
            }
        }
        for (name, kind) in disk.list(folder).await.map_err(at(folder))? {
            let (FileKind::Folder, Ok(node)) = (kind, name.parse()) else { continue };
            let copies = self.node(node)?;
            if let Err(failure) = copies.open().await {
                tracing::warn!(%node, %failure, "copies of a node's log cannot be used now");
            }
        }
        Ok(())
    }

    fn node(&self, node: NodeId) -> Result<Arc<Node>, Failure> {
        let mut nodes = self.nodes.lock();
        if nodes.len() >= NODES_MAX && !nodes.contains_key(&node) {
            return refused("copies of too many nodes are here");
        }
        let new = || {
            let folder = self.folder.join(node.to_string());
            let promises = machine::holder::Holder::begin(self.pace, self.patience, self.env.now());
            Arc::new(Node {
                promises: parking_lot::Mutex::new(promises),
                seen: parking_lot::Mutex::default(),
                state: tokio::sync::Mutex::new(State {
                    env: self.env.clone(),
                    node,
                    folder,
                    room: Arc::clone(&self.room),
                    speed: Arc::clone(&self.speed),
                    lock: None,
                    copies: None,
                    is_lent: false,
                    session: 0,
                    last_copy: None,
                }),
            })
        };
        Ok(Arc::clone(nodes.entry(node).or_insert_with(new)))
    }

    /// The copies of a node, if there are any.
    pub(crate) fn find(&self, node: NodeId) -> Option<Arc<Node>> {
        self.nodes.lock().get(&node).cloned()
    }

    /// The nodes of which copies are here.
    pub(crate) fn nodes(&self) -> Vec<(NodeId, Arc<Node>)> {
        self.nodes.lock().iter().map(|(id, node)| (*id, Arc::clone(node))).collect()
    }

    /// Begins a session of a life that has proved itself. Earlier sessions of its node end.
    pub(crate) async fn session(&self, life: Life) -> Result<Session, String> {
        let begun = async {
            let node = self.node(life.node)?;
            node.admit(life)?;
            node.open().await?;
            let mut state = node.state.lock().await;
            state.session += 1;
            let number = state.session;
            drop(state);
            Ok(Session { node, life, number, has_begun: false })
        };
        begun.await.map_err(|failure: Failure| failure.to_string())
    }

    /// Answers a beat of a life that has proved itself.
    pub(crate) fn grant(&self, life: Life, lease: Duration) -> Result<(), String> {
        let node = self.node(life.node).map_err(|failure| failure.to_string())?;
        let granted = node.promises.lock().grant(life.incarnation, lease, self.env.now());
        granted.map_err(|refusal| refusal.to_string())
    }

    /// Notes that a life has stopped in good order.
    pub(crate) fn rest(&self, life: Life) {
        if let Some(node) = self.find(life.node) {
            node.promises.lock().rest(life.incarnation);
        }
    }

    /// Whether a life is heard here.
    pub(crate) fn hears(&self, life: Life) -> bool {
        let hears = |node: Arc<Node>| node.promises.lock().hears(life.incarnation, self.env.now());
        self.find(life.node).is_some_and(hears)
    }

    /// What this holder can offer to another owner.
    #[must_use]
    pub fn offer(&self) -> Offer {
        let (taken, budget) = self.room.usage();
        Offer { free: budget.saturating_sub(taken), taken, speed: self.speed.bytes_per_second() }
    }

    /// Measures the speed of the flash, before there is any copy to measure it by.
    pub async fn measure(&self) {
        let path = self.folder.join("speed");
        let measured = async {
            let file = self.env.disk().open(&path, Open::Create).await?;
            file.preallocate(SPEED_BYTES).await?;
            let piece = vec![0x5a; SPEED_PIECE];
            for offset in (0..SPEED_BYTES).step_by(SPEED_PIECE) {
                let began = self.env.now();
                file.write_durable(&piece, offset).await?;
                self.speed.measured(SPEED_PIECE, self.env.now().since(began));
            }
            drop(file);
            self.env.disk().remove(&path).await
        };
        if let Err(error) = measured.await {
            tracing::debug!(%error, "the speed of the flash for copies is not known");
        }
    }

    /// The nodes of which copies are here.
    pub async fn list(&self) -> Vec<HeldNode> {
        let mut list = Vec::new();
        for (id, node) in self.nodes() {
            list.push(node.view(id, self.env.now()).await);
        }
        list
    }

    /// Lends a node's folder to its log: waits for the call that runs, and takes none afterwards.
    pub(crate) async fn lend(&self, node: &Node) -> Result<(), String> {
        node.state.lock().await.lend().await.map_err(|failure| failure.to_string())
    }

    /// Takes a folder back that was lent, and that no log uses.
    pub(crate) async fn take_back(&self, node: &Node) {
        node.state.lock().await.is_lent = false;
    }

    /// Claims a node whose last life has begun here. `false`: the watch takes it over, or has done
    /// so.
    #[must_use]
    pub fn claim(&self, node: NodeId, life: Incarnation) -> bool {
        let Some(found) = self.find(node) else { return false };
        let mut promises = found.promises.lock();
        let is_free = !matches!(promises.state(), MachineState::Taking | MachineState::Guest);
        if is_free {
            promises.hosts(life);
        }
        is_free
    }

    /// Notes that this life of a node is begun here: nothing is promised to any other life. Returns
    /// the folder, which no call of an owner writes from now on.
    pub async fn host(&self, node: NodeId, life: Incarnation) -> Result<PathBuf, String> {
        let found = self.node(node).map_err(|failure| failure.to_string())?;
        found.promises.lock().hosts(life);
        self.lend(&found).await?;
        Ok(self.folder.join(node.to_string()))
    }

    /// Notes that the node, which went on here, does so no more. Its log has let go of the folder.
    pub async fn give_back(&self, node: NodeId) {
        let Some(found) = self.find(node) else { return };
        self.take_back(&found).await;
        found.promises.lock().ended();
    }
}

/// Makes the copies of a node's log in `folder`, which no holder uses, ready for a log to start
/// from them. The folder may have been moved, under any name.
pub async fn adopt(env: &Env, folder: &Path, node: NodeId) -> Result<(), String> {
    env.disk().list(folder).await.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut state = State {
        env: env.clone(),
        node,
        folder: folder.to_owned(),
        room: Room::new(0),
        speed: Arc::default(),
        lock: None,
        copies: None,
        is_lent: false,
        session: 0,
        last_copy: None,
    };
    let lent = async {
        state.open().await?;
        state.lend().await
    };
    lent.await.map_err(|failure| failure.to_string())
}

impl Node {
    fn admit(&self, life: Life) -> Result<(), Failure> {
        let admitted = self.promises.lock().admit(life.incarnation);
        admitted.map_err(|refusal| Failure::Refused(refusal.to_string()))
    }

    /// Reads the copies, unless that is done.
    async fn open(&self) -> Result<(), Failure> {
        let mut state = self.state.lock().await;
        state.open().await?;
        let newest = state.copies.as_ref().and_then(Copies::newest).unwrap_or_default();
        self.promises.lock().meet(newest);
        Ok(())
    }

    async fn view(&self, id: NodeId, now: Moment) -> HeldNode {
        let state = self.state.lock().await;
        let promises = self.promises.lock();
        let held = state.copies.as_ref().map(|copies| {
            let (bytes, segments) = copies.size();
            Held { bytes, segments, newest: Some(promises.newest()).filter(|life| life.0 > 0) }
        });
        HeldNode {
            node: id,
            held,
            last_copy: state.last_copy,
            state: promises.state(),
            silence: promises.heard().map(|heard| now.since(heard)),
        }
    }
}

impl State {
    /// Reads the copies, unless that is done, and keeps logs from starting from them.
    async fn open(&mut self) -> Result<(), Failure> {
        if self.is_lent {
            return refused(LENT);
        }
        if self.copies.is_some() {
            return Ok(());
        }
        if self.lock.is_none() {
            self.lock = Some(self.take_lock().await?);
        }
        let marker = self.folder.join(RELEASED);
        absent_is_well(self.env.disk().remove(&marker).await).map_err(at(&marker))?;
        let opened =
            Copies::open(&self.env, self.node, &self.folder, (&self.room, &self.speed)).await;
        // The folder may have been removed, and a lock of a file without a name keeps nothing away.
        let copies = opened.inspect_err(|_| self.lock = None)?;
        self.copies = Some(copies);
        Ok(())
    }

    async fn take_lock(&self) -> Result<Arc<dyn File>, Failure> {
        let flash = self.folder.join("flash");
        let path = flash.join("lock");
        let disk = self.env.disk();
        disk.create_folder(&flash).await.map_err(at(&flash))?;
        for folder in flash.ancestors().take(3) {
            disk.sync_folder(folder).await.map_err(at(folder))?;
        }
        let lock = disk.open(&path, Open::Create).await.map_err(at(&path))?;
        if lock.try_lock().map_err(at(&path))? {
            Ok(lock)
        } else {
            refused("another rekindle uses these copies")
        }
    }

    async fn lend(&mut self) -> Result<(), Failure> {
        if let Some(mut copies) = self.copies.take() {
            copies.give_up_sync().await?;
        }
        (self.is_lent, self.lock) = (true, None);
        Ok(())
    }
}

/// One connection of a node's life.
pub(crate) struct Session {
    node: Arc<Node>,
    life: Life,
    number: u64,
    has_begun: bool,
}

impl Session {
    /// Carries out a request, and returns what its reply says.
    pub(crate) fn call<'a>(
        &'a mut self,
        request: &'a Message<'a>,
    ) -> BoxFuture<'a, Result<u32, String>> {
        Box::pin(async move {
            let mut state = self.node.state.lock().await;
            let who = (self.life, self.number);
            let done = match self.node.admit(self.life) {
                Ok(()) => Self::act(&mut state, who, &mut self.has_begun, request).await,
                Err(refusal) => Err(refusal),
            };
            done.map_err(|failure| failure.to_string())
        })
    }

    async fn act(
        state: &mut State,
        (life, number): (Life, u64),
        has_begun: &mut bool,
        request: &Message<'_>,
    ) -> Result<u32, Failure> {
        if state.is_lent {
            return refused(LENT);
        }
        if number != state.session {
            return refused(LATER_CONNECTION);
        }
        match request {
            Message::Ping => return Ok(0),
            Message::Home(home) => {
                replace(&state.env, &state.folder, "node.json", home).await?;
                return Ok(0);
            }
            Message::Begin => {
                state.open().await?;
                *has_begun = true;
            }
            _ if !*has_begun => return refused("a connection begins with a sync"),
            _ => {}
        }
        let Some(mut copies) = state.copies.take() else {
            return Err(Failure::Disk("the disk has failed: a sync must begin".to_owned()));
        };
        // A call that is broken off, or that the disk fails, leaves none: they are read again.
        let done = match request {
            Message::Begin => copies.begin(life.incarnation).await.map(|()| 0),
            Message::Open(new) => copies.take(new).await,
            Message::Copy { segment, offset, bytes } => {
                state.last_copy = Some(state.env.wall_clock());
                copies.copy(*segment, *offset, bytes).await.map(|()| 0)
            }
            Message::Seal { segment, tail } => copies.seal(*segment, tail).await.map(|()| 0),
            Message::Keep { head, kept } => copies.keep(*head, kept).await.map(|()| 0),
            Message::Free(segment) => copies.free(*segment).await.map(|()| 0),
            _ => refused("this is no request"),
        };
        match &done {
            Err(Failure::Disk(_)) => *has_begun = false,
            _ => state.copies = Some(copies),
        }
        done
    }
}
