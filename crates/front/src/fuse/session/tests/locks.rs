//! Locks of two mounts of a file system.

use super::super::super::wire::{KNOWS_LOCKS, LockOut, init};
use super::*;
use crate::held::{BOTH, Held, Holder, Party};
use rekindle_env::Moment;

const VOLUME: VolumeId = VolumeId([1; 16]);
const OTHER: u64 = 8;
/// Types of a lock.
const READ: u32 = 0;
const WRITE: u32 = 1;
const NONE: u32 = 2;

/// What is asked of a lock: the owner, the first byte, the last one, its type.
fn ask(owner: u64, start: u64, end: u64, kind: u32) -> Vec<u8> {
    whole_or_not(owner, (start, end), kind, 0)
}

/// The same, of `flock`.
fn flock(owner: u64, kind: u32) -> Vec<u8> {
    whole_or_not(owner, (0, i64::MAX as u64), kind, 1)
}

fn whole_or_not(owner: u64, (start, end): (u64, u64), kind: u32, flags: u32) -> Vec<u8> {
    let lock = LockOut { start, end, kind, process: 4711 };
    let words = [0, owner].map(u64::to_ne_bytes).concat();
    [&words, lock.as_bytes(), &flags.to_ne_bytes(), &[0; 4]].concat()
}

fn flush(owner: u64) -> Vec<u8> {
    [0, 0, owner].map(u64::to_ne_bytes).concat()
}

async fn set(line: &mut Line, ino: Ino, body: &[u8]) -> Result<(), Errno> {
    line.ask(opcode::SETLK, ino, body).await.map(drop)
}

async fn found(line: &mut Line, ino: Ino, body: &[u8]) -> (u32, u64, u64, u32) {
    let found = line.ask(opcode::GETLK, ino, body).await.unwrap();
    let LockOut { start, end, kind, process } = LockOut::read_from_bytes(&found).unwrap();
    (kind, start, end, process)
}

/// Two mounts, and a file that both have open.
async fn two(site: &Site) -> (Line, Line, Ino) {
    let mut one = site.connect(CLIENT, &[]).await;
    let ino = one.create("a").await;
    let other = site.connect(OTHER, &[(ino, 1)]).await;
    (one, other, ino)
}

/// Sends a request for a lock that is waited for. Returns its number.
async fn wait_for(line: &mut Line, ino: Ino, body: &[u8]) -> u64 {
    line.send(None, opcode::SETLKW, ino, body).await;
    line.next - 1
}

async fn is_silent(site: &Site, line: &mut Line) -> bool {
    site.env.timeout(Duration::from_secs(10), line.reply()).await.is_err()
}

#[test]
fn ranges_exclude_other_mounts_and_other_processes() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        set(&mut one, ino, &ask(1, 0, 9, WRITE)).await.unwrap();
        assert_eq!(set(&mut other, ino, &ask(1, 9, 20, READ)).await, Err(Errno::AGAIN));
        assert_eq!(set(&mut one, ino, &ask(2, 5, 5, READ)).await, Err(Errno::AGAIN));
        assert_eq!(found(&mut one, ino, &ask(2, 5, 5, READ)).await, (WRITE, 0, 9, 4711));
        assert_eq!(found(&mut other, ino, &ask(2, 5, 5, READ)).await, (WRITE, 0, 9, 0));
        assert_eq!(found(&mut one, ino, &ask(1, 5, 5, READ)).await.0, NONE, "its own");
        set(&mut other, ino, &ask(1, 10, i64::MAX as u64, WRITE)).await.unwrap();
        let last = i64::MAX as u64;
        assert_eq!(found(&mut one, ino, &ask(1, 99, 99, READ)).await, (WRITE, 10, last, 0));
        set(&mut one, ino, &ask(1, 0, 4, NONE)).await.unwrap();
        set(&mut other, ino, &ask(1, 0, 4, READ)).await.unwrap();
        set(&mut one, ino, &ask(3, 2, 4, READ)).await.unwrap();
    });
}

#[test]
fn a_process_that_closes_the_file_gives_its_ranges_back_and_a_released_file_its_flock() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        set(&mut one, ino, &ask(1, 0, 9, WRITE)).await.unwrap();
        set(&mut one, ino, &flock(5, WRITE)).await.unwrap();
        assert_eq!(set(&mut other, ino, &flock(5, READ)).await, Err(Errno::AGAIN));
        one.ask(opcode::FLUSH, ino, &flush(2)).await.unwrap();
        assert_eq!(set(&mut other, ino, &ask(1, 0, 0, READ)).await, Err(Errno::AGAIN));
        one.ask(opcode::FLUSH, ino, &flush(1)).await.unwrap();
        set(&mut other, ino, &ask(1, 0, 0, READ)).await.unwrap();
        assert_eq!(set(&mut other, ino, &flock(5, READ)).await, Err(Errno::AGAIN));
        let release = [[0_u32, 0, 0, 2].as_bytes(), &5_u64.to_ne_bytes()].concat();
        one.ask(opcode::RELEASE, ino, &release).await.unwrap();
        set(&mut other, ino, &flock(5, WRITE)).await.unwrap();
        assert_eq!(site.opens(), [(ino, 1)]);
        // What comes behind a release finds the file free, though none waits for its reply.
        set(&mut one, ino, &flock(6, READ)).await.unwrap_err();
        other.send(None, opcode::RELEASE, ino, &release).await;
        let number = wait_for(&mut other, ino, &flock(7, WRITE)).await;
        assert_eq!(other.reply().await, (number - 1, Ok(Vec::new())));
        assert_eq!(other.reply().await, (number, Ok(Vec::new())));
    });
}

#[test]
fn a_mount_hears_that_it_has_had_no_company_for_a_while() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        let pass = async |milliseconds| {
            site.env.sleep(Duration::from_millis(milliseconds)).await;
            site.files.look(|state| state.now = site.env.now());
        };
        /// Whether a lock comes with the word.
        async fn is_alone(line: &mut Line, ino: Ino, body: &[u8]) -> bool {
            line.alone.clear();
            set(line, ino, body).await.unwrap();
            let number = line.next - 1;
            assert!(line.alone.is_empty() || line.alone == [number]);
            !line.alone.is_empty()
        }
        let (lock, clear) = (ask(1, 0, 0, WRITE), ask(1, 0, 0, NONE));
        assert!(!is_alone(&mut one, ino, &lock).await, "the volume has just come into service");
        pass(2001).await;
        assert!(is_alone(&mut one, ino, &lock).await);
        assert!(!is_alone(&mut other, ino, &ask(1, 9, 9, WRITE)).await, "one has its lock");
        pass(2001).await;
        assert!(!is_alone(&mut one, ino, &lock).await, "the other one has a lock");
        set(&mut other, ino, &ask(1, 9, 9, NONE)).await.unwrap();
        pass(1000).await;
        set(&mut one, ino, &clear).await.unwrap();
        assert!(!is_alone(&mut one, ino, &lock).await, "the other one has just given it back");
        pass(1001).await;
        assert!(is_alone(&mut one, ino, &lock).await, "its own changes are no company");
        let mut held = Held::default();
        let holder = Holder { client: 3, machine: 3 };
        held.open(holder, b"owner", (BOTH, 0), 1, &|_| false).unwrap();
        let bytes = held.encode(VOLUME).unwrap();
        site.files.look(|state| drop(state.kept.insert(ino, bytes)));
        pass(2001).await;
        assert!(!is_alone(&mut one, ino, &lock).await, "a client of NFS has it open");
    });
}

#[test]
fn a_flock_that_is_not_given_takes_back_the_one_before() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        set(&mut one, ino, &flock(1, READ)).await.unwrap();
        set(&mut other, ino, &flock(1, READ)).await.unwrap();
        assert_eq!(set(&mut one, ino, &flock(1, WRITE)).await, Err(Errno::AGAIN));
        set(&mut other, ino, &flock(1, WRITE)).await.unwrap();
    });
}

#[test]
fn a_lock_is_waited_for_until_it_is_free() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        set(&mut one, ino, &ask(1, 0, 9, WRITE)).await.unwrap();
        let number = wait_for(&mut other, ino, &ask(1, 5, 5, WRITE)).await;
        assert!(is_silent(site, &mut other).await);
        set(&mut one, ino, &ask(1, 0, 3, NONE)).await.unwrap();
        assert!(is_silent(site, &mut other).await);
        // Between two looks.
        site.env.sleep(limits::LOCK_LOOK / 2).await;
        let before = site.env.now();
        set(&mut one, ino, &ask(1, 0, 9, NONE)).await.unwrap();
        assert_eq!(other.reply().await, (number, Ok(Vec::new())));
        assert!(site.env.now() - before < limits::LOCK_LOOK / 4, "it is told at once");
        assert_eq!(set(&mut one, ino, &ask(1, 5, 5, READ)).await, Err(Errno::AGAIN));
    });
}

#[test]
fn a_wait_ends_with_a_signal_and_with_its_process() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        set(&mut one, ino, &ask(1, 0, 9, WRITE)).await.unwrap();
        let number = wait_for(&mut other, ino, &ask(1, 5, 5, WRITE)).await;
        other.send(None, opcode::INTERRUPT, 0, &(number * 2).to_ne_bytes()).await;
        assert_eq!(other.reply().await, (number, Err(Errno::INTR)));
        let number = wait_for(&mut other, ino, &ask(1, 5, 5, WRITE)).await;
        other.send(None, opcode::FLUSH, ino, &flush(1)).await;
        assert_eq!(other.reply().await, (number, Err(Errno::NOLCK)));
        assert_eq!(other.reply().await, (number + 1, Ok(Vec::new())));
        set(&mut one, ino, &ask(1, 0, 9, NONE)).await.unwrap();
        set(&mut one, ino, &ask(2, 0, 9, WRITE)).await.unwrap();
        // One that has its lock is not interrupted.
        other.send(None, opcode::INTERRUPT, 0, &(number * 2).to_ne_bytes()).await;
        assert!(is_silent(site, &mut other).await);
    });
}

#[test]
fn locks_stay_over_another_session_and_a_wait_goes_on_in_it() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        set(&mut one, ino, &ask(1, 0, 9, WRITE)).await.unwrap();
        let number = wait_for(&mut other, ino, &ask(1, 5, 5, WRITE)).await;
        assert!(is_silent(site, &mut other).await);
        other.stop.take();
        let stopped = site.env.timeout(Duration::from_secs(60), other.is_over()).await;
        assert!(stopped.is_ok_and(|is_over| is_over), "a stop waits for no lock");
        drop(one);
        site.env.sleep(limits::OPENS_GRACE / 2).await;
        let mut other = site.connect(OTHER, &[(ino, 1)]).await;
        let frame = Some(Frame::new(40, number, 1, true));
        other.send(frame, opcode::SETLKW, ino, &ask(1, 5, 5, WRITE)).await;
        assert!(is_silent(site, &mut other).await);
        let mut one = site.connect(CLIENT, &[(ino, 1)]).await;
        site.env.sleep(limits::OPENS_GRACE * 2).await;
        set(&mut one, ino, &ask(1, 0, 9, NONE)).await.unwrap();
        assert_eq!(other.reply().await, (number, Ok(Vec::new())));
    });
}

#[test]
fn locks_of_a_mount_that_is_gone_go_after_a_while_and_at_once_with_a_goodbye() {
    with_site(async |site| {
        let (mut one, mut other, ino) = two(site).await;
        set(&mut one, ino, &ask(1, 0, 9, WRITE)).await.unwrap();
        set(&mut one, ino, &flock(1, WRITE)).await.unwrap();
        let number = wait_for(&mut other, ino, &flock(3, WRITE)).await;
        drop(one);
        let began = site.env.now();
        assert_eq!(other.reply().await, (number, Ok(Vec::new())));
        assert!(site.env.now() - began >= limits::OPENS_GRACE);
        set(&mut other, ino, &ask(1, 0, 0, READ)).await.unwrap();
        let mut one = site.connect(CLIENT, &[(ino, 1)]).await;
        assert_eq!(set(&mut one, ino, &ask(1, 0, 0, WRITE)).await, Err(Errno::AGAIN));
        other.ask(opcode::DESTROY, 0, &[]).await.unwrap();
        set(&mut one, ino, &ask(1, 0, 0, WRITE)).await.unwrap();
        set(&mut one, ino, &flock(1, WRITE)).await.unwrap();
    });
}

#[test]
fn locks_of_a_mount_that_has_not_come_since_the_restart_go_after_a_while() {
    with_site(async |site| {
        let (mut one, other, ino) = two(site).await;
        set(&mut one, ino, &ask(1, 0, 9, WRITE)).await.unwrap();
        drop((one, other));
        // The next process knows nothing of the mounts.
        site.clients = Clients::default();
        let now: Moment = site.env.now();
        *site.files.since.lock() = now;
        let mut other = site.connect(OTHER, &[(ino, 1)]).await;
        assert_eq!(set(&mut other, ino, &ask(1, 5, 5, READ)).await, Err(Errno::AGAIN));
        site.env.sleep(limits::OPENS_GRACE - Duration::from_secs(1)).await;
        assert_eq!(set(&mut other, ino, &ask(1, 5, 5, READ)).await, Err(Errno::AGAIN));
        site.env.sleep(Duration::from_secs(2)).await;
        set(&mut other, ino, &ask(1, 5, 5, READ)).await.unwrap();
    });
}

#[test]
fn clients_of_nfs_and_mounts_exclude_one_another() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("a").await;
        let hold = |client| {
            let (mut held, here) = (Held::default(), |_: Party<'_>| false);
            let holder = Holder { client, machine: 1 };
            let open = held.open(holder, b"o", (BOTH, 0), 5, &here).unwrap();
            let given = crate::held::Given { id: open.0, seqid: open.1 };
            let span = crate::held::ranges::Span { start: 0, end: u64::MAX, exclusive: true };
            held.lock_first(client, given, b"p", span, 6, &here).unwrap();
            let bytes = held.encode(VOLUME).unwrap();
            site.files.look(|state| drop(state.kept.insert(ino, bytes)));
        };
        hold(901);
        assert_eq!(set(&mut line, ino, &ask(1, 0, 0, READ)).await, Err(Errno::AGAIN));
        assert_eq!(set(&mut line, ino, &flock(1, READ)).await, Err(Errno::AGAIN));
        let last = i64::MAX as u64;
        assert_eq!(found(&mut line, ino, &ask(1, 0, 0, READ)).await, (WRITE, 0, last, 0));
        hold(GONE);
        set(&mut line, ino, &ask(1, 0, 0, READ)).await.unwrap();
    });
}

#[test]
fn a_lock_is_told_when_it_is_durable_where_a_mount_outlives_what_is_not() {
    with_site(async |site| {
        site.durably = true;
        let (mut one, _other, ino) = two(site).await;
        let syncs = |site: &Site| site.files.look(|state| state.syncs);
        for (opcode, body) in [
            (opcode::SETLK, ask(1, 0, 9, WRITE)),
            (opcode::SETLK, ask(1, 0, 4, NONE)),
            (opcode::FLUSH, flush(1)),
        ] {
            let before = syncs(site);
            one.ask(opcode, ino, &body).await.unwrap();
            assert!(syncs(site) > before);
        }
    });
}

#[test]
fn the_kernel_leaves_locks_to_the_server_where_the_mount_knows_of_them() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        for (mark, offered, agreed) in
            [(KNOWS_LOCKS, u32::MAX, init::LOCKS), (KNOWS_LOCKS, !init::LOCKS, 0), (0, u32::MAX, 0)]
        {
            let asked = InitIn { major: 7, minor: 40, max_readahead: 0, flags: offered };
            let body = [asked.as_bytes(), &[0; 44], &mark.to_ne_bytes()].concat();
            let answer = line.ask(opcode::INIT, 0, &body).await.unwrap();
            let answer = InitOut::read_from_bytes(&answer).unwrap();
            assert_eq!(answer.flags & init::LOCKS, agreed);
        }
    });
}
