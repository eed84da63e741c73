//! Tests of copies over the network: an owner with a log, and a holder on another host.

mod attacks;
mod crashes;
mod formats;
mod forwarding;
mod holding;
mod real;

use crate::hello::Identity;
use crate::machine::Pace;
use crate::roster::{Contact, Entry, HolderSet, Roster};
use crate::{Calls, Channel, Desk, Holder, Peer, Secret, serve};
use parking_lot::Mutex;
use rekindle_base::{Generation, Incarnation, Life, NodeId, Serial, StoreId, VolumeId};
use rekindle_env::sim::{Faults, Host, World};
use rekindle_env::{Address, BoxFuture, Env, Open};
use rekindle_log::{Append, Change, Config, Log, Media, NewSegment, Position, Refused, Replica};
use rekindle_warm::Arena;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const OWNER: NodeId = NodeId([9; 16]);
const HOLDER: NodeId = NodeId([7; 16]);
const STORE: StoreId = StoreId([5; 16]);
const SECRET: Secret = Secret([42; 32]);
const VOLUME: VolumeId = VolumeId([1; 16]);
const SEGMENT: u32 = 32 << 10;
const SEGMENTS: u64 = 8;
const COPIES: Media = Media { flash: true, copies: 1 };
const HELD: &str = "/held";
const HOME: &[u8] = b"{\"rekindle\":\"node\"}";
const BUDGET: u64 = 64 * SEGMENT as u64;
const SHORT: Duration = Duration::from_millis(100);

fn address() -> Address {
    "tcp:10.0.0.2:7000".parse().expect("an address")
}

fn life(node: NodeId, incarnation: u64) -> Life {
    Life { node, incarnation: Incarnation(incarnation) }
}

/// The identity of the owner's first life.
fn identity() -> Identity {
    Identity { secret: SECRET, store: STORE, life: life(OWNER, 1), binding: [0; 32] }
}

/// The record of a node at home.
fn entry(node: NodeId, incarnation: u64, address: Address) -> Entry {
    let (domain, name) = (String::new(), format!("{node}").split_off(30));
    Entry {
        node,
        incarnation: Incarnation(incarnation),
        host: node,
        contact: Some(Contact { address, domain, name, pins: Vec::new() }),
        holders: HolderSet::default(),
        is_resting: false,
        is_draining: false,
        is_removed: false,
    }
}

/// Records of nodes, which all hosts read at once.
#[derive(Default)]
struct Records(Mutex<BTreeMap<NodeId, Arc<Entry>>>);

impl Records {
    fn new() -> Arc<Records> {
        let records = Records::default();
        records.put(entry(HOLDER, 3, address()));
        records.put(entry(OWNER, 1, "tcp:10.0.0.1:7000".parse().expect("an address")));
        Arc::new(records)
    }

    fn put(&self, entry: Entry) {
        self.0.lock().insert(entry.node, Arc::new(entry));
    }

    fn change(&self, node: NodeId, change: impl FnOnce(&mut Entry)) {
        let mut records = self.0.lock();
        change(Arc::make_mut(records.get_mut(&node).expect("there is a record")));
    }
}

impl Roster for Records {
    fn known(&self) -> Vec<Arc<Entry>> {
        self.0.lock().values().cloned().collect()
    }

    fn read(&self, node: NodeId) -> BoxFuture<'_, Result<Option<Arc<Entry>>, String>> {
        Box::pin(async move { Ok(self.0.lock().get(&node).cloned()) })
    }

    fn read_all(&self) -> BoxFuture<'_, Result<Vec<Arc<Entry>>, String>> {
        Box::pin(async { Ok(self.known()) })
    }
}

fn calls(env: &Env, home: Life, roster: Arc<dyn Roster>) -> Calls {
    let channel = Channel::Plain;
    Calls {
        env: env.clone(),
        secret: SECRET,
        store: STORE,
        channel,
        roster,
        home,
        former: Vec::new(),
    }
}

fn desk(calls: Calls, holder: Arc<Holder>) -> Arc<Desk> {
    let drain = Box::new(|_| -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Err("not here".to_owned()) })
    });
    let (met, volumes) = (Box::new(|| {}), Arc::new(Shelf));
    Arc::new(Desk { calls: Arc::new(calls), holder, met, drain, volumes })
}

async fn open_holder(env: &Env, folder: &Path, budget: u64) -> Result<Arc<Holder>, String> {
    let pace = Pace::default();
    Holder::open(env, folder, budget, (pace, pace.suspect)).await
}

fn held(node: NodeId) -> PathBuf {
    Path::new(HELD).join(node.to_string())
}

/// A world with the hosts of an owner and of a holder that serves.
struct Pair {
    world: World,
    owner: Host,
    holder: Host,
    serving: Arc<Mutex<Option<Arc<Holder>>>>,
    records: Arc<Records>,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let world = World::new(seed, Faults::none());
        let (owner, holder) = (world.host("owner"), world.host("holder"));
        let pair = Pair { world, owner, holder, serving: Arc::default(), records: Records::new() };
        pair.serve(BUDGET);
        pair
    }

    /// Starts the holder's process.
    fn serve(&self, budget: u64) {
        let env = self.holder.env();
        let (serving, inner) = (Arc::clone(&self.serving), env.clone());
        let calls = calls(&env, life(HOLDER, 3), self.records.clone());
        *serving.lock() = None;
        env.spawn("holder", async move {
            let holder = loop {
                // Its disk may have failed on purpose.
                match open_holder(&inner, Path::new(HELD), budget).await {
                    Ok(holder) => break holder,
                    Err(_) => inner.sleep(SHORT).await,
                }
            };
            let acceptor = inner.net().listen(&address()).await.expect("nothing listens there");
            *serving.lock() = Some(Arc::clone(&holder));
            serve(acceptor, desk(calls, holder)).await;
        });
    }

    /// The holder that serves.
    async fn holder(&self) -> Arc<Holder> {
        loop {
            if let Some(holder) = &*self.serving.lock() {
                return Arc::clone(holder);
            }
            self.world.env().sleep(SHORT / 100).await;
        }
    }

    /// The replica of the owner's life with this number, which its record names from now on.
    fn peer(&self, incarnation: u64) -> Peer {
        self.records.change(OWNER, |entry| entry.incarnation = Incarnation(incarnation));
        self.peer_as(life(OWNER, incarnation), |calls| calls)
    }

    fn peer_as(&self, life: Life, change: impl FnOnce(Calls) -> Calls) -> Peer {
        let calls = change(calls(&self.owner.env(), life, self.records.clone()));
        Peer::new(&Arc::new(calls), life, HOLDER, HOME.to_vec())
    }

    fn kill_holder(&self, power: bool) {
        *self.serving.lock() = None;
        if power { self.holder.cut_power() } else { self.holder.crash_process() }
    }
}

/// Bytes that identify their change.
fn payload(serial: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (serial * 31 + at * 7 + at / 251) as u8).collect()
}

async fn append(log: &Log, serial: u64, length: usize) -> Position {
    let bytes = payload(serial, length);
    let change = Append {
        volume: VOLUME,
        generation: Generation(1),
        serial: Serial(serial),
        change: Change::Write,
        joined: false,
        position: serial * 512,
        span: length as u64,
        payload: &bytes,
    };
    loop {
        match log.append(&[change]) {
            Ok((position, _)) => return position,
            Err(Refused::HeadFull) => log.roll(length).await.expect("the log is well"),
            Err(Refused::Malformed(why)) => panic!("{why}"),
        }
    }
}

/// Opens a log in a folder.
async fn open_log(
    env: &Env,
    folder: &Path,
    life: u64,
    replicas: Vec<Arc<dyn Replica>>,
) -> Result<Log, rekindle_log::Error> {
    let config = Config {
        folder: folder.to_owned(),
        node: OWNER,
        flash_bytes: SEGMENTS * u64::from(SEGMENT),
        flush_interval: SHORT / 5,
    };
    let memory = Path::new("/memory/warm");
    let arena = Arena::open_sized(env, memory, OWNER, 4, SEGMENT).expect("memory");
    let found = Log::find(env, arena, config, true, None).await?.with_replicas(replicas);
    let (log, opened) = found.open(Incarnation(life)).await?;
    assert_eq!(opened.damage, Vec::<String>::new());
    Ok(log)
}

/// The serials that a log has recovered, each verified.
async fn recovered(log: &Log) -> Vec<u64> {
    let mut serials = Vec::new();
    for one in log.unfinished(VOLUME).await.expect("nothing is lost") {
        let mut bytes = vec![0; one.place.length() as usize];
        one.place.read(0, &mut bytes).await.expect("the payload is whole");
        assert_eq!(bytes, payload(one.serial.0, bytes.len()), "payload of {}", one.serial);
        serials.push(one.serial.0);
    }
    serials
}

/// Images of some segments, sealed ones and at last a head, as a log writes them.
fn images() -> Vec<(NewSegment, Vec<u8>)> {
    images_of(77)
}

fn images_of(seed: u64) -> Vec<(NewSegment, Vec<u8>)> {
    let world = World::new(seed, Faults::none());
    let env = world.env();
    world.block_on(async {
        let log = open_log(&env, Path::new("/flash"), 1, Vec::new()).await.expect("a log");
        for serial in 1..=40 {
            let position = append(&log, serial, 3000).await;
            log.reach(Media::FLASH, position).await.expect("flash is well");
        }
        env.sleep(SHORT).await;
    });
    let files = (1..=SEGMENTS + 4).filter_map(|file| world.peek(format!("/flash/{file:08}.seg")));
    let mut images: Vec<(NewSegment, Vec<u8>)> =
        files.filter_map(|bytes| Some((NewSegment::read(&bytes)?, bytes))).collect();
    images.sort_by_key(|(new, _)| new.segment);
    // The next head may have been opened ahead.
    let sealed = images.iter().filter(|image| is_sealed(image)).count();
    images.truncate(sealed + 1);
    assert!(images.len() >= 4, "{}", images.len());
    images
}

fn is_sealed((new, bytes): &(NewSegment, Vec<u8>)) -> bool {
    new.is_sealed(&bytes[bytes.len() - NewSegment::FOOT_BYTES..])
}

/// Copies a segment as a log's copier does, a bit at a time.
async fn send(peer: &Peer, image: &(NewSegment, Vec<u8>)) -> Result<(), String> {
    let (new, bytes) = image;
    let has = peer.open(new).await?;
    let end = new.capacity - NewSegment::FOOT_BYTES as u32;
    let mut offset = has.min(end);
    while offset < end {
        let next = end.min(offset + 9000);
        peer.copy(new.segment, offset, &bytes[offset as usize..next as usize]).await?;
        offset = next;
    }
    if is_sealed(image) { peer.seal(new.segment, &bytes[end as usize..]).await } else { Ok(()) }
}

async fn read(env: &Env, path: &Path) -> Option<Vec<u8>> {
    let file = env.disk().open(path, Open::Read).await.ok()?;
    let mut bytes = vec![0; file.length().await.ok()? as usize];
    file.read_at(&mut bytes, 0).await.ok()?;
    Some(bytes)
}

/// Volumes for clients of other hosts: one, whose session echoes.
struct Shelf;

impl crate::forward::Volumes for Shelf {
    fn open(
        &self,
        from: Life,
        request: crate::wire::Serve,
    ) -> BoxFuture<'_, Result<crate::forward::Opened, crate::wire::Unserved>> {
        Box::pin(async move {
            let refused = |kind| crate::wire::Unserved { kind, reason: "not this one".to_owned() };
            match request.volume.as_str() {
                "vm1" if from.node == OWNER => {}
                "elsewhere" => return Err(refused(None)),
                _ => return Err(refused(Some(rekindle_base::Kind::NotFound))),
            }
            let served = crate::wire::Served { volume: VOLUME, size: 1 << 20, block_size: 4096 };
            let session: crate::forward::Session = Box::new(|stream| {
                Box::pin(async move {
                    let (mut reader, mut writer) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut reader, &mut writer).await;
                })
            });
            Ok(crate::forward::Opened { served, session })
        })
    }
}
