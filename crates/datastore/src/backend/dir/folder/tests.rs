//! Folders that cannot be made durable, and files that dead processes left.

use super::*;
use crate::limits::LISTINGS_MAX;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Serializes the tests: they share the statics that stand for the disk.
static TURN: Mutex<()> = Mutex::new(());
static BROKEN: AtomicBool = AtomicBool::new(false);
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// A file that the next sync finds replaced by another one.
static REPLACED: Mutex<Option<PathBuf>> = Mutex::new(None);

fn sync(folder: &Path) -> io::Result<()> {
    SYNCS.fetch_add(1, Relaxed);
    if let Some(path) = REPLACED.lock().take() {
        fs::write(path.with_extension("new"), b"later")?;
        fs::rename(path.with_extension("new"), path)?;
    }
    if BROKEN.load(Relaxed) && !folder.ends_with("store") {
        return Err(io::Error::from_raw_os_error(5));
    }
    sync_folder(folder)
}

fn open(path: &Path) -> Folder {
    BROKEN.store(false, Relaxed);
    let mut folder = Folder::open(&path.join("store"), Timestamp(0), true).unwrap();
    folder.sync_folder = sync;
    folder
}

/// Opens the folder while it cannot be made durable.
fn open_broken(path: &Path) -> Folder {
    let folder = open(path);
    BROKEN.store(true, Relaxed);
    folder
}

fn tag(number: u8) -> [u8; 16] {
    [number; 16]
}

#[test]
fn a_write_whose_folder_cannot_be_made_durable_is_not_believed_until_it_is_written_anew() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path());
    let first = folder.create("volumes/a", b"1", tag(1)).unwrap();
    BROKEN.store(true, Relaxed);
    let failed = folder.replace("volumes/a", b"2", &first, tag(2));
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    // The change is visible and must not be reported: a power cut may undo it.
    for _ in 0..3 {
        let read = folder.get("volumes/a", tag(3));
        assert!(matches!(read, Err(Error::Unavailable(_))), "{read:?}");
        let again = folder.replace("volumes/a", b"3", &version_of(b"2"), tag(4));
        assert!(matches!(again, Err(Error::Unavailable(_))), "{again:?}");
    }
    let ino = || fs::metadata(place.path().join("store/volumes/a")).unwrap().ino();
    let seen = ino();
    BROKEN.store(false, Relaxed);
    assert_eq!(folder.get("volumes/a", tag(5)).unwrap().0, "2");
    assert_ne!(ino(), seen, "it was written anew");
    folder.replace("volumes/a", b"3", &version_of(b"2"), tag(6)).unwrap();
    // A removal as well.
    BROKEN.store(true, Relaxed);
    assert!(folder.delete("volumes/a").is_err());
    assert!(folder.delete("volumes/a").is_err(), "gone, but perhaps not for good");
    BROKEN.store(false, Relaxed);
    folder.delete("volumes/a").unwrap();
    assert!(matches!(folder.get("volumes/a", tag(7)), Err(Error::NotFound(_))));
}

#[test]
fn the_first_look_at_a_record_in_a_life_makes_it_durable() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let other = open(place.path());
    other.put("volumes/a", b"1", tag(1)).unwrap();
    let folder = open(place.path());
    let syncs = |folder: &Folder, wanted: &[u8]| {
        let before = SYNCS.load(Relaxed);
        assert_eq!(folder.get("volumes/a", tag(2)).unwrap().0, wanted);
        SYNCS.load(Relaxed) - before
    };
    assert_eq!(syncs(&folder, b"1"), 1, "its writer may have died after the rename");
    assert_eq!(syncs(&folder, b"1"), 0);
    other.put("volumes/a", b"2", tag(3)).unwrap();
    assert_eq!(syncs(&folder, b"2"), 1, "another version");
    folder.put("volumes/a", b"3", tag(4)).unwrap();
    assert_eq!(syncs(&folder, b"3"), 0, "its own");
    let last = open(place.path());
    BROKEN.store(true, Relaxed);
    assert!(matches!(last.get("volumes/a", tag(5)), Err(Error::Unavailable(_))));
    BROKEN.store(false, Relaxed);
    // Packs: one sync for all that are there.
    other.put("packs/data/a", b"1", tag(6)).unwrap();
    let before = SYNCS.load(Relaxed);
    for _ in 0..5 {
        last.get_range("packs/data/a", 0..1).unwrap();
    }
    assert_eq!(SYNCS.load(Relaxed) - before, 1);
}

#[test]
fn records_that_are_read_together_are_made_durable_by_one_sync() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let other = open(place.path());
    let keys: Vec<String> = (0..5).map(|number| format!("volumes/{number}")).collect();
    let mut first = Vec::new();
    for key in &keys {
        first.push(other.create(key, key.as_bytes(), tag(1)).unwrap());
    }
    let folder = open(place.path());
    let read = |folder: &Folder| {
        let before = SYNCS.load(Relaxed);
        let found = folder.get_together(&keys, tag(2));
        assert_eq!(found.len(), 5);
        (found, SYNCS.load(Relaxed) - before)
    };
    let (found, syncs) = read(&folder);
    assert_eq!(syncs, 1, "their writer may have died after the rename");
    for (key, got) in keys.iter().zip(found) {
        assert_eq!(got.unwrap().0, key.as_bytes());
    }
    // A file that came after the sync had begun takes one of its own.
    *REPLACED.lock() = Some(folder.path(&keys[3]));
    let (found, syncs) = read(&folder);
    assert_eq!((found[3].as_ref().unwrap().0.as_ref(), syncs), (&b"later"[..], 2));
    folder.get(&keys[1], tag(4)).unwrap();
    let (found, _) = read(&open_broken(place.path()));
    assert!(found.iter().all(|got| matches!(got, Err(Error::Unavailable(_)))), "{found:?}");
    // A write of its own whose name may not be durable is written anew.
    assert!(folder.replace(&keys[1], b"2", &first[1], tag(3)).is_err());
    BROKEN.store(false, Relaxed);
    let ino = || fs::metadata(folder.path(&keys[1])).unwrap().ino();
    let seen = ino();
    assert_eq!(read(&folder).0[1].as_ref().unwrap().0, "2");
    assert_ne!(ino(), seen, "it was written anew");
}

#[test]
fn nothing_is_made_in_the_place_of_a_store_that_is_away() {
    let scratch = tempfile::tempdir().unwrap();
    let place = scratch.path().join("store");
    let away = Folder::open(&place, Timestamp(0), false);
    assert!(matches!(away, Err(Error::Unavailable(_))), "{:?}", away.err());
    assert!(!place.exists(), "a folder was made");
    // The mount point of a store that is not mounted.
    fs::create_dir(&place).unwrap();
    let empty = Folder::open(&place, Timestamp(0), false).unwrap();
    assert!(matches!(empty.get(key::IDENTITY, [1; 16]), Err(Error::NotFound(_))));
    drop(empty);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "something was made in it");
    fs::write(place.join(key::IDENTITY), "{}").unwrap();
    Folder::open(&place, Timestamp(0), false).unwrap();
    assert!(place.join(LOCKS).is_dir(), "it is a store");
}

fn keys(page: &[Listed]) -> Vec<String> {
    page.iter().map(|one| one.key.clone()).collect()
}

#[test]
fn a_listing_reads_each_folder_once_and_shows_all_that_was_there_when_it_began() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path());
    let packs = folder.root().join("packs");
    let mut expected = Vec::new();
    for part in ["a", "b.c", "b"] {
        fs::create_dir_all(packs.join(part)).unwrap();
        for number in 0..900 {
            expected.push(format!("packs/{part}/{number:04}"));
            fs::write(packs.join(part).join(format!("{number:04}")), b"1").unwrap();
        }
    }
    expected.sort();
    let first = folder.list("packs/", None, Timestamp(0)).unwrap();
    assert_eq!(keys(&first), expected[..1000]);
    // Behind the first page: the listing has read this folder already, and does not read it again.
    let late = "packs/b.c/0950";
    fs::write(folder.root().join(late), b"1").unwrap();
    fs::remove_file(folder.root().join("packs/b.c/0500")).unwrap();
    // Another listing begins, and stands at the same key.
    let other = folder.list("packs/", None, Timestamp(0)).unwrap();
    let last = other.last().map(|one| one.key.clone());
    let rest = |mut last: Option<String>| {
        let mut all = Vec::new();
        loop {
            let page = folder.list("packs/", last.as_deref(), Timestamp(0)).unwrap();
            let Some(end) = page.last() else { return all };
            last = Some(end.key.clone());
            all.extend(keys(&page));
        }
    };
    let shown = rest(last);
    assert!(shown.iter().any(|key| key == late), "it was there when this listing began");
    assert!(!shown.iter().any(|key| key == "packs/b.c/0500"), "it is gone");
    assert_eq!(shown.len(), 2700 - 1000, "one more, one less");
}

#[test]
fn a_page_never_comes_from_a_listing_that_began_before_its_own() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path());
    let nodes = folder.root().join("nodes");
    fs::create_dir_all(&nodes).unwrap();
    (0..2500).for_each(|number| fs::write(nodes.join(format!("{number:04}")), b"1").unwrap());
    let older = folder.list("nodes/", None, Timestamp(0)).unwrap();
    let second =
        folder.list("nodes/", older.last().map(|one| one.key.as_str()), Timestamp(0)).unwrap();
    let key = second.last().unwrap().key.clone();
    fs::write(nodes.join("2600"), b"1").unwrap();
    let old_walk = folder.listings.take("nodes/", &key).unwrap();
    let newer = folder.list("nodes/", None, Timestamp(0)).unwrap();
    let newer =
        folder.list("nodes/", newer.last().map(|one| one.key.as_str()), Timestamp(0)).unwrap();
    assert_eq!(newer.last().unwrap().key, key, "both stand at one key");
    // The older listing comes to that key last.
    folder.listings.keep("nodes/", &key, old_walk);
    let page = folder.list("nodes/", Some(&key), Timestamp(0)).unwrap();
    assert_eq!(page.last().unwrap().key, "nodes/2600");
}

#[test]
fn a_walk_that_another_listing_has_taken_is_not_replaced_by_one_that_began_earlier() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path());
    let (root, listings) = (folder.root(), &folder.listings);
    fs::create_dir_all(root.join("nodes")).unwrap();
    fs::write(root.join("nodes/1"), b"1").unwrap();
    let walk = || {
        let mut walk = Walk::begin(root, "nodes/", "").unwrap();
        assert_eq!(walk.next(root).unwrap().as_deref(), Some("nodes/1"));
        walk
    };
    let (first, second) = (walk(), walk());
    fs::write(root.join("nodes/2"), b"1").unwrap();
    let third = walk();
    // Each of three listings comes to the same key, and the first one goes on with the third walk.
    listings.keep("nodes/", "nodes/1", first);
    listings.keep("nodes/", "nodes/1", third);
    assert!(listings.take("nodes/", "nodes/1").is_some());
    listings.keep("nodes/", "nodes/1", second);
    let page = folder.list("nodes/", Some("nodes/1"), Timestamp(0)).unwrap();
    assert_eq!(keys(&page), ["nodes/2"], "it was there when the third listing began");
    // Nor by one for which room was made.
    let (early, late) = (walk(), walk());
    listings.keep("nodes/", "nodes/1", late);
    (0..LISTINGS_MAX).for_each(|number| listings.keep("nodes/", &number.to_string(), walk()));
    listings.keep("nodes/", "nodes/1", early);
    assert!(listings.take("nodes/", "nodes/1").is_none());
    // Nor by one that was given up.
    let (early, late) = (walk(), walk());
    listings.keep("nodes/", "nodes/1", late);
    assert!(listings.age() && !listings.age());
    listings.keep("nodes/", "nodes/1", early);
    assert!(listings.take("nodes/", "nodes/1").is_none());
}

#[test]
fn what_is_away_for_one_page_is_shown_by_the_next() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path());
    let packs = folder.root().join("packs");
    for part in ["a", "b", "c"] {
        fs::create_dir_all(packs.join(part)).unwrap();
        (0..900).for_each(|it| fs::write(packs.join(format!("{part}/{it:04}")), b"1").unwrap());
    }
    let last = |page: &[Listed]| page.last().map(|one| one.key.clone());
    let first = folder.list("packs/", None, Timestamp(0)).unwrap();
    // A folder that is a mount of its own goes away, and comes back.
    fs::rename(packs.join("c"), place.path().join("away")).unwrap();
    let second = folder.list("packs/", last(&first).as_deref(), Timestamp(0)).unwrap();
    assert_eq!((first.len(), second.len()), (1000, 800));
    fs::rename(place.path().join("away"), packs.join("c")).unwrap();
    let third = folder.list("packs/", last(&second).as_deref(), Timestamp(0)).unwrap();
    assert_eq!(third.len(), 900, "it was there when the listing began, and is there now");
    // The same while its objects are looked at.
    let first = folder.list("packs/", None, Timestamp(0)).unwrap();
    let first = folder.list("packs/", last(&first).as_deref(), Timestamp(0)).unwrap();
    assert_eq!(last(&first).as_deref(), Some("packs/c/0199"));
    fs::rename(packs.join("c"), place.path().join("away")).unwrap();
    fs::create_dir(packs.join("c")).unwrap();
    (0..500).for_each(|it| fs::write(packs.join(format!("c/{it:04}")), b"1").unwrap());
    let second = folder.list("packs/", last(&first).as_deref(), Timestamp(0)).unwrap();
    assert_eq!(second.len(), 300);
    fs::remove_dir_all(packs.join("c")).unwrap();
    fs::rename(place.path().join("away"), packs.join("c")).unwrap();
    let third = folder.list("packs/", last(&second).as_deref(), Timestamp(0)).unwrap();
    assert_eq!(third.len(), 400);
}

#[test]
fn a_file_that_may_be_replaced_within_a_step_of_the_clock_has_no_tag() {
    let _turn = TURN.lock();
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path());
    folder.create("volumes/a", b"1", tag(1)).unwrap();
    let path = folder.root().join("volumes/a");
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    let since = written.duration_since(UNIX_EPOCH).unwrap().as_micros();
    let tag_at = |age: Duration| {
        let now = u64::try_from(since + 1 + age.as_micros()).unwrap();
        folder.list("volumes/", None, Timestamp(now)).unwrap()[0].tag
    };
    assert_eq!(tag_at(TAG_AGE_MIN - Duration::from_millis(1)), None);
    let first = tag_at(TAG_AGE_MIN);
    assert!(first.is_some() && tag_at(TAG_AGE_MIN * 2) == first);
    // Another file with the same length and time, as a restored copy has.
    fs::write(folder.root().join("copy"), b"2").unwrap();
    let copy = File::options().write(true).open(folder.root().join("copy")).unwrap();
    copy.set_modified(written).unwrap();
    fs::rename(folder.root().join("copy"), &path).unwrap();
    assert_ne!(tag_at(TAG_AGE_MIN), first);
}
