//! Files by their door: random calls against a model, and what each promise says.

mod acls;
mod bed;
mod chunks;
mod copying;
mod in_rows;
mod keeping;
mod long;
mod model;
mod numbers;
mod parts;
mod repairing;
mod taking;
mod witness;

use crate::*;
use bed::Bed;
use model::{Model, carry_out};
use rekindle_base::random::Random;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::{self, Plan};
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Policy};
use std::collections::BTreeSet;

fn errno<T>(result: Result<T, Error>) -> Option<Errno> {
    match result {
        Ok(_) => None,
        Err(Error::Posix(errno)) => Some(errno),
        Err(Error::Volume(error)) => panic!("{error}"),
    }
}

/// Carries `count` operations out, and compares each outcome with the model's. Returns the model as
/// it was before each of them, and after the last. No number of `given` is given again.
async fn play(
    files: &Files,
    (model, given): (&mut Model, &mut BTreeSet<Ino>),
    dice: &mut Random,
    count: u64,
) -> Vec<Model> {
    let mut past = Vec::new();
    for _ in 0..count {
        if dice.below(15) == 0 {
            // Changes go to the store meanwhile, and become old enough for flash.
            files.env().sleep(std::time::Duration::from_millis(dice.below(9000))).await;
        }
        past.push(model.clone());
        let op = model.draw(dice, 700_000);
        let outcome = carry_out(files, &op).await;
        let made = outcome.as_ref().ok().copied().flatten();
        let expected = model.apply(&op, made).err();
        let name = format!("{op:?}").chars().take(200).collect::<String>();
        assert_eq!(errno(outcome), expected, "{name}");
        if let (model::Op::Create(..), Some(ino)) = (&op, made) {
            assert!(given.insert(ino), "{ino} is given again: {name}");
        }
    }
    past.push(model.clone());
    past
}

#[test]
fn a_volume_is_as_the_model_through_commits_crashes_and_power_cuts() {
    let most: u64 = std::env::var("REKINDLE_FILE_SEEDS").map_or(30, |text| text.parse().unwrap());
    for seed in 0..most {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let mut dice = Random::new(seed);
        let mut model = Model::new();
        let ack = if seed % 2 == 0 { Ack::Flash } else { Ack::Memory };
        let mut snapshots: Vec<(String, Model)> = Vec::new();
        let mut given = BTreeSet::new();
        for life in 0..6_u64 {
            let env = world.env();
            let cut = dice.below(2) == 0;
            let past = world.block_on(async {
                let bed = Bed::start(&env, &store, 2 * life + 1).await;
                let files = bed.files(ack).await;
                compare(&read(&files).await, &model, &format!("seed {seed}, life {life}"));
                let mut past = Vec::new();
                for _ in 0..3 {
                    past.extend(play(&files, (&mut model, &mut given), &mut dice, 30).await);
                    if change_snapshots(&bed, &mut snapshots, &model, &mut dice).await {
                        // What was there then is durable.
                        past.clear();
                        past.push(model.clone());
                    }
                    if dice.below(3) == 0 {
                        compare_snapshots(&files, &snapshots, seed).await;
                    }
                    match dice.below(4) {
                        0 => {
                            files.handle().staged().drain().await.unwrap();
                            let misfits = repairing::misfits(&bed, &files).await;
                            assert!(misfits.is_empty(), "seed {seed}, life {life}: {misfits:?}");
                            let name = format!("seed {seed}, life {life}");
                            taking::check_space(&model, &files, &name).await;
                        }
                        1 => files.sync().await.unwrap(),
                        _ => continue,
                    }
                    past.clear();
                    past.push(model.clone());
                    compare(&read(&files).await, &model, &format!("seed {seed}, life {life}"));
                }
                compare(&read(&files).await, &model, &format!("seed {seed}, life {life}"));
                past
            });
            if !cut {
                world.crash_process();
                continue;
            }
            world.cut_power();
            let env = world.env();
            world.block_on(async {
                let bed = Bed::start(&env, &store, 2 * life + 2).await;
                let files = bed.files(ack).await;
                let found = read(&files).await;
                let mut same = past.iter().filter(|past| **past == found);
                let was = same.next_back();
                let never = || panic!("seed {seed}, life {life}: a state that never was");
                model = was.unwrap_or_else(never).clone();
                same.for_each(|other| taking::doubt(&mut model, other));
            });
            world.crash_process();
        }
    }
}

#[test]
fn the_size_of_a_volume_is_a_limit_that_changes_while_it_is_used() {
    with_files(async |bed, files| {
        let file = make(files, ROOT, "f", FileType::Regular).await;
        files.write(CALLER, file, 0, &[1; 100_000]).await.unwrap();
        // Less than there is: nothing is lost, and nothing more fits.
        let refused = bed.volumes.resize("fs", 65_536, false).await.unwrap_err();
        assert!(refused.to_string().contains("--shrink"), "{refused}");
        bed.volumes.resize("fs", 131_072, false).await.unwrap();
        bed.volumes.resize("fs", 65_536, true).await.unwrap();
        assert_eq!(files.space().await.unwrap().bytes, 65_536);
        let more = files.write(CALLER, file, 102_399, &[1; 10]).await;
        assert_eq!(errno(more), Some(Errno::NOSPC));
        files.write(CALLER, file, 99_999, &[1; 1]).await.unwrap();
        assert_eq!(files.read(file, 99_999, 9).await.unwrap(), &[1][..]);
        bed.volumes.resize("fs", 1 << 20, false).await.unwrap();
        files.write(CALLER, file, 100_000, &[1; 10]).await.unwrap();
        files.handle().staged().drain().await.unwrap();
        assert_eq!(files.space().await.unwrap().bytes, 1 << 20, "no commit takes it back");
    });
}

/// Takes a snapshot, or removes one, or neither. Returns whether it took one.
async fn change_snapshots(
    bed: &Bed,
    snapshots: &mut Vec<(String, Model)>,
    model: &Model,
    dice: &mut Random,
) -> bool {
    match dice.below(4) {
        0 if !snapshots.is_empty() => {
            let (name, _) = snapshots.remove(dice.below(snapshots.len() as u64) as usize);
            bed.volumes.remove_snapshot("fs", &name).await.unwrap();
            false
        }
        1 | 2 if snapshots.len() < 4 => {
            let name = format!("s{}", dice.below(u64::MAX));
            bed.volumes.take_snapshot("fs", &name).await.unwrap();
            snapshots.push((name, model.clone()));
            true
        }
        _ => false,
    }
}

async fn compare_snapshots(files: &Files, snapshots: &[(String, Model)], seed: u64) {
    let dir = files.lookup(ROOT, b".snapshots").await.unwrap().ino;
    let listed = files.list(dir, 0, 100).await.unwrap();
    assert_eq!(listed.len(), snapshots.len());
    for (entry, (name, model)) in listed.iter().zip(snapshots) {
        assert_eq!(entry.name, name.as_bytes());
        let root = files.lookup(dir, name.as_bytes()).await.unwrap().ino;
        assert_eq!((entry.ino, files.parent(root).await.unwrap()), (root, dir));
        let found = Model::read_below(files, root).await;
        let found = found.unwrap_or_else(|unread| panic!("{unread}"));
        compare(&found, model, &format!("seed {seed}, snapshot {name}"));
    }
}

#[test]
fn a_snapshot_is_seen_below_the_root_and_nothing_in_it_changes() {
    with_files(async |bed, files| {
        let dir = make(files, ROOT, "d", FileType::Directory).await;
        let file = make(files, dir, "f", FileType::Regular).await;
        files.write(CALLER, file, 0, b"before").await.unwrap();
        bed.volumes.take_snapshot("fs", "s").await.unwrap();
        files.write(CALLER, file, 0, b"after!").await.unwrap();
        let all = files.lookup(ROOT, b".snapshots").await.unwrap();
        assert_eq!((all.kind, all.mode & 0o222), (FileType::Directory, 0));
        assert!(files.list(ROOT, 0, 9).await.unwrap().iter().all(|one| one.name != ".snapshots"));
        let root = files.lookup(all.ino, b"s").await.unwrap().ino;
        let old_dir = files.lookup(root, b"d").await.unwrap().ino;
        let old = files.lookup(old_dir, b"f").await.unwrap();
        assert_eq!(files.read(old.ino, 0, 9).await.unwrap(), &b"before"[..]);
        assert_eq!(files.read(file, 0, 9).await.unwrap(), &b"after!"[..]);
        files.open(old.ino).await.unwrap();
        files.close(old.ino).await;
        let node = NewNode {
            kind: FileType::Regular,
            mode: 0o644,
            device: 0,
            target: b"",
            stamps: None,
            umask: 0,
        };
        let rofs = Some(Errno::ROFS);
        assert_eq!(errno(files.write(CALLER, old.ino, 0, b"x").await), rofs);
        assert_eq!(errno(files.set_attr(CALLER, old.ino, &SetAttr::default()).await), rofs);
        assert_eq!(errno(files.create(CALLER, old_dir, b"new", &node).await), rofs);
        assert_eq!(errno(files.create(CALLER, all.ino, b"new", &node).await), rofs);
        assert_eq!(errno(files.unlink(CALLER, old_dir, b"f").await), rofs);
        assert_eq!(errno(files.remove_dir(CALLER, all.ino, b"s").await), rofs);
        let into = (dir, &b"g"[..]);
        let moved = files.rename(CALLER, (old_dir, b"f"), into, Rename::Replace).await;
        assert_eq!(errno(moved), rofs);
        assert_eq!(errno(files.link(CALLER, old.ino, dir, b"g").await), Some(Errno::XDEV));
        let taken = files.create(CALLER, ROOT, b".snapshots", &node).await;
        assert_eq!(errno(taken), Some(Errno::EXIST));
        assert_eq!(errno(files.remove_dir(CALLER, ROOT, b".snapshots").await), Some(Errno::PERM));
        assert_eq!(errno(files.xattr(all.ino, b"user.x").await), Some(Errno::NODATA));
        assert_eq!(errno(files.read(all.ino, 0, 1).await), Some(Errno::ISDIR));
        // Numbers that nothing has.
        for ino in [all.ino + 1, root + (1 << 42), root + 77, 1 << 63] {
            assert_eq!(errno(files.attr(ino).await), Some(Errno::STALE), "{ino:x}");
        }
        bed.volumes.remove_snapshot("fs", "s").await.unwrap();
        assert_eq!(errno(files.read(old.ino, 0, 9).await), Some(Errno::STALE));
        assert_eq!(errno(files.lookup(all.ino, b"s").await), Some(Errno::NOENT));
    });
}

fn with_files(test: impl AsyncFn(&Bed, &Files)) {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        test(&bed, &files).await;
    });
}

const CALLER: Caller<'static> =
    Caller { uid: 0, gid: 0, origin: None, call: None, witness: None, keeper: None };

/// Has a commit take all that was acknowledged.
async fn drain(files: &Files) {
    files.handle().staged().drain().await.unwrap();
}

async fn make(files: &Files, dir: Ino, name: &str, kind: FileType) -> Ino {
    let node = NewNode { kind, mode: 0o644, device: 0, target: b"", stamps: None, umask: 0 };
    files.create(CALLER, dir, name.as_bytes(), &node).await.unwrap().ino
}

#[test]
fn thousands_of_names_are_listed_once_each_also_while_others_come_and_go() {
    with_files(async |_, files| {
        let dir = make(files, ROOT, "dir", FileType::Directory).await;
        for n in 0..3000 {
            make(files, dir, &format!("file {n}"), FileType::Regular).await;
            if n == 1000 || n == 2000 {
                files.handle().staged().drain().await.unwrap();
            }
        }
        let (mut found, mut after) = (Vec::new(), 0);
        for round in 0.. {
            let entries = files.list(dir, after, 100).await.unwrap();
            let Some(last) = entries.last() else { break };
            after = last.position;
            found.extend(entries.into_iter().map(|entry| entry.name));
            make(files, dir, &format!("late {round}"), FileType::Regular).await;
            let gone = found[round].clone();
            files.unlink(CALLER, dir, &gone).await.unwrap();
            if round % 7 == 0 {
                files.handle().staged().drain().await.unwrap();
            }
        }
        found.retain(|name| name.starts_with(b"file"));
        let count = found.len();
        found.sort();
        found.dedup();
        assert_eq!((count, found.len()), (3000, 3000));
        // All go, and the tables with them.
        for entry in files.list(dir, 0, 10_000).await.unwrap() {
            files.unlink(CALLER, dir, &entry.name).await.unwrap();
        }
        files.handle().staged().drain().await.unwrap();
        assert_eq!(files.attr(dir).await.unwrap().size, 0);
        assert!(files.list(dir, 0, 10).await.unwrap().is_empty());
        files.remove_dir(CALLER, ROOT, b"dir").await.unwrap();
        assert_eq!(files.space().await.unwrap().inodes, 1);
    });
}

#[test]
fn a_file_in_use_stays_without_a_name_and_goes_with_its_last_use() {
    with_files(async |_, files| {
        let ino = make(files, ROOT, "a", FileType::Regular).await;
        files.open(ino).await.unwrap();
        files.open(ino).await.unwrap();
        files.write(CALLER, ino, 0, b"kept").await.unwrap();
        files.unlink(CALLER, ROOT, b"a").await.unwrap();
        files.handle().staged().drain().await.unwrap();
        assert_eq!(&files.read(ino, 0, 100).await.unwrap()[..], b"kept");
        assert_eq!(files.space().await.unwrap().inodes, 2);
        files.close(ino).await;
        files.write(CALLER, ino, 4, b" on").await.unwrap();
        files.close(ino).await;
        assert_eq!(errno(files.read(ino, 0, 100).await), Some(Errno::STALE));
        assert_eq!(
            files.space().await.unwrap(),
            Space { bytes: 1 << 30, bytes_used: 0, inodes: 1 }
        );
        assert_eq!(errno(files.open(ino).await), Some(Errno::STALE));
    });
}

#[test]
fn a_file_in_use_that_nobody_comes_back_to_is_removed_after_a_restart() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let ino = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let (ino, other) = (
            make(&files, ROOT, "a", FileType::Regular).await,
            make(&files, ROOT, "b", FileType::Regular).await,
        );
        for (ino, name) in [(ino, b"a"), (other, b"b")] {
            files.open(ino).await.unwrap();
            files.unlink(CALLER, ROOT, name).await.unwrap();
        }
        ino
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        files.open(ino).await.unwrap();
        env.sleep(limits::ORPHAN_GRACE * 2).await;
        assert_eq!(files.space().await.unwrap().inodes, 2, "one is in use again");
        files.close(ino).await;
        assert_eq!(files.space().await.unwrap().inodes, 1);
    });
}

#[test]
fn nothing_is_shown_once_another_node_may_have_the_volume() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files_as(Policy::Through, Ack::Flash).await;
        let ino = make(&files, ROOT, "a", FileType::Regular).await;
        files.write(CALLER, ino, 0, b"old").await.unwrap();
        let logged = make(&files, ROOT, "in the log", FileType::Regular).await;
        files.handle().staged().drain().await.unwrap();
        files.write(CALLER, logged, 0, b"new").await.unwrap();
        let snapshots = files.lookup(ROOT, b".snapshots").await.unwrap().ino;
        let node = NewNode {
            kind: FileType::Regular,
            mode: 0o644,
            device: 0,
            target: b"",
            stamps: None,
            umask: 0,
        };
        for may_be_another in [false, true] {
            let shown = [
                files.attr(ino).await.map(drop),
                files.lookup(ROOT, b"a").await.map(drop),
                files.lookup(ROOT, b"absent").await.map(drop),
                files.list(ROOT, 0, 9).await.map(drop),
                files.read(ino, 0, 9).await.map(drop),
                files.read(logged, 0, 9).await.map(drop),
                files.list_xattrs(ino).await.map(drop),
                files.list(snapshots, 0, 9).await.map(drop),
                files.lookup(snapshots, b"absent").await.map(drop),
                files.space().await.map(drop),
                // Changes that change nothing.
                files.create(CALLER, ROOT, b"a", &node).await.map(drop),
                files.unlink(CALLER, ROOT, b"absent").await,
                files.rename(CALLER, (ROOT, b"a"), (ROOT, b"a"), Rename::Replace).await,
            ];
            for shown in shown {
                let is_refused = matches!(shown, Err(Error::Volume(_)));
                assert_eq!(is_refused, may_be_another, "{shown:?}");
            }
            bed.lease.set(Some(env.now()));
        }
        bed.lease.set(None);
        assert_eq!(files.read(ino, 0, 9).await.unwrap(), &b"old"[..]);
    });
}

#[test]
fn requests_that_were_carried_out_are_known_after_a_commit_and_a_restart() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let origin = |request| Origin { client: 5, request, oldest: 1 };
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        for request in 1..4 {
            let caller = Caller { origin: Some(origin(request)), ..CALLER };
            let node = NewNode {
                kind: FileType::Directory,
                mode: 0o755,
                device: 0,
                target: b"",
                stamps: None,
                umask: 0,
            };
            files.create(caller, ROOT, &[b'0' + request as u8], &node).await.unwrap();
            if request == 2 {
                files.handle().staged().drain().await.unwrap();
            }
        }
        let by = |request| Caller { origin: Some(origin(request)), ..CALLER };
        let file = make(&files, ROOT, "file", FileType::Regular).await;
        files.write(by(8), file, 2, b"at its place").await.unwrap();
        files.write_at_end(by(4), file, b", behind").await.unwrap();
        assert_eq!(files.read(file, 2, 99).await.unwrap(), "at its place, behind");
        assert_eq!(errno(files.unlink(by(9), ROOT, b"absent").await), Some(Errno::NOENT));
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        for request in 1..5 {
            assert!(files.was_done(origin(request)).await, "{request}");
        }
        for other in [origin(8), origin(9), Origin { client: 6, ..origin(1) }] {
            assert!(!files.was_done(other).await, "{other:?}");
        }
    });
}

#[test]
fn holes_are_found_and_take_no_space() {
    with_files(async |_, files| {
        let ino = make(files, ROOT, "a", FileType::Regular).await;
        let tera = 1 << 40;
        files.write(CALLER, ino, tera - 4096, &[7; 4096]).await.unwrap();
        files.write(CALLER, ino, 8192, &[8; 4096]).await.unwrap();
        for _ in 0..2 {
            let attr = files.attr(ino).await.unwrap();
            assert_eq!((attr.size, attr.allocated), (tera, 8192));
            assert_eq!(files.seek(ino, 0, Seek::Data).await.unwrap(), 8192);
            assert_eq!(files.seek(ino, 8192, Seek::Hole).await.unwrap(), 12_288);
            assert_eq!(files.seek(ino, 12_288, Seek::Data).await.unwrap(), tera - 4096);
            assert_eq!(files.seek(ino, tera - 1, Seek::Hole).await.unwrap(), tera);
            assert_eq!(errno(files.seek(ino, tera, Seek::Data).await), Some(Errno::NXIO));
            assert_eq!(files.read(ino, 8190, 4).await.unwrap()[..], [0, 0, 8, 8]);
            files.handle().staged().drain().await.unwrap();
        }
        files.allocate(CALLER, ino, Allocate::Punch, 8192, 4096).await.unwrap();
        assert_eq!(files.seek(ino, 0, Seek::Data).await.unwrap(), tera - 4096);
        files.allocate(CALLER, ino, Allocate::Zero { keep_size: false }, tera, 5).await.unwrap();
        assert_eq!(files.attr(ino).await.unwrap().size, tera + 5);
        files.handle().staged().drain().await.unwrap();
        assert_eq!(files.seek(ino, 0, Seek::Data).await.unwrap(), tera - 4096);
        let cut = SetAttr { size: Some(10), ..SetAttr::default() };
        files.set_attr(CALLER, ino, &cut).await.unwrap();
        files.handle().staged().drain().await.unwrap();
        assert_eq!(errno(files.seek(ino, 0, Seek::Data).await), Some(Errno::NXIO));
        assert_eq!(files.read(ino, 0, 99).await.unwrap()[..], [0; 10]);
    });
}

#[test]
fn bad_input_gets_the_error_of_posix() {
    with_files(async |_, files| {
        let node = NewNode {
            kind: FileType::Regular,
            mode: 0o644,
            device: 0,
            target: b"",
            stamps: None,
            umask: 0,
        };
        let long = vec![b'x'; 256];
        let names: [(&[u8], Errno); 6] = [
            (b"", Errno::INVAL),
            (b".", Errno::INVAL),
            (b"..", Errno::INVAL),
            (b"a/b", Errno::INVAL),
            (b"a\0b", Errno::INVAL),
            (&long, Errno::NAMETOOLONG),
        ];
        for (name, expected) in names {
            assert_eq!(errno(files.create(CALLER, ROOT, name, &node).await), Some(expected));
            assert_eq!(errno(files.lookup(ROOT, name).await), Some(expected));
            assert_eq!(
                errno(files.rename(CALLER, (ROOT, b"a"), (ROOT, name), Rename::Replace).await),
                Some(expected)
            );
        }
        assert!(files.create(CALLER, ROOT, &long[1..], &node).await.is_ok(), "255 bytes");
        let odd = files.create(CALLER, ROOT, b"\xff\xfe", &node).await.unwrap().ino;
        for ino in [0, 77, u64::MAX] {
            assert_eq!(errno(files.attr(ino).await), Some(Errno::STALE));
            assert_eq!(errno(files.list(ino, 0, 10).await), Some(Errno::STALE));
            assert_eq!(errno(files.write(CALLER, ino, 0, b"a").await), Some(Errno::STALE));
        }
        assert_eq!(errno(files.list(odd, 0, 10).await), Some(Errno::NOTDIR));
        assert_eq!(errno(files.lookup(odd, b"a").await), Some(Errno::NOTDIR));
        assert!(files.list(ROOT, u64::MAX, 10).await.unwrap().is_empty());
        assert!(files.list(ROOT, 12_345_678, 10).await.is_ok(), "a made-up position");
        for offset in [u64::MAX, u64::MAX - 5, FILE_BYTES_MAX] {
            assert_eq!(errno(files.write(CALLER, odd, offset, b"abc").await), Some(Errno::FBIG));
            assert!(files.read(odd, offset, 100).await.unwrap().is_empty());
        }
        assert_eq!(errno(files.write(CALLER, ROOT, 0, b"abc").await), Some(Errno::ISDIR));
        // A quota that is met: that write only.
        let big = vec![1; 1 << 20];
        let mut offset = 0;
        let full = loop {
            match files.write(CALLER, odd, offset, &big).await {
                Ok(()) => offset += 1 << 20,
                Err(error) => break errno::<()>(Err(error)),
            }
        };
        assert_eq!((full, offset), (Some(Errno::NOSPC), 1 << 30));
        files.write(CALLER, odd, 5, b"overwritten").await.unwrap();
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        files.set_attr(CALLER, odd, &cut).await.unwrap();
        files.write(CALLER, odd, 0, &big).await.unwrap();
    });
}

#[test]
fn a_commit_folds_thousands_of_records_into_few_chunks() {
    with_files(async |bed, files| {
        let ino = make(files, ROOT, "big", FileType::Regular).await;
        for n in 0..8 {
            files.write(CALLER, ino, n << 20, &vec![n as u8 + 1; 1 << 20]).await.unwrap();
        }
        files.handle().staged().drain().await.unwrap();
        let before = bed.content.stats();
        for n in 0..2000 {
            make(files, ROOT, &format!("{n}"), FileType::Regular).await;
            files.write(CALLER, ino, (n % 256) * 4096, &[9; 4096]).await.unwrap();
        }
        files.handle().staged().drain().await.unwrap();
        let after = bed.content.stats();
        let written = after.chunks_written - before.chunks_written;
        assert!(written < 500, "{written} chunks for 4,000 records");
        assert_eq!(files.list(ROOT, 0, 3000).await.unwrap().len(), 2001);
    });
}

#[test]
fn while_a_change_waits_for_room_files_are_opened_and_read() {
    let (world, mem) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let (store, faults) = fault::wrap(&env, mem, Plan::default());
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let small = make(&files, ROOT, "small", FileType::Regular).await;
        let big = make(&files, ROOT, "big", FileType::Regular).await;
        files.write(CALLER, small, 0, b"hello").await.unwrap();
        files.handle().staged().drain().await.unwrap();
        faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
        let soon = std::time::Duration::from_secs(120);
        let mut at = 0;
        while let Ok(written) = env.timeout(soon, files.write(CALLER, big, at, &[1; 1 << 20])).await
        {
            written.unwrap();
            at += 1 << 20;
            assert!(at < 256 << 20, "the log takes all of it");
        }
        env.timeout(soon, files.open(small)).await.unwrap().unwrap();
        env.timeout(soon, files.open(ROOT)).await.unwrap().unwrap();
        let read = env.timeout(soon, files.read(small, 0, 9)).await.unwrap();
        assert_eq!(read.unwrap(), &b"hello"[..]);
    });
}

/// Changes that fill a log: so many writes of a mebibyte, of 64 KiB and of 1 KiB, and modes.
async fn fill(files: &Files, file: Ino, counts: &[u64]) -> u64 {
    let (mut at, mut taken) = (0, 0);
    for (stage, count) in counts.iter().enumerate() {
        taken = 0;
        while taken < *count {
            let size = [1 << 20, 64 << 10, 1 << 10, 0][stage];
            let change = async {
                match size {
                    0 => {
                        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                        files.set_attr(CALLER, file, &set).await.map(drop)
                    }
                    _ => files.write(CALLER, file, at, &vec![1; size]).await,
                }
            };
            match files.env().timeout(std::time::Duration::from_secs(120), change).await {
                Ok(changed) => changed.unwrap(),
                Err(_) => return taken,
            }
            (at, taken) = (at + size as u64, taken + 1);
        }
    }
    taken
}

#[test]
fn a_file_that_is_about_to_go_is_not_opened_before_that_is_known() {
    // How many changes of each length the log takes while the store is away.
    let mut counts = Vec::new();
    for stage in 0..=4 {
        let (world, mem) = (World::new(1, Faults::none()), Mem::store());
        let env = world.env();
        let (store, faults) = fault::wrap(&env, mem, Plan::default());
        world.block_on(async {
            let bed = Bed::start(&env, &store, 1).await;
            let files = bed.files(Ack::Flash).await;
            let doomed = make(&files, ROOT, "doomed", FileType::Regular).await;
            let other = make(&files, ROOT, "other", FileType::Regular).await;
            files.handle().staged().drain().await.unwrap();
            faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
            if stage < 4 {
                let all: Vec<u64> = counts.iter().copied().chain([u64::MAX]).collect();
                let count = fill(&files, other, &all).await;
                counts.push(count);
                return;
            }
            fill(&files, other, &counts).await;
            let soon = std::time::Duration::from_secs(120);
            let gone = env.timeout(soon, files.unlink(CALLER, ROOT, b"doomed")).await;
            assert!(gone.is_err(), "it waits for room");
            env.timeout(soon, files.open(other)).await.unwrap().unwrap();
            let opened = env.timeout(soon, files.open(doomed)).await;
            assert!(opened.is_err(), "it is not known yet whether it goes: {opened:?}");
            faults.set(Plan::default());
            files.handle().staged().drain().await.unwrap();
            assert_eq!(errno(files.open(doomed).await), Some(Errno::STALE));
        });
    }
}

async fn read(files: &Files) -> Model {
    Model::read(files).await.unwrap_or_else(|unread| panic!("{unread}"))
}

/// Says where two models differ.
fn compare(found: &Model, expected: &Model, name: &str) {
    for (ino, node) in &expected.nodes {
        assert_eq!(found.nodes.get(ino), Some(node), "{name}: inode {ino}");
    }
    assert_eq!(found.nodes.len(), expected.nodes.len(), "{name}");
}
