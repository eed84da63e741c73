//! A forwarding host between a client's session and devices in memory.

use super::ledger::{Answer, Asked, Ledger, Meaning};
use super::{Facts, NoWay, Passage, Remote, Way};
use crate::conn::{Budget, Stop};
use crate::nbd::limits;
use crate::nbd::target::{ExportError, Target};
use crate::nbd::testing::{Memory, Whim};
use crate::nbd::wire::{Garbage, ReplyHead, chunk, command, flag};
use crate::nbd::{serve_device, wire};
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_base::{Kind, VolumeId};
use rekindle_env::sim::{Faults, World};
use rekindle_env::{Address, BoxFuture, Env, Moment};
use rekindle_staging::Written;
use rekindle_volume::Error;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

const SIZE: usize = 1 << 20;

/// A stage of the way: who answers the next session.
enum Host {
    Serves(Memory, VolumeId),
    Away,
    Refuses(Kind),
    /// Sends these bytes, whatever is asked.
    Sends(Vec<u8>),
}

/// Hosts that serve one after the other; the last one stays.
struct Hosts {
    env: Env,
    hosts: Mutex<VecDeque<Host>>,
    address: Mutex<u16>,
    /// Ends the sessions so far.
    cut: Mutex<Vec<oneshot::Sender<()>>>,
    has_moved: AtomicBool,
    opened: AtomicUsize,
    notes: Mutex<Vec<Option<String>>>,
}

const VOLUME: VolumeId = VolumeId([7; 16]);

impl Hosts {
    fn new(env: &Env, hosts: Vec<Host>) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            hosts: Mutex::new(hosts.into()),
            address: Mutex::new(7000),
            cut: Mutex::default(),
            has_moved: AtomicBool::new(false),
            opened: AtomicUsize::new(0),
            notes: Mutex::default(),
        })
    }

    /// Ends the present session, and goes on to the next host.
    fn next(&self) {
        self.hosts.lock().pop_front();
        self.cut.lock().clear();
    }

    async fn pass(&self) -> Result<Passage, NoWay> {
        let message = "not now".to_owned();
        let (memory, volume) = match self.hosts.lock().front().expect("a host") {
            Host::Serves(memory, volume) => (Ok(memory.clone()), *volume),
            Host::Sends(bytes) => (Err(bytes.clone()), VOLUME),
            Host::Away => {
                return Err(NoWay::Away(ExportError { kind: Kind::Unavailable, message }));
            }
            Host::Refuses(kind) => {
                return Err(NoWay::Refused(ExportError { kind: *kind, message }));
            }
        };
        let port = {
            let mut port = self.address.lock();
            *port += 1;
            *port
        };
        let address: Address = format!("tcp:127.0.0.1:{port}").parse().expect("an address");
        let acceptor = self.env.net().listen(&address).await.expect("a port");
        let (cut, is_cut) = oneshot::channel::<()>();
        self.cut.lock().push(cut);
        let size = memory.as_ref().map_or(SIZE as u64, Target::size);
        let (env, serving) = (self.env.clone(), self.env.clone());
        env.spawn("host", async move {
            let mut stream = acceptor.accept().await.expect("a caller")().expect("a stream");
            let serve = async {
                match memory {
                    Ok(memory) => {
                        let (_stay, stop) = Stop::pair();
                        let meters = memory.meters.clone();
                        let device = ("vm1".to_owned(), memory, meters);
                        serve_device(&serving, stream, stop, device, Budget::new(64 << 20)).await;
                    }
                    Err(bytes) => {
                        stream.read_exact(&mut [0; wire::REQUEST_BYTES]).await.expect("a request");
                        stream.write_all(&bytes).await.expect("it listens");
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! { biased; _ = is_cut => {} () = serve => {} }
        });
        self.opened.fetch_add(1, Ordering::Relaxed);
        let stream = self.env.net().connect(&address).await.expect("it listens");
        Ok(Passage { stream, facts: Facts { volume, size, block_size: 4096 } })
    }
}

impl Way for Hosts {
    fn open(&self) -> BoxFuture<'_, Result<Passage, NoWay>> {
        Box::pin(self.pass())
    }

    fn has_moved(&self) -> BoxFuture<'_, bool> {
        let has_moved = self.has_moved.swap(false, Ordering::Relaxed);
        if has_moved {
            self.hosts.lock().pop_front();
        }
        Box::pin(async move { has_moved })
    }

    fn note(&self, waits: Option<&str>) {
        self.notes.lock().push(waits.map(str::to_owned));
    }
}

fn with_hosts(hosts: Vec<Host>, test: impl AsyncFnOnce(&Env, &Arc<Hosts>, Remote)) {
    let world = World::new(5, Faults::none());
    let env = world.env();
    world.block_on(async {
        let hosts = Hosts::new(&env, hosts);
        let remote = Remote::open(&env, hosts.clone()).await.expect("a session");
        test(&env, &hosts, remote).await;
    });
}

fn serves(memory: &Memory) -> Host {
    Host::Serves(memory.clone(), VOLUME)
}

async fn written(written: Result<Written, Error>) -> Result<(), Error> {
    match written? {
        Written::Pending(later) => Ok(later.await?),
        Written::Acked | Written::NeedsSync(_) => panic!("no change is at its owner's host yet"),
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 251).expect("small")).collect()
}

#[test]
fn requests_go_to_the_owners_host_and_replies_come_back() {
    let memory = Memory::new(SIZE);
    with_hosts(vec![serves(&memory)], async |_, _, remote| {
        assert_eq!((remote.size(), remote.block_size()), (SIZE as u64, 4096));
        for (offset, length) in [(0, 1), (511, 3), (4096, 65536), (1, 900_000)] {
            let data = pattern(length);
            written(remote.write(offset, &data, length == 3)).await.expect("written");
            let mut found = vec![0; length];
            assert!(!remote.read_now(offset, &mut found).expect("no error"));
            remote.read(offset, &mut found).await.expect("read");
            assert!(found == data, "{offset} {length}");
        }
        assert_eq!(memory.durable.load(Ordering::Relaxed), 1);
        written(remote.clear(0, 8192, false, true)).await.expect("cleared");
        written(remote.clear(8192, 4096, true, false)).await.expect("trimmed");
        assert_eq!(memory.durable.load(Ordering::Relaxed), 2);
        let extents = remote.extents(4096, 16384).await.expect("extents");
        let told: Vec<_> = extents.iter().map(|one| (one.position, one.span, one.data)).collect();
        assert_eq!(told, [(4096, 8192, false), (12288, 8192, true)]);
        let before = memory.flushes.load(Ordering::Relaxed);
        remote.flush().await.expect("flushed");
        assert_eq!(memory.flushes.load(Ordering::Relaxed), before + 1);
    });
}

#[test]
fn an_error_of_the_owners_host_is_the_clients_and_ends_nothing() {
    let memory = Memory::new(SIZE);
    with_hosts(vec![serves(&memory)], async |_, hosts, remote| {
        memory.broken.store(true, Ordering::Relaxed);
        let error = written(remote.write(0, &[1; 512], false)).await.expect_err("it fails");
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (Kind::Invalid, "the device is broken")
        );
        memory.broken.store(false, Ordering::Relaxed);
        written(remote.write(0, &[1; 512], false)).await.expect("written");
        assert_eq!(hosts.opened.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn requests_without_a_reply_go_to_the_next_owner() {
    let (first, second) = (Memory::new(SIZE), Memory::new(SIZE));
    with_hosts(vec![serves(&first), Host::Away, serves(&second)], async |env, hosts, remote| {
        *first.whim.lock() = Whim::Pending;
        first.close_gate();
        let writes: Vec<_> =
            (0..5u8).map(|at| remote.write(u64::from(at) * 512, &[at + 1; 512], false)).collect();
        let (mut found, reading) = (vec![0; 512], remote.clone());
        first.has_begun(env, 5).await;
        hosts.next();
        env.sleep(Duration::from_secs(3)).await;
        assert!(
            hosts.notes.lock().last().is_some_and(Option::is_some),
            "it is told that they wait"
        );
        hosts.next();
        for write in writes {
            written(write).await.expect("the next owner has it");
        }
        assert_eq!(second.begun(), 5);
        reading.read(1024, &mut found).await.expect("read");
        assert_eq!(found, [3; 512]);
        assert_eq!(hosts.notes.lock().last(), Some(&None));
    });
}

#[test]
fn an_owner_that_says_nothing_is_left_once_it_runs_elsewhere() {
    let (first, second) = (Memory::new(SIZE), Memory::new(SIZE));
    with_hosts(vec![serves(&first), serves(&second)], async |env, hosts, remote| {
        *first.whim.lock() = Whim::Pending;
        first.close_gate();
        let write = remote.write(0, &[9; 512], false);
        // A slow owner is waited for.
        env.sleep(Duration::from_secs(300)).await;
        assert_eq!(hosts.opened.load(Ordering::Relaxed), 1);
        hosts.has_moved.store(true, Ordering::Relaxed);
        written(write).await.expect("the next owner has it");
        assert_eq!((hosts.opened.load(Ordering::Relaxed), second.begun()), (2, 1));
    });
}

#[test]
fn a_host_that_stops_is_left_and_what_it_has_not_done_goes_to_the_next() {
    let second = Memory::new(SIZE);
    let stopping =
        [&wire::last_chunk(0, chunk::ERROR, 6)[..], &108u32.to_be_bytes(), &0u16.to_be_bytes()];
    let hosts = vec![Host::Sends(stopping.concat()), serves(&second)];
    with_hosts(hosts, async |env, hosts, remote| {
        let write = remote.write(0, &[9; 512], false);
        hosts.hosts.lock().pop_front();
        let done = env.timeout(Duration::from_secs(5), written(write)).await;
        done.expect("in time").expect("the next owner has it");
    });
}

#[test]
fn a_client_is_given_up_when_its_volume_is_gone_or_no_host_serves_it_for_long() {
    let memory = Memory::new(SIZE);
    let other = Host::Serves(memory.clone(), VolumeId([8; 16]));
    let smaller = Host::Serves(Memory::new(SIZE / 2), VOLUME);
    let noise = Host::Sends(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    let cases = [
        (other, 3, "another volume"),
        (smaller, 3, "smaller"),
        (Host::Refuses(Kind::NotFound), 3, "not now"),
        (noise, 3, "does not speak NBD"),
        (Host::Away, 70, "not now"),
        (Host::Refuses(Kind::Unavailable), 70, "not now"),
    ];
    for (next, within, why) in cases {
        let first = Memory::new(SIZE);
        *first.whim.lock() = Whim::Pending;
        first.close_gate();
        with_hosts(vec![serves(&first), next], async |env, hosts, remote| {
            let write = remote.write(0, &[9; 512], false);
            first.has_begun(env, 1).await;
            hosts.next();
            let done = env.timeout(Duration::from_secs(within), written(write)).await;
            let error = done.expect("in time").expect_err("it is given up");
            // The session hangs up: an error would reach the client's file system.
            assert_eq!(error.kind(), Kind::Fenced);
            assert!(error.to_string().contains(why), "{error}");
            let later = written(remote.write(0, &[9; 512], false)).await;
            assert_eq!(later.expect_err("it is over").kind(), Kind::Fenced);
            if within > limits::FORWARD_PATIENCE.as_secs() {
                assert!(env.now() > Moment(limits::FORWARD_PATIENCE), "it has waited");
            }
        });
    }
}

#[test]
fn an_idle_session_of_hours_does_not_count_as_trouble() {
    let memory = Memory::new(SIZE);
    let hosts = vec![serves(&memory), serves(&memory), Host::Away, serves(&memory)];
    with_hosts(hosts, async |env, hosts, remote| {
        hosts.next();
        env.sleep(Duration::from_secs(7200)).await;
        hosts.next();
        env.sleep(Duration::from_secs(2)).await;
        hosts.next();
        written(remote.write(0, &[9; 512], false)).await.expect("a host is back");
    });
}

#[test]
fn a_new_client_waits_for_a_takeover_and_hears_what_the_owner_says() {
    let world = World::new(6, Faults::none());
    let env = world.env();
    world.block_on(async {
        let open = async |hosts: Vec<Host>| {
            let hosts = Hosts::new(&env, hosts);
            let opening = Remote::open(&env, hosts.clone());
            let later = async {
                env.sleep(Duration::from_secs(2)).await;
                if hosts.hosts.lock().len() > 1 {
                    hosts.next();
                }
                std::future::pending::<()>().await;
            };
            tokio::select! { biased; opened = opening => opened, () = later => unreachable!() }
        };
        let began = env.now();
        let refused = open(vec![Host::Refuses(Kind::Unavailable)]).await.err().expect("refused");
        assert_eq!(refused.message, "not now");
        assert!(env.now().since(began) < Duration::from_secs(1));
        open(vec![Host::Away, serves(&Memory::new(SIZE))]).await.expect("it was taken over");
        let began = env.now();
        assert!(open(vec![Host::Away]).await.is_err());
        let waited = env.now().since(began);
        assert!(waited >= limits::FORWARD_OPEN_TIME_MAX && waited.as_secs() < 8, "{waited:?}");
    });
}

fn take(ledger: &mut Ledger) -> Vec<u64> {
    ledger.take(Moment::default(), usize::MAX).iter().map(|(request, _)| request.cookie).collect()
}

fn done(cookie: u64) -> ReplyHead {
    ReplyHead::Simple { cookie, errno: 0 }
}

#[test]
fn changes_of_the_same_bytes_go_one_after_another_and_repeated_ones_keep_their_order() {
    let mut ledger = Ledger::default();
    let write = |offset| Asked::new(command::WRITE, 0, offset, 512);
    let asked = [
        write(0),
        write(511),
        write(1024),
        Asked::new(command::READ, 0, 0, 4096),
        Asked::new(command::TRIM, flag::FUA, 0, 4096),
    ];
    let mut answers = asked.map(|asked| ledger.add(asked));
    assert_eq!(take(&mut ledger), [0, 2, 3], "a read has no part in the order");
    assert_eq!(take(&mut ledger), [0; 0]);
    ledger.reply(&done(0), Vec::new()).expect("it was asked");
    assert_eq!(take(&mut ledger), [1]);
    // The session ends: all without a reply again, in their order.
    ledger.unsend();
    assert_eq!(take(&mut ledger), [1, 2, 3]);
    ledger.reply(&done(1), Vec::new()).expect("it was asked");
    assert_eq!(take(&mut ledger), [0; 0], "the trim waits for the other one, too");
    ledger.reply(&done(2), Vec::new()).expect("it was asked");
    assert_eq!(take(&mut ledger), [4]);
    assert_eq!(answers[0].try_recv().expect("it has come").expect("no error"), Answer::Done);
    assert!(answers[4].try_recv().is_err());
}

#[test]
fn a_reply_that_fits_no_request_is_garbage() {
    let mut random = Random::new(3);
    let ask = |ledger: &mut Ledger, what: u16| {
        let answer = ledger.add(Asked::new(what, 0, 4096, 8192));
        ledger.take(Moment::default(), usize::MAX);
        answer
    };
    let chunk = |cookie, kind, length| ReplyHead::Chunk { cookie, kind, length };
    let mut ledger = Ledger::default();
    let _read = ask(&mut ledger, command::READ);
    let _write = ask(&mut ledger, command::WRITE);
    let strange = [
        chunk(0, chunk::OFFSET_DATA, 8193 + 8),
        chunk(0, chunk::BLOCK_STATUS, 12),
        chunk(1, chunk::OFFSET_DATA, 8),
        chunk(0, chunk::ERROR, 7 + 1024),
        chunk(0, 77, 0),
        chunk(9, chunk::NONE, 0),
        done(9),
    ];
    for head in strange {
        assert_eq!(ledger.payload_bytes(&head), Err(Garbage::Strange), "{head:?}");
    }
    assert_eq!(ledger.reply(&done(0), Vec::new()), Err(Garbage::Strange), "a read has data");
    for payload in [vec![0; 8200], vec![0; 4], [&4096u64.to_be_bytes()[..], &[0; 100]].concat()] {
        let head = chunk(0, chunk::OFFSET_DATA, payload.len() as u32);
        assert_eq!(ledger.reply(&head, payload), Err(Garbage::Strange));
    }
    // Any bytes at all: no panic, and no more bytes than were asked for.
    for _ in 0..20_000 {
        let mut bytes = [0; wire::CHUNK_BYTES];
        random.fill(&mut bytes);
        let magic = [wire::CHUNK_MAGIC, wire::SIMPLE_REPLY_MAGIC][random.index(2)];
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        (bytes[4], bytes[5]) = (0, 1);
        bytes[6..8].copy_from_slice(&[0u16, 1, 5, 32769][random.index(4)].to_be_bytes());
        bytes[8..16].copy_from_slice(&[0u8, 0, 0, 0, 0, 0, 0, random.index(3) as u8]);
        bytes[16..18].fill(0);
        let mut ledger = Ledger::default();
        let what = [command::READ, command::WRITE, command::BLOCK_STATUS][random.index(3)];
        let _answer = ask(&mut ledger, what);
        let Ok(Some(head)) = wire::reply_head(&bytes) else { continue };
        if let Ok(count) = ledger.payload_bytes(&head) {
            assert!(count <= 4 + 8 * limits::EXTENTS_MAX, "{count}");
            let mut payload = vec![0; count];
            random.fill(&mut payload);
            match ledger.reply(&head, payload) {
                Ok(Meaning::Answered | Meaning::Stopping) | Err(_) => {}
            }
        }
    }
}
