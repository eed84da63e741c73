//! A device in memory with changeable behaviour, a shelf of such devices, and a client with just
//! enough NBD.

use super::meters::VolumeMeters;
use super::target::{ExportError, Exports, Target};
use super::wire::chunk;
use crate::conn::BUDGET_BYTES_DEFAULT;
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_block::Gathered;
use rekindle_env::{Address, BoxFuture, Env, Net, Stream};
use rekindle_nbd_client::wire::{self, Body, Head, option, reply};
pub(crate) use rekindle_nbd_client::wire::{header, meta, number, query};
use rekindle_staging::{Extent, Quantum, Ticket, Written};
use rekindle_volume::Error;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

/// The way in which a [`Memory`] takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whim {
    /// Acknowledges at once.
    Acked,
    /// Needs a sync, as a write in the log does.
    NeedsSync,
    /// Waits for the gate.
    Pending,
}

/// A device in memory.
#[derive(Clone)]
pub(crate) struct Memory(Arc<DeviceState>);

pub(crate) struct DeviceState {
    bytes: Mutex<Vec<u8>>,
    pub(crate) whim: Mutex<Whim>,
    /// Reads miss.
    pub(crate) cold: AtomicBool,
    /// Every call fails.
    pub(crate) broken: AtomicBool,
    /// Slow calls take a permit each.
    pub(crate) gate: Semaphore,
    /// Syncs and flushes are slow.
    pub(crate) slow_syncs: AtomicBool,
    /// Questions for extents are slow.
    pub(crate) slow_extents: AtomicBool,
    /// Syncs and flushes fail.
    pub(crate) failing_syncs: AtomicBool,
    /// Bytes that a session may have under way without a quantum.
    pub(crate) free_bytes: AtomicU64,
    /// Each quantum takes a permit.
    pub(crate) quanta: Semaphore,
    /// Slow reads, and writes, that have begun.
    begun: AtomicUsize,
    pub(crate) syncs: AtomicUsize,
    pub(crate) flushes: AtomicUsize,
    pub(crate) durable: AtomicUsize,
    /// Attaching waits for the gate.
    pub(crate) away: AtomicBool,
    pub(crate) meters: Arc<VolumeMeters>,
}

impl std::ops::Deref for Memory {
    type Target = DeviceState;
    fn deref(&self) -> &DeviceState {
        &self.0
    }
}

impl Memory {
    pub(crate) fn new(size: usize) -> Self {
        Self(Arc::new(DeviceState {
            bytes: Mutex::new(vec![0; size]),
            whim: Mutex::new(Whim::NeedsSync),
            cold: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            gate: Semaphore::new(1_000_000),
            slow_syncs: AtomicBool::new(false),
            slow_extents: AtomicBool::new(false),
            failing_syncs: AtomicBool::new(false),
            free_bytes: AtomicU64::new(u64::MAX),
            quanta: Semaphore::new(0),
            begun: AtomicUsize::new(0),
            syncs: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
            durable: AtomicUsize::new(0),
            away: AtomicBool::new(false),
            meters: Arc::default(),
        }))
    }

    /// Changes the size.
    pub(crate) fn resize(&self, size: usize) {
        self.bytes.lock().resize(size, 0);
    }

    /// Makes slow calls wait for permits that the test adds.
    pub(crate) fn close_gate(&self) {
        self.gate.forget_permits(usize::MAX >> 4);
    }

    /// Count of the reads and writes that have begun.
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Waits until so many slow reads and writes have begun.
    pub(crate) async fn has_begun(&self, env: &Env, count: usize) {
        while self.begun.load(Ordering::Relaxed) < count {
            env.sleep(Duration::from_millis(1)).await;
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::Invalid("the device is broken".to_owned()));
        }
        Ok(())
    }

    async fn finish_sync(&self) -> Result<(), Error> {
        if self.slow_syncs.load(Ordering::Relaxed) {
            self.gate.acquire().await.unwrap().forget();
        }
        if self.failing_syncs.load(Ordering::Relaxed) {
            return Err(Error::Invalid("the sync failed".to_owned()));
        }
        self.check()
    }

    fn put(
        &self,
        offset: u64,
        data: impl ExactSizeIterator<Item = u8>,
        durable: bool,
    ) -> Result<Written, Error> {
        self.check()?;
        let start = usize::try_from(offset).unwrap();
        let mut bytes = self.bytes.lock();
        let place = start..start + data.len();
        bytes[place].iter_mut().zip(data).for_each(|(place, byte)| *place = byte);
        if durable {
            self.durable.fetch_add(1, Ordering::Relaxed);
        }
        let state = self.0.clone();
        Ok(match *self.whim.lock() {
            Whim::Acked => Written::Acked,
            Whim::NeedsSync => Written::NeedsSync(Ticket::default()),
            Whim::Pending => Written::Pending(Box::pin(async move {
                state.gate.acquire().await.unwrap().forget();
                Ok(())
            })),
        })
    }
}

impl Target for Memory {
    fn size(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
    fn block_size(&self) -> u64 {
        16384
    }
    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        self.check()?;
        if self.cold.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let start = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.bytes.lock()[start..start + out.len()]);
        Ok(true)
    }
    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.gate.acquire().await.unwrap().forget();
        let start = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.bytes.lock()[start..start + out.len()]);
        Ok(())
    }
    fn admits(&self, under_way: u64, bytes: u64) -> bool {
        under_way + bytes <= self.free_bytes.load(Ordering::Relaxed)
    }
    async fn quantum(&self) -> Quantum {
        self.quanta.acquire().await.unwrap().forget();
        Quantum::free()
    }
    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.put(offset, data.iter().copied(), durable)
    }
    fn all(&self, gathered: Gathered) -> Written {
        match gathered {
            Gathered::Acked => Written::Acked,
            Gathered::NeedsSync(ticket) => Written::NeedsSync(ticket),
            Gathered::Pending(_, later) => Written::Pending(Box::pin(async {
                futures_util::future::join_all(later).await.into_iter().collect()
            })),
        }
    }
    fn clear(
        &self,
        offset: u64,
        length: u64,
        _trim: bool,
        durable: bool,
    ) -> Result<Written, Error> {
        self.put(offset, std::iter::repeat_n(0, usize::try_from(length).unwrap()), durable)
    }
    async fn sync(&self, _ticket: Ticket) -> Result<(), Error> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.finish_sync().await
    }
    async fn flush(&self) -> Result<(), Error> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.finish_sync().await
    }
    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        self.check()?;
        if self.slow_extents.load(Ordering::Relaxed) {
            self.gate.acquire().await.unwrap().forget();
        }
        let bytes = self.bytes.lock();
        let pages = (offset / 4096)..(offset + length).div_ceil(4096);
        let extents = pages.map(|page| {
            let from = (page * 4096).max(offset);
            let to = ((page + 1) * 4096).min(offset + length);
            let range = usize::try_from(from).unwrap()..usize::try_from(to).unwrap();
            Extent {
                position: from,
                span: to - from,
                data: bytes[range].iter().any(|&byte| byte != 0),
            }
        });
        Ok(extents.collect())
    }
}

/// Exports by name.
pub(crate) struct Shelf(pub(crate) BTreeMap<String, Memory>);

impl Shelf {
    pub(crate) fn of(exports: &[(&str, &Memory)]) -> Arc<Self> {
        let exports = exports.iter().map(|&(name, memory)| (name.to_owned(), memory.clone()));
        Arc::new(Self(exports.collect()))
    }
}

impl Exports for Shelf {
    type Device = Memory;
    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, ExportError>> {
        let names = self.0.keys().cloned().collect();
        Box::pin(async { Ok(names) })
    }
    fn meters(&self, device: &Memory) -> Arc<VolumeMeters> {
        device.meters.clone()
    }
    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Memory, ExportError>> {
        Box::pin(async move {
            let message = format!("no volume is called '{name}'");
            let found = self.0.get(name).ok_or(ExportError { kind: Kind::NotFound, message })?;
            if found.away.load(Ordering::Relaxed) {
                found.gate.acquire().await.unwrap().forget();
            }
            Ok(found.clone())
        })
    }
}

/// A client of the server under test.
pub(crate) struct Client {
    pub(crate) stream: Box<dyn Stream>,
    next: u64,
}

/// A reply of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    /// 0 is success.
    pub(crate) errno: u32,
    /// Type of the chunk; `None` in a simple reply.
    pub(crate) chunk: Option<u16>,
    /// The data, without offset, error number and the like.
    pub(crate) data: Vec<u8>,
}

impl Client {
    /// Connects and answers the greeting.
    pub(crate) async fn connect(env: &Env, address: &Address) -> Self {
        let net: &dyn Net = env.net();
        let mut client = Self { stream: net.connect(address).await.unwrap(), next: 1 };
        let greeting = client.take(18).await;
        assert_eq!(greeting[..16], wire::GREETING);
        client.send(&[&[0, 0, 0, 3]]).await;
        client
    }

    /// Connects to an export, with all modes.
    pub(crate) async fn open(env: &Env, address: &Address, name: &str) -> Self {
        let mut client = Self::connect(env, address).await;
        assert_eq!(client.option(option::STRUCTURED_REPLY, &[]).await, [(reply::ACK, vec![])]);
        let context = meta(name, &[wire::BASE_ALLOCATION]);
        assert_eq!(client.option(option::SET_META_CONTEXT, &context).await.len(), 2);
        let replies = client.option(option::GO, &query(name, &[])).await;
        assert_eq!(replies.last().unwrap().0, reply::ACK);
        client
    }

    pub(crate) async fn send(&mut self, parts: &[&[u8]]) {
        self.stream.write_all(&parts.concat()).await.unwrap();
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Whether no byte arrives for a while.
    pub(crate) async fn is_silent(&mut self, env: &Env) -> bool {
        env.timeout(Duration::from_secs(3), self.stream.read(&mut [0])).await.is_err()
    }

    /// Whether the server has hung up.
    pub(crate) async fn is_dropped(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
    }

    /// Sends an option and takes its replies up to the last.
    pub(crate) async fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&[&wire::option(option, data)]).await;
        let mut replies = Vec::new();
        loop {
            let head = self.take(20).await.try_into().unwrap();
            let (kind, length) = wire::option_reply(&head, option).unwrap();
            replies.push((kind, self.take(usize::try_from(length).unwrap()).await));
            if wire::is_last(kind) {
                return replies;
            }
        }
    }

    /// Sends a request; returns its cookie.
    pub(crate) async fn request(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> u64 {
        let cookie = self.next;
        self.next += 1;
        self.send(&[&header(command, flags, cookie, offset, length), data]).await;
        cookie
    }

    /// Takes the next reply; `length` counts the data behind a simple one.
    pub(crate) async fn reply(&mut self, length: usize) -> Reply {
        self.whole_reply(length).await.unwrap()
    }

    /// As [`Client::reply`]; `None` when the server hangs up instead.
    pub(crate) async fn whole_reply(&mut self, length: usize) -> Option<Reply> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head[..4]).await.ok()?;
        self.stream.read_exact(&mut head[4..]).await.unwrap();
        let Head { cookie, body } = wire::reply_head(&head).unwrap();
        Some(match body {
            Body::Simple { error } => {
                let data = if error == 0 { self.take(length).await } else { Vec::new() };
                Reply { cookie, errno: error, chunk: None, data }
            }
            Body::Chunk { is_last, kind } => {
                assert!(is_last, "the last chunk");
                let length = number(&self.take(4).await);
                let data = self.take(usize::try_from(length).unwrap()).await;
                let (errno, skip) = match kind {
                    chunk::ERROR => (u32::try_from(number(&data[..4])).unwrap(), 6),
                    chunk::OFFSET_DATA => (0, 8),
                    chunk::BLOCK_STATUS => (0, 4),
                    _ => (0, 0),
                };
                Reply { cookie, errno, chunk: Some(kind), data: data[skip..].to_vec() }
            }
        })
    }

    /// Sends one request and takes its reply.
    pub(crate) async fn call(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Reply {
        let cookie = self.request(command, flags, offset, length, data).await;
        let reply = self.reply(0).await;
        assert_eq!(reply.cookie, cookie);
        reply
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) env: Env,
    pub(crate) address: Address,
    pub(crate) connections: crate::conn::Connections,
}

impl Server {
    async fn start(env: &Env, address: Address, exports: &Arc<Shelf>, budget: usize) -> Self {
        let connections = crate::conn::Connections::with_budget("nbd", 16, budget);
        let acceptor = env.net().listen(&address).await.unwrap();
        env.spawn(
            "nbd-accept",
            super::serve(env.clone(), acceptor, exports.clone(), connections.clone()),
        );
        Self { env: env.clone(), address, connections }
    }

    /// Opens one more listener.
    pub(crate) async fn listen(&self, address: &str, exports: &Arc<Shelf>) -> Address {
        let (env, address) = (self.env.clone(), address.parse().unwrap());
        let acceptor = env.net().listen(&address).await.unwrap();
        let (exports, connections) = (exports.clone(), self.connections.clone());
        env.spawn("nbd-accept", super::serve(self.env.clone(), acceptor, exports, connections));
        address
    }

    async fn stop(self) {
        let grace = std::time::Duration::from_secs(5);
        assert_eq!(self.connections.stop(&self.env, grace).await, 0);
    }
}

/// Runs `story` against a server of `exports` on this machine.
pub(crate) fn with_server(exports: &Arc<Shelf>, story: impl AsyncFnOnce(&Server)) {
    let (env, runtime) = rekindle_env::real::env().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("nbd"));
    runtime.block_on(async {
        let server = Server::start(&env, address, exports, BUDGET_BYTES_DEFAULT).await;
        story(&server).await;
        server.stop().await;
    });
}

/// Runs `story` against a server in a simulated world, where bytes come in pieces of any size and
/// time costs nothing.
pub(crate) fn with_simulated_server(
    seed: u64,
    exports: &Arc<Shelf>,
    story: impl AsyncFnOnce(&Server),
) {
    with_budget(seed, BUDGET_BYTES_DEFAULT, exports, story);
}

/// Runs `story` in a simulated world with this budget of bytes for all sessions together.
pub(crate) fn with_budget(
    seed: u64,
    budget_bytes: usize,
    exports: &Arc<Shelf>,
    story: impl AsyncFnOnce(&Server),
) {
    let world = rekindle_env::sim::World::new(seed, rekindle_env::sim::Faults::none());
    let env = world.env();
    world.block_on(async {
        let address = Address::Unix("/run/nbd".into());
        let server = Server::start(&env, address, exports, budget_bytes).await;
        story(&server).await;
        server.stop().await;
    });
}
