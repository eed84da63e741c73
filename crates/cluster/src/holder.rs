//! The copies of all nodes: which peer may write to which of them, and when they are given up to a
//! log that starts from them.

use crate::copies::{Copies, Failure, at, refused, replace};
use crate::limits::NODES_MAX;
use crate::room::Room;
use crate::wire::Message;
use rekindle_base::{Incarnation, Life, NodeId};
use rekindle_env::{BoxFuture, Env, File, FileKind, Open, Timestamp};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the marker that copies have been taken over.
const RELEASED: &str = "released";
const TAKEN_OVER: &str = "these copies have been taken over";
const NEWER_LIFE: &str = "a newer life of this node has copies here";
const LATER_CONNECTION: &str = "this node has a later connection";

/// Keeps copies of other nodes' logs, each in a folder of its own: `<folder>/<node id>/`.
pub struct Holder {
    env: Env,
    folder: PathBuf,
    room: Arc<Room>,
    nodes: parking_lot::Mutex<BTreeMap<NodeId, Arc<Node>>>,
}

/// The copies of one node's log, as an observer sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldNode {
    pub node: NodeId,
    /// `None` when the copies are not this holder's: another process has them, or they have been
    /// taken over.
    pub held: Option<Held>,
    /// The time at which the node last sent bytes, since the holder's start.
    pub last_copy: Option<Timestamp>,
    /// The copies have been taken over.
    pub is_released: bool,
}

/// The copies that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub bytes: u64,
    pub segments: usize,
    /// The newest life of the node that is known here.
    pub newest: Option<Incarnation>,
}

type Node = tokio::sync::Mutex<State>;

struct State {
    env: Env,
    node: NodeId,
    folder: PathBuf,
    room: Arc<Room>,
    /// Keeps a log from starting from the copies.
    lock: Option<Arc<dyn File>>,
    /// `None` before they are read, after the disk has failed, and while a call runs.
    copies: Option<Copies>,
    is_released: bool,
    newest: Incarnation,
    /// Number of the newest session; only that one may call.
    session: u64,
    last_copy: Option<Timestamp>,
}

impl Holder {
    /// Opens the copies below `folder`. Copies that cannot be read, or that another process uses,
    /// are tried again when their owner calls.
    pub async fn open(env: &Env, folder: &Path, budget_bytes: u64) -> Result<Arc<Holder>, String> {
        let opened = Self::open_all(env, folder, budget_bytes).await;
        opened.map(Arc::new).map_err(|failure| failure.to_string())
    }

    async fn open_all(env: &Env, folder: &Path, budget_bytes: u64) -> Result<Holder, Failure> {
        let disk = env.disk();
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
        let holder = Holder {
            env: env.clone(),
            folder: folder.to_owned(),
            room: Room::new(budget_bytes),
            nodes: parking_lot::Mutex::default(),
        };
        for (name, kind) in disk.list(folder).await.map_err(at(folder))? {
            let (FileKind::Folder, Ok(node)) = (kind, name.parse()) else { continue };
            let copies = holder.node(node)?;
            if let Err(failure) = copies.lock().await.open().await {
                tracing::warn!(%node, %failure, "copies of a node's log cannot be used now");
            }
        }
        Ok(holder)
    }

    fn node(&self, node: NodeId) -> Result<Arc<Node>, Failure> {
        let mut nodes = self.nodes.lock();
        if nodes.len() >= NODES_MAX && !nodes.contains_key(&node) {
            return refused("copies of too many nodes are here");
        }
        let state = || State::new(&self.env, node, &self.folder.join(node.to_string()), &self.room);
        let found = nodes.entry(node).or_insert_with(|| Arc::new(Node::new(state())));
        Ok(Arc::clone(found))
    }

    /// Begins a session of a life that has proved itself. Earlier sessions of its node end.
    pub(crate) async fn session(&self, life: Life) -> Result<Session, String> {
        let begun = async {
            let node = self.node(life.node)?;
            let mut state = node.lock().await;
            state.open().await?;
            if life.incarnation < state.newest {
                return refused(NEWER_LIFE);
            }
            state.newest = life.incarnation;
            state.session += 1;
            let number = state.session;
            drop(state);
            Ok(Session { node, life, number, has_begun: false })
        };
        begun.await.map_err(|failure| failure.to_string())
    }

    /// Ends the holding of a node's copies for ever: from now on a log may start from them, and the
    /// node's calls are refused.
    pub async fn release(&self, node: NodeId) -> Result<(), String> {
        let found = self.nodes.lock().get(&node).cloned();
        let found = found.ok_or_else(|| {
            format!("there are no copies of node {node} here: see `rekindle copies ls`")
        })?;
        let mut state = found.lock().await;
        state.release().await.map_err(|failure| failure.to_string())
    }

    /// The nodes of which copies are here.
    pub async fn list(&self) -> Vec<HeldNode> {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        let mut list = Vec::with_capacity(nodes.len());
        for node in nodes {
            list.push(node.lock().await.view());
        }
        list
    }
}

/// Makes the copies of a node's log in `folder`, which no holder uses, ready for a log to start
/// from them: [`Holder::release`] without a holder. The folder may have been moved, under any name.
pub async fn adopt(env: &Env, folder: &Path, node: NodeId) -> Result<(), String> {
    env.disk().list(folder).await.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut state = State::new(env, node, folder, &Room::new(0));
    state.release().await.map_err(|failure| failure.to_string())
}

impl State {
    fn new(env: &Env, node: NodeId, folder: &Path, room: &Arc<Room>) -> State {
        State {
            env: env.clone(),
            node,
            folder: folder.to_owned(),
            room: Arc::clone(room),
            lock: None,
            copies: None,
            is_released: false,
            newest: Incarnation(0),
            session: 0,
            last_copy: None,
        }
    }

    /// Reads the copies, unless that is done, and keeps logs from starting from them.
    async fn open(&mut self) -> Result<(), Failure> {
        if self.is_released {
            return refused(TAKEN_OVER);
        }
        if self.copies.is_some() {
            return Ok(());
        }
        if self.lock.is_none() && !self.has_marker().await? {
            self.lock = Some(self.take_lock().await?);
        }
        // Another process may have released the copies before this one had the lock.
        if self.has_marker().await? {
            (self.is_released, self.lock) = (true, None);
            return refused(TAKEN_OVER);
        }
        let opened = Copies::open(&self.env, self.node, &self.folder, &self.room).await;
        // The folder may have been removed, and a lock of a file without a name keeps nothing away.
        let copies = opened.inspect_err(|_| self.lock = None)?;
        self.newest = self.newest.max(copies.newest().unwrap_or_default());
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

    async fn has_marker(&self) -> Result<bool, Failure> {
        let path = self.folder.join(RELEASED);
        match self.env.disk().open(&path, Open::Read).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(at(&path)(error)),
        }
    }

    async fn release(&mut self) -> Result<(), Failure> {
        match self.open().await {
            Err(Failure::Refused(why)) if why == TAKEN_OVER => return Ok(()),
            opened => opened?,
        }
        let Some(mut copies) = self.copies.take() else { return Ok(()) };
        copies.give_up_sync().await?;
        replace(&self.env, &self.folder, RELEASED, TAKEN_OVER.as_bytes()).await?;
        (self.is_released, self.lock) = (true, None);
        Ok(())
    }

    fn view(&self) -> HeldNode {
        let held = self.copies.as_ref().map(|copies| {
            let (bytes, segments) = copies.size();
            Held { bytes, segments, newest: Some(self.newest).filter(|life| life.0 > 0) }
        });
        HeldNode { node: self.node, held, last_copy: self.last_copy, is_released: self.is_released }
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
            let mut state = self.node.lock().await;
            let who = (self.life, self.number);
            let done = Self::act(&mut state, who, &mut self.has_begun, request);
            done.await.map_err(|failure| failure.to_string())
        })
    }

    async fn act(
        state: &mut State,
        (life, number): (Life, u64),
        has_begun: &mut bool,
        request: &Message<'_>,
    ) -> Result<u32, Failure> {
        if state.is_released {
            return refused(TAKEN_OVER);
        }
        if life.incarnation < state.newest {
            return refused(NEWER_LIFE);
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
