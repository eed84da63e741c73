//! Folders that cannot be made durable, and files that dead processes left.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Serializes the tests: they share the statics that stand for the disk.
static TURN: Mutex<()> = Mutex::new(());
static BROKEN: AtomicBool = AtomicBool::new(false);
static SYNCS: AtomicU64 = AtomicU64::new(0);

fn sync(folder: &Path) -> io::Result<()> {
    SYNCS.fetch_add(1, Relaxed);
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
