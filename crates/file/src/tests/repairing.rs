//! Damage of every sort of chunk: the rest is served, nothing is given up before a person says so,
//! and what is left afterwards fits together.

use super::bed::Bed;
use super::model::{Model, Unread};
use super::{CALLER, compare, errno, make, play, read};
use crate::format::page::Row;
use crate::format::rows::Named;
use crate::home::Home;
use crate::state::{ORPHANS, Stored};
use crate::table::{self, Pages};
use crate::*;
use bytes::Bytes;
use rekindle_base::random::Random;
use rekindle_content::tree::{self, Root, Visitor};
use rekindle_content::{Class, Pointer};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, RecordRepair};
use std::collections::{BTreeMap, BTreeSet};

/// All chunks below a root.
#[derive(Default)]
struct All(BTreeMap<(rekindle_base::PackId, u32, [u8; 32]), Pointer>);

impl Visitor for All {
    fn meet(&mut self, pointer: &Pointer) -> bool {
        self.0.insert((pointer.pack, pointer.offset, pointer.name), *pointer).is_none()
    }

    fn failed(
        &mut self,
        _: &Pointer,
        error: rekindle_content::Error,
    ) -> Result<(), rekindle_content::Error> {
        Err(error)
    }
}

pub(super) async fn root_of(bed: &Bed) -> Root {
    bed.volumes.show("fs").await.unwrap().vault.root
}

/// Flips a bit of a chunk in the store.
pub(super) async fn damage(store: &Store, chunk: &Pointer) {
    let key = rekindle_content::pack::key(chunk.pack);
    let (object, _) = store.get(&key).await.unwrap();
    let mut object = object.to_vec();
    object[chunk.offset as usize + chunk.stored as usize / 2] ^= 1;
    store.put(&key, Bytes::from(object)).await.unwrap();
}

/// Says what does not fit together in what the store has.
pub(super) async fn misfits(bed: &Bed, files: &Files) -> Vec<String> {
    let home = files.handle().staged().record_home::<Home>().unwrap();
    let root = root_of(bed).await;
    let mut batch = bed.content.batch();
    let tidied = home.tidy(&mut batch, &root, files.env().wall_clock()).await.unwrap();
    assert_eq!(tidied.root == root, tidied.lines.is_empty(), "{:?}", tidied.lines);
    tidied.lines
}

/// Makes a volume, damages chunks of it that `choose` names, and has it salvaged without and with a
/// word to give things up. Then `look` looks at it. All of that in lives of their own.
fn after_damage<T: Clone>(
    make: impl AsyncFn(&Bed, &Files) -> T,
    choose: impl AsyncFn(&Bed, &T) -> Vec<Pointer>,
    look: impl AsyncFn(&Bed, &Files, &T, &str),
) {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let made = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let made = make(&bed, &files).await;
        files.handle().staged().drain().await.unwrap();
        assert_eq!(misfits(&bed, &files).await, [""; 0]);
        for chunk in choose(&bed, &made).await {
            damage(&store, &chunk).await;
        }
        made
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let before = root_of(&bed).await;
        let plan = bed.volumes.salvage("fs", false).await.unwrap().told;
        assert!(plan.contains("nothing was given up: this would be lost: "), "{plan}");
        assert!(plan.contains("`rekindle salvage run fs --accept-losses`"), "{plan}");
        assert_eq!(root_of(&bed).await, before);
        bed.volumes.salvage("fs", true).await.unwrap();
        let files = bed.files(Ack::Flash).await;
        assert_eq!(misfits(&bed, &files).await, [""; 0]);
        let history = bed.volumes.salvage_history("fs").await.unwrap();
        let told = history.last().unwrap().lines.join("\n");
        look(&bed, &files, &made, &told).await;
        let sound = bed.volumes.salvage("fs", false).await.unwrap().told;
        assert!(sound.contains("all of them sound"), "{sound}");
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 3).await;
        let files = bed.files(Ack::Flash).await;
        read(&files).await;
    });
}

pub(super) async fn stored(bed: &Bed, ino: Ino) -> Stored {
    let row = table::get(&bed.content, &root_of(bed).await, ino).await.unwrap().unwrap();
    Stored::decode(&row).unwrap()
}

/// The page of a table that has a row with this key.
pub(super) async fn page(bed: &Bed, table: &Root, key: u64) -> Pointer {
    tree::floor(&bed.content, table, key).await.unwrap().unwrap().1
}

async fn names(files: &Files, dir: Ino) -> BTreeSet<String> {
    let all = files.list(dir, 0, 100_000).await.unwrap();
    all.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
}

#[test]
fn a_chunk_of_data_costs_its_bytes_and_they_are_named_by_path() {
    after_damage(
        async |_, files| {
            let dir = make(files, ROOT, "d", FileType::Directory).await;
            let file = make(files, dir, "f", FileType::Regular).await;
            let mut dice = Random::new(1);
            let bytes: Vec<u8> = (0..1_000_000).map(|_| dice.below(256) as u8).collect();
            files.write(CALLER, file, 0, &bytes).await.unwrap();
            (file, bytes)
        },
        async |bed, (file, _)| {
            let content = stored(bed, *file).await.body.tree();
            let runs = tree::range(&bed.content, &content, 0..u64::MAX).await.unwrap();
            assert!(runs.len() > 3, "{}", runs.len());
            vec![runs[2].1]
        },
        async |_, files, (file, bytes), told| {
            let (begin, end) = told
                .split("\nlost: /d/f: bytes ")
                .nth(1)
                .and_then(|rest| rest.lines().next()?.split_once(".."))
                .map(|(begin, end)| (begin.parse().unwrap(), end.parse().unwrap()))
                .unwrap_or_else(|| panic!("{told}"));
            let found = files.read(*file, 0, bytes.len()).await.unwrap();
            let mut expected = bytes.clone();
            expected[begin..end].fill(0);
            assert!(found == expected && end - begin < 300_000 && begin > 0, "{begin}..{end}");
            let attr = files.attr(*file).await.unwrap();
            // What is lost is zeros, which take what it took: so it can be written again.
            assert_eq!(attr.allocated, (bytes.len() as u64).next_multiple_of(4096));
            assert_eq!(files.space().await.unwrap().bytes_used, attr.allocated);
            files.write(CALLER, *file, begin as u64, &bytes[begin..end]).await.unwrap();
            assert_eq!(files.read(*file, 0, bytes.len()).await.unwrap(), bytes);
        },
    );
}

#[test]
fn what_is_damaged_is_an_error_and_the_rest_is_served_until_a_person_accepts() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let (file, other) = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let file = make(&files, ROOT, "f", FileType::Regular).await;
        let other = make(&files, ROOT, "g", FileType::Regular).await;
        files.write(CALLER, file, 0, &[1; 2000]).await.unwrap();
        files.write(CALLER, other, 0, &[2; 10]).await.unwrap();
        files.handle().staged().drain().await.unwrap();
        let content = stored(&bed, file).await.body.tree();
        let runs = tree::range(&bed.content, &content, 0..u64::MAX).await.unwrap();
        damage(&store, &runs[0].1).await;
        (file, other)
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        env.spawn("salvager", bed.volumes.salvager());
        for (hours, word) in [(0, None), (3, None), (0, Some(false)), (0, Some(true))] {
            // The node looks at what a reader has met, and gives nothing up by itself.
            env.sleep(std::time::Duration::from_secs(hours * 3600)).await;
            if let Some(accept) = word {
                bed.volumes.salvage("fs", accept).await.unwrap();
            }
            assert_eq!(files.read(other, 0, 9).await.unwrap(), [2; 9][..]);
            // A change that waits for its commit meanwhile.
            make(&files, ROOT, &format!("{hours} {word:?}"), FileType::Regular).await;
            match files.read(file, 0, 9).await {
                Ok(zeros) => assert!(word == Some(true) && zeros == [0; 9][..]),
                Err(Error::Volume(_)) => assert_ne!(word, Some(true)),
                Err(Error::Posix(errno)) => panic!("{errno}"),
            }
        }
        files.handle().staged().drain().await.unwrap();
        assert_eq!(misfits(&bed, &files).await, [""; 0]);
        assert_eq!(names(&files, ROOT).await.len(), 6);
    });
}

#[test]
fn a_snapshot_that_was_mended_is_seen_so_at_once() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let file = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let file = make(&files, ROOT, "f", FileType::Regular).await;
        files.write(CALLER, file, 0, &[1; 2000]).await.unwrap();
        bed.volumes.take_snapshot("fs", "s").await.unwrap();
        files.handle().staged().drain().await.unwrap();
        let content = stored(&bed, file).await.body.tree();
        let runs = tree::range(&bed.content, &content, 0..u64::MAX).await.unwrap();
        damage(&store, &runs[0].1).await;
        file
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        let dir = files.lookup(ROOT, b".snapshots").await.unwrap().ino;
        let root = files.lookup(dir, b"s").await.unwrap().ino;
        let past = files.lookup(root, b"f").await.unwrap().ino;
        for ino in [file, past] {
            files.read(ino, 0, 9).await.unwrap_err();
        }
        bed.volumes.salvage("fs", true).await.unwrap();
        for ino in [file, past] {
            assert_eq!(files.read(ino, 0, 9).await.unwrap(), [0; 9][..]);
        }
    });
}

#[test]
fn what_only_a_snapshot_has_comes_back_below_pages_and_rows() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let file = make(&files, ROOT, "f", FileType::Regular).await;
        let dir = make(&files, ROOT, "d", FileType::Directory).await;
        for number in 0..40 {
            make(&files, dir, &format!("name-{number}"), FileType::Regular).await;
        }
        let mut dice = Random::new(1);
        let bytes: Vec<u8> = (0..300_000).map(|_| dice.below(256) as u8).collect();
        files.write(CALLER, file, 0, &bytes).await.unwrap();
        bed.volumes.take_snapshot("fs", "s").await.unwrap();
        files.handle().staged().drain().await.unwrap();
        let content = stored(&bed, file).await.body.tree();
        let runs = tree::range(&bed.content, &content, 0..u64::MAX).await.unwrap();
        let entries = stored(&bed, dir).await.body.tree();
        let names = page(&bed, &entries, u64::MAX).await;
        // Nothing of it is left in the present file system.
        files.unlink(CALLER, ROOT, b"f").await.unwrap();
        for number in 0..40 {
            let name = format!("name-{number}");
            files.unlink(CALLER, dir, name.as_bytes()).await.unwrap();
        }
        files.handle().staged().drain().await.unwrap();
        for chunk in runs.iter().map(|(_, chunk)| chunk).chain([&names]) {
            damage(&store, chunk).await;
        }
        let root = root_of(&bed).await;
        let told = bed.volumes.salvage("fs", false).await.unwrap().told;
        assert!(!told.contains("lacks"), "{told}");
        assert_eq!(root_of(&bed).await, root);
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        let dir = files.lookup(ROOT, b".snapshots").await.unwrap().ino;
        let root = files.lookup(dir, b"s").await.unwrap().ino;
        let past = files.lookup(root, b"f").await.unwrap().ino;
        assert_eq!(files.read(past, 0, 300_000).await.unwrap().len(), 300_000);
        let past = files.lookup(root, b"d").await.unwrap().ino;
        assert_eq!(names(&files, past).await.len(), 40);
        let sound = bed.volumes.salvage("fs", false).await.unwrap().told;
        assert!(sound.contains("all of them sound"), "{sound}");
    });
}

/// A directory with many names: every third is a directory with a file in it, and the others are
/// files.
async fn many(files: &Files) -> Ino {
    let dir = make(files, ROOT, "many", FileType::Directory).await;
    for n in 0..900 {
        let (name, kind) = match n % 3 {
            0 => (format!("directory with a long name {n}"), FileType::Directory),
            _ => (format!("file with a long name {n}"), FileType::Regular),
        };
        let ino = make(files, dir, &name, kind).await;
        if kind == FileType::Directory {
            make(files, ino, "inner", FileType::Regular).await;
        } else if n % 3 == 1 {
            files.link(CALLER, ino, ROOT, format!("other {n}").as_bytes()).await.unwrap();
        }
    }
    dir
}

#[test]
fn a_page_of_a_directory_costs_names_and_their_inodes_are_found() {
    after_damage(
        async |_, files| (many(files).await, read(files).await),
        async |bed, (dir, _)| {
            let table = stored(bed, *dir).await.body.tree();
            let second = tree::above(&bed.content, &table, 0).await.unwrap().unwrap();
            vec![second.1]
        },
        async |_, files, (dir, before), told| {
            let now = read(files).await;
            let left = &now.nodes[dir];
            let lost: Vec<_> = before.nodes[dir]
                .names
                .iter()
                .filter(|(name, _)| !left.names.contains_key(*name))
                .collect();
            assert!(lost.len() > 50 && left.names.len() > 50, "{}", lost.len());
            let what = format!("lost: /many: {} of its 900 names", lost.len());
            assert!(told.contains(&what), "{what} in {told}");
            let found = &now.nodes[&now.nodes[&ROOT].names[&b"lost+found"[..]]].names;
            let mut expected = 0;
            for (name, ino) in lost {
                let node = &now.nodes[ino];
                let number = format!("#{ino}").into_bytes();
                let has_other =
                    name.starts_with(b"file") && node.links == 1 && before.nodes[ino].links == 2;
                assert_eq!(found.contains_key(&number), !has_other, "{name:?}");
                expected += usize::from(!has_other);
                assert_eq!(node.names, before.nodes[ino].names, "what is in it stays");
            }
            assert_eq!(found.len(), expected);
            assert_eq!(now.nodes.len(), before.nodes.len() + 1, "no inode is lost");
        },
    );
}

#[test]
fn a_page_of_the_table_of_inodes_costs_these_and_their_names_go() {
    after_damage(
        async |_, files| (many(files).await, read(files).await),
        async |bed, _| {
            let root = root_of(bed).await;
            let second = tree::above(&bed.content, &root, 0).await.unwrap().unwrap();
            vec![second.1]
        },
        async |_, files, (dir, before), told| {
            let now = read(files).await;
            let lost: Vec<_> =
                before.nodes.keys().filter(|ino| !now.nodes.contains_key(ino)).collect();
            assert!(lost.len() > 30, "{}", lost.len());
            for (name, ino) in &before.nodes[dir].names {
                let is_lost = lost.contains(&ino);
                assert_eq!(now.nodes[dir].names.contains_key(name), !is_lost);
                let name = String::from_utf8_lossy(name);
                if is_lost && told.lines().count() < 90 {
                    assert!(told.contains(&format!("/many/{name}: it is lost as a whole")));
                }
            }
            let has_name = |ino: &Ino| {
                now.nodes.values().any(|node| node.names.values().any(|one| one == ino))
            };
            assert!(now.nodes.keys().all(|ino| *ino == ROOT || has_name(ino)));
            assert!(told.contains("lost: the inodes "), "{told}");
        },
    );
}

#[test]
fn inodes_that_are_lost_with_their_names_are_counted_and_none_is_made_in_their_place() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let greatest = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let dir = many(&files).await;
        files.handle().staged().drain().await.unwrap();
        let greatest = *read(&files).await.nodes.keys().last().unwrap();
        let names = stored(&bed, dir).await.body.tree();
        let all = tree::range(&bed.content, &names, 0..u64::MAX).await.unwrap();
        for (_, chunk) in all {
            damage(&store, &chunk).await;
        }
        damage(&store, &page(&bed, &root_of(&bed).await, greatest).await).await;
        greatest
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        let kind = FileType::Regular;
        let node = NewNode { kind, mode: 0o644, device: 0, target: b"", stamps: None, umask: 0 };
        let refused = files.create(CALLER, ROOT, b"new", &node).await;
        assert!(matches!(refused, Err(Error::Volume(_))), "{refused:?}");
        let plan = bed.volumes.salvage("fs", false).await.unwrap().told;
        assert!(plan.contains("the inodes from "), "{plan}");
        bed.volumes.salvage("fs", true).await.unwrap();
        let new = make(&files, ROOT, "new", FileType::Regular).await;
        assert!(new > greatest, "{new}");
        files.handle().staged().drain().await.unwrap();
        assert_eq!(misfits(&bed, &files).await, [""; 0]);
    });
}

#[test]
fn the_first_page_of_all_costs_the_root_directory_and_no_number_is_given_twice() {
    after_damage(
        async |_, files| (many(files).await, read(files).await),
        async |bed, _| vec![page(bed, &root_of(bed).await, ORPHANS).await],
        async |_, files, (_, before), told| {
            let now = read(files).await;
            let greatest = before.nodes.keys().last().unwrap();
            let new = make(files, ROOT, "new", FileType::Regular).await;
            assert!(new > *greatest, "{new}");
            assert_eq!(names(files, ROOT).await, ["lost+found", "new"].map(str::to_owned).into());
            assert!(now.nodes.len() > 500, "{}", now.nodes.len());
            assert!(told.contains("lost: the inodes 0 to "), "{told}");
        },
    );
}

#[test]
fn a_root_that_is_lost_is_an_empty_file_system_once_a_person_accepts() {
    after_damage(
        async |_, files| many(files).await,
        async |bed, _| root_of(bed).await.into_iter().collect(),
        async |_, files, _, told| {
            assert!(names(files, ROOT).await.is_empty());
            assert!(told.contains("lost: all files and directories"), "{told}");
            let new = make(files, ROOT, "new", FileType::Regular).await;
            assert!(new > 2000, "{new}");
        },
    );
}

#[test]
fn extended_attributes_and_extents_cost_no_more_than_themselves() {
    after_damage(
        async |_, files| {
            let one = make(files, ROOT, "one", FileType::Regular).await;
            let other = make(files, ROOT, "other", FileType::Regular).await;
            files.write(CALLER, one, 0, &[1; 10_000]).await.unwrap();
            files.write(CALLER, other, 0, &[2; 10_000]).await.unwrap();
            for (ino, value) in [(one, b"v"), (other, b"w")] {
                files.set_xattr(CALLER, ino, b"user.a", value, SetXattr::Any).await.unwrap();
            }
            (one, other)
        },
        async |bed, (one, other)| {
            let xattrs = stored(bed, *one).await.xattrs;
            let content = stored(bed, *other).await.body.tree();
            vec![page(bed, &xattrs, u64::MAX).await, content.unwrap()]
        },
        async |_, files, (one, other), told| {
            assert!(files.list_xattrs(*one).await.unwrap().is_empty());
            assert_eq!(files.read(*one, 0, 9).await.unwrap(), [1; 9][..]);
            assert_eq!(files.xattr(*other, b"user.a").await.unwrap(), &b"w"[..]);
            assert_eq!(files.read(*other, 0, 20_000).await.unwrap(), [0; 10_000][..]);
            assert!(told.contains("lost: /one: extended attributes"), "{told}");
            assert!(told.contains("lost: /other: bytes 0..10000"), "{told}");
        },
    );
}

/// Checks that a report names all that is not there any more.
fn told_all(lines: &[String], before: &Model, now: &Model, seed: u64) {
    let says = |word: &str| lines.iter().any(|line| line.contains(word));
    if says("lost: all files and directories") {
        return;
    }
    let numbers = |line: &str, word: &str, between: &str| {
        let (_, range) = line.split_once(word)?;
        let (from, to) = range.split_once(between)?;
        Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?))
    };
    let from = |line: &String| {
        let (_, rest) = line.split_once("the inodes from ")?;
        Some((rest.split_once(' ')?.0.parse().ok()?, u64::MAX))
    };
    let inodes: Vec<(u64, u64)> = lines
        .iter()
        .filter_map(|line| numbers(line, "the inodes ", " to ").or_else(|| from(line)))
        .collect();
    let bytes: Vec<_> = lines.iter().filter_map(|line| numbers(line, ": bytes ", "..")).collect();
    for (ino, node) in &before.nodes {
        let known = says("what it had before its last changes");
        let Some(left) = now.nodes.get(ino) else {
            let is_told = says(&format!("(inode {ino})"))
                || inodes.iter().any(|(from, to)| (from..=to).contains(&ino));
            assert!(is_told, "seed {seed}: inode {ino} is gone: {lines:#?}");
            continue;
        };
        let is_told =
            |at: usize| bytes.iter().any(|(from, to)| (*from..*to).contains(&(at as u64)));
        let differs =
            (0..node.data.len()).find(|at| node.data[*at] != left.data[*at] && !is_told(*at));
        assert!(differs.is_none() || known, "seed {seed}: {ino}, {differs:?}: {lines:#?}");
        let xattrs = node.xattrs == left.xattrs || says("extended attributes");
        assert!(xattrs || known, "seed {seed}: {ino}: {lines:#?}");
        let has = |name| left.names.contains_key(name);
        let names = node.names.keys().all(has) || says(" of its ") || says("it is lost as a whole");
        assert!(names || known, "seed {seed}: {ino}: {lines:#?}");
    }
}

#[test]
fn whatever_chunks_are_damaged_the_rest_is_as_it_was_and_goes_on() {
    let most: u64 = std::env::var("REKINDLE_FILE_SEEDS").map_or(40, |text| text.parse().unwrap());
    for seed in 0..most {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let mut dice = Random::new(seed);
        let (mut model, mut given) = (Model::new(), BTreeSet::new());
        let env = world.env();
        let is_drained = dice.below(2) == 0;
        world.block_on(async {
            let bed = Bed::start(&env, &store, 1).await;
            let files = bed.files(Ack::Memory).await;
            play(&files, (&mut model, &mut given), &mut dice, 120).await;
            files.handle().staged().drain().await.unwrap();
            let root = root_of(&bed).await;
            let mut all = All::default();
            tree::walk(&bed.content, root.as_slice(), &mut all).await.unwrap();
            let chunks: Vec<Pointer> = all.0.into_values().collect();
            for _ in 0..=dice.below(3) {
                let class = if dice.below(3) == 0 { Class::Data } else { Class::Metadata };
                let of: Vec<_> = chunks
                    .iter()
                    .filter(|chunk| rekindle_content::pack::class(chunk.pack) == class)
                    .collect();
                if of.is_empty() {
                    continue;
                }
                let chosen = of[dice.below(of.len() as u64) as usize];
                if Some(*chosen) != root {
                    damage(&store, chosen).await;
                }
            }
            if !is_drained {
                // They are not in the root when it is repaired.
                play(&files, (&mut model, &mut given), &mut dice, 20).await;
            }
            files.sync().await.unwrap();
        });
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let bed = Bed::start(&env, &store, 2).await;
            bed.volumes.salvage("fs", true).await.unwrap();
            let files = bed.files(Ack::Flash).await;
            files.handle().staged().drain().await.unwrap();
            assert_eq!(misfits(&bed, &files).await, [""; 0], "seed {seed}");
            let mut now = match Model::read(&files).await {
                Ok(now) => now,
                Err(Unread::Failed(error)) => panic!("seed {seed}: {error}"),
                Err(Unread::Wrong(why)) => panic!("seed {seed}: {why}"),
            };
            let history = bed.volumes.salvage_history("fs").await.unwrap();
            told_all(&history.last().unwrap().lines, &model, &now, seed);
            for (ino, node) in &now.nodes {
                let Some(before) = model.nodes.get(ino) else { continue };
                assert_eq!(before.kind, node.kind, "seed {seed}: {ino}");
                assert_eq!(before.data.len(), node.data.len(), "seed {seed}: {ino}");
                let mut bytes = before.data.iter().zip(&node.data);
                assert!(bytes.all(|(a, b)| a == b || *b == 0), "seed {seed}: {ino}");
                for (name, value) in &node.xattrs {
                    assert_eq!(before.xattrs.get(name), Some(value), "seed {seed}: {ino}");
                }
            }
            play(&files, (&mut now, &mut given), &mut dice, 60).await;
            compare(&read(&files).await, &now, &format!("seed {seed}"));
            files.handle().staged().drain().await.unwrap();
            assert_eq!(misfits(&bed, &files).await, [""; 0], "seed {seed}");
        });
    }
}

#[test]
fn what_was_put_in_disorder_is_told_and_mended_by_a_word() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let file = make(&files, ROOT, "f", FileType::Regular).await;
        files.handle().staged().drain().await.unwrap();
        // As if a repair had ended between its two commits: a name is gone, and no more.
        let home = files.handle().staged().record_home::<Home>().unwrap();
        let position = {
            let root = stored(&bed, ROOT).await.body.tree();
            let rows = Pages::of(&bed.content, &root).next().await.unwrap().unwrap();
            let is_it = |row: &Row| Named::decode(&row.bytes).unwrap().ino == file;
            *rows.iter().find(|(_, row)| is_it(row)).unwrap().0
        };
        let unnamed = format::record::Effect::Name { dir: ROOT, position, named: None };
        files.put_effects(&[unnamed]).await;
        drop(home);
        files.handle().staged().drain().await.unwrap();
        let said = bed.volumes.salvage("fs", false).await.unwrap().told;
        assert!(said.contains("do not fit together (/lost+found/#2: a file of 0 bytes"), "{said}");
        assert_eq!(names(&files, ROOT).await.len(), 0);
        bed.volumes.salvage("fs", true).await.unwrap();
        assert_eq!(misfits(&bed, &files).await, [""; 0]);
        assert_eq!(names(&files, ROOT).await, ["lost+found".to_owned()].into());
        let dir = files.lookup(ROOT, b"lost+found").await.unwrap();
        assert_eq!((dir.mode, dir.size, dir.links), (0o700, 1, 2));
        assert_eq!(
            errno(files.remove_dir(CALLER, ROOT, b"lost+found").await),
            Some(Errno::NOTEMPTY)
        );
        files.rename(CALLER, (dir.ino, b"#2"), (ROOT, b"f"), Rename::Replace).await.unwrap();
        files.remove_dir(CALLER, ROOT, b"lost+found").await.unwrap();
        files.handle().staged().drain().await.unwrap();
        assert_eq!(misfits(&bed, &files).await, [""; 0]);
    });
}
