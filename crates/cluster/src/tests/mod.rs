//! Tests of copies over the network: an owner with a log, and a holder on another host.

mod attacks;
mod crashes;
mod formats;
mod holding;
mod real;

use crate::hello::{Identity, Secret};
use crate::{Holder, Holders, Peer, Settings, serve};
use parking_lot::Mutex;
use rekindle_base::{Generation, Incarnation, Life, NodeId, Serial, StoreId, VolumeId};
use rekindle_env::sim::{Faults, Host, World};
use rekindle_env::{Address, Env, Open};
use rekindle_log::{Append, Change, Config, Log, Media, NewSegment, Position, Refused, Replica};
use rekindle_warm::Arena;
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

fn identity() -> Identity {
    let life = Life { node: HOLDER, incarnation: Incarnation(3) };
    Identity { secret: SECRET, store: STORE, life }
}

fn settings(incarnation: u64) -> Settings {
    Settings {
        address: address(),
        secret: SECRET,
        store: STORE,
        node: OWNER,
        incarnation: Incarnation(incarnation),
        home: HOME.to_vec(),
        holders: Holders::default(),
    }
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
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let world = World::new(seed, Faults::none());
        let (owner, holder) = (world.host("owner"), world.host("holder"));
        let pair = Pair { world, owner, holder, serving: Arc::default() };
        pair.serve(BUDGET);
        pair
    }

    /// Starts the holder's process.
    fn serve(&self, budget: u64) {
        let env = self.holder.env();
        let (serving, inner) = (Arc::clone(&self.serving), env.clone());
        *serving.lock() = None;
        env.spawn("holder", async move {
            let holder = loop {
                // Its disk may have failed on purpose.
                match Holder::open(&inner, Path::new(HELD), budget).await {
                    Ok(holder) => break holder,
                    Err(_) => inner.sleep(SHORT).await,
                }
            };
            let acceptor = inner.net().listen(&address()).await.expect("nothing listens there");
            *serving.lock() = Some(Arc::clone(&holder));
            serve(inner, acceptor, holder, identity()).await;
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

    fn peer(&self, settings: Settings) -> Peer {
        Peer::new(&self.owner.env(), settings)
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
    let world = World::new(77, Faults::none());
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
