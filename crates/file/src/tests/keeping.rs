//! What a front keeps of inodes is there after a kill, a commit and a restart, and goes with them.

use super::*;
use crate::caller::{Halt, Keeper};
use bytes::Bytes;
use parking_lot::Mutex;

/// Keeps some bytes, and notes what was kept before.
struct Keep {
    bytes: Option<&'static [u8]>,
    before: Mutex<Option<Vec<u8>>>,
}

fn keep(bytes: Option<&'static [u8]>) -> Keep {
    Keep { bytes, before: Mutex::default() }
}

impl Keeper for Keep {
    fn keep(&self, _ino: Ino, kept: Option<&[u8]>) -> Result<Option<Vec<u8>>, Halt> {
        *self.before.lock() = kept.map(<[u8]>::to_vec);
        match self.bytes {
            Some(b"refused") => Err(Errno::BUSY.into()),
            bytes => Ok(bytes.map(<[u8]>::to_vec)),
        }
    }
}

impl Keep {
    fn caller(&self) -> Caller<'_> {
        Caller { keeper: Some(self), ..CALLER }
    }
}

async fn kept(files: &Files, ino: Ino) -> Option<Bytes> {
    files.kept(ino).await.unwrap()
}

fn inodes(files: &Files) -> u64 {
    files.totals(|totals| totals.kept)
}

#[test]
fn what_is_kept_is_kept_with_the_change() {
    with_files(async |_, files| {
        let node = NewNode {
            kind: FileType::Regular,
            mode: 0o644,
            device: 0,
            target: b"",
            stamps: None,
            umask: 0,
        };
        let first = keep(Some(b"first"));
        let ino = files.create(first.caller(), ROOT, b"f", &node).await.unwrap().ino;
        assert_eq!((kept(files, ino).await, inodes(files)), (Some("first".into()), 1));
        let refused = keep(Some(b"refused"));
        assert_eq!(
            errno(files.create(refused.caller(), ROOT, b"g", &node).await),
            Some(Errno::BUSY)
        );
        assert_eq!(errno(files.lookup(ROOT, b"g").await), Some(Errno::NOENT), "all or nothing");
        let cut = SetAttr { size: Some(7), ..SetAttr::default() };
        assert_eq!(errno(files.set_attr(refused.caller(), ino, &cut).await), Some(Errno::BUSY));
        assert_eq!(files.attr(ino).await.unwrap().size, 0);
        let second = keep(Some(b"second"));
        files.set_attr(second.caller(), ino, &cut).await.unwrap();
        assert_eq!(second.before.lock().as_deref(), Some(&b"first"[..]));
        assert_eq!((kept(files, ino).await, inodes(files)), (Some("second".into()), 1));
        let changed = files.attr(ino).await.unwrap().changed;
        files.keep(keep(None).caller(), ino).await.unwrap();
        assert_eq!((kept(files, ino).await, inodes(files)), (None, 0));
        assert_eq!(files.attr(ino).await.unwrap().changed, changed, "no attribute tells of it");
        let long: &'static [u8] = Box::leak(vec![1; limits::KEPT_BYTES_MAX + 1].into());
        assert_eq!(errno(files.keep(keep(Some(long)).caller(), ino).await), Some(Errno::NOSPC));
        assert_eq!(errno(files.keep(keep(None).caller(), ino + 9).await), Some(Errno::STALE));
    });
}

#[test]
fn what_is_kept_outlives_kills_and_commits() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let (a, b, c) = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let [a, b, c] = ["a", "b", "c"].map(|name| (name, FileType::Regular));
        let a = make(&files, ROOT, a.0, a.1).await;
        let b = make(&files, ROOT, b.0, b.1).await;
        let c = make(&files, ROOT, c.0, c.1).await;
        for ino in [a, b, c] {
            files.keep(keep(Some(b"committed")).caller(), ino).await.unwrap();
        }
        files.handle().staged().drain().await.unwrap();
        files.keep(keep(Some(b"in the log")).caller(), a).await.unwrap();
        files.keep(keep(None).caller(), b).await.unwrap();
        files.unlink(CALLER, ROOT, b"c").await.unwrap();
        (a, b, c)
    });
    for life in 2..5 {
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let bed = Bed::start(&env, &store, life).await;
            let files = bed.files(Ack::Flash).await;
            assert_eq!(kept(&files, a).await, Some("in the log".into()));
            assert_eq!(kept(&files, b).await, None);
            assert_eq!(kept(&files, c).await, Some("committed".into()), "it has no name");
            assert_eq!(inodes(&files), 2);
            env.sleep(limits::ORPHAN_GRACE * 2).await;
            assert_eq!(files.space().await.unwrap().inodes, 4);
            assert_eq!(files.kept_without_name(0).await.unwrap(), [c]);
            assert!(files.kept_without_name(c + 1).await.unwrap().is_empty());
            if life == 3 {
                files.handle().staged().drain().await.unwrap();
            }
            if life == 4 {
                files.keep(keep(None).caller(), c).await.unwrap();
                assert_eq!(errno(files.attr(c).await), Some(Errno::STALE), "it goes");
                files.unlink(CALLER, ROOT, b"a").await.unwrap();
                files.keep(keep(None).caller(), a).await.unwrap();
                files.handle().staged().drain().await.unwrap();
                assert_eq!((inodes(&files), files.space().await.unwrap().inodes), (0, 2));
            }
        });
    }
}

#[test]
fn a_file_that_is_used_and_kept_goes_with_the_last_of_both() {
    with_files(async |_, files| {
        let ino = make(files, ROOT, "a", FileType::Regular).await;
        files.keep(keep(Some(b"open")).caller(), ino).await.unwrap();
        files.open(ino).await.unwrap();
        files.unlink(CALLER, ROOT, b"a").await.unwrap();
        files.keep(keep(None).caller(), ino).await.unwrap();
        files.attr(ino).await.unwrap();
        files.keep(keep(Some(b"open")).caller(), ino).await.unwrap();
        files.close(ino).await;
        files.attr(ino).await.unwrap();
        files.keep(keep(None).caller(), ino).await.unwrap();
        assert_eq!(errno(files.attr(ino).await), Some(Errno::STALE));
        assert_eq!(files.space().await.unwrap().inodes, 1);
    });
}

#[test]
fn nothing_is_kept_of_what_is_in_a_snapshot() {
    with_files(async |bed, files| {
        let ino = make(files, ROOT, "a", FileType::Regular).await;
        files.keep(keep(Some(b"open")).caller(), ino).await.unwrap();
        bed.volumes.take_snapshot("fs", "s").await.unwrap();
        let all = files.lookup(ROOT, b".snapshots").await.unwrap().ino;
        let root = files.lookup(all, b"s").await.unwrap().ino;
        let old = files.lookup(root, b"a").await.unwrap().ino;
        assert_eq!(kept(files, old).await, None);
        let rofs = files.keep(keep(Some(b"open")).caller(), old).await;
        assert_eq!(errno(rofs), Some(Errno::ROFS));
    });
}
