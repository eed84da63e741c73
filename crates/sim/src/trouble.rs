//! Trouble around a node in a life, on its disk and at its store. It is drawn from the seed, and
//! over when the work of the life is done, since no fault lasts.

use crate::heard;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, Host, Mishaps};

/// Faults of the disk of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Well,
    /// Room, file descriptors and memory run out, and come back: the log waits.
    Exhausted,
    /// Writes and syncs fail: then the log has failed, and the life is over.
    Fails,
    /// Reads fail or give a wrong bit, while the medium is right.
    Misreads,
}

/// Faults in one life.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    pub disk: Disk,
    pub store: Plan,
    /// Whether faults begin with the first look at disk and store, and not when the volume is
    /// served.
    pub from_the_start: bool,
}

/// Faults of the store, each for a part of the lives, and the name under which they are counted.
const STORE: [(&str, &str); 11] = [
    ("", ""),
    ("latency=2ms", ""),
    ("latency=1ms,fail=10%", ""),
    ("latency=1ms,fail=5%,lie=10%", ""),
    ("latency=1ms,absent=packs/data/:3s@20ms", "store: packs absent"),
    ("latency=1ms,absent=packs/meta/:1s@5ms,fail=2%", "store: nodes absent"),
    ("latency=1ms,absent=volumes/:2s@10ms", "store: vaults absent"),
    ("latency=1ms,late=10%,lie=5%", "store: late"),
    ("latency=1ms,twice=20%,fail=5%", "store: twice"),
    ("latency=1ms,silent=3%", "store: silent"),
    ("latency=1ms,flip=10%", "store: flipped"),
];

impl Trouble {
    /// Draws the faults of a life.
    pub fn draw(dice: &mut Random) -> Self {
        let disk = match dice.below(16) {
            0..=2 => Disk::Exhausted,
            3..=4 => Disk::Fails,
            5..=6 => Disk::Misreads,
            _ => Disk::Well,
        };
        // The first four are drawn as often as all others together.
        let kinds = STORE.len() as u64;
        let (words, name) =
            STORE[if dice.below(2) == 0 { dice.below(4) } else { dice.below(kinds) } as usize];
        if !name.is_empty() {
            heard::note(name);
        }
        let store = if words.is_empty() { Plan::default() } else { words.parse().expect("ours") };
        Self { disk, store, from_the_start: dice.below(3) == 0 }
    }

    /// Whether the disk's failure may end a client's work with this error.
    pub fn ends(&self, kind: Kind) -> bool {
        matches!((self.disk, kind), (Disk::Fails | Disk::Misreads, Kind::Io | Kind::Damaged))
    }

    /// Whether the store may carry a write out late, or once more.
    pub fn repeats_writes(&self) -> bool {
        self.store.twice_percent > 0.0 || self.store.late_percent > 0.0
    }

    /// Whether these faults may keep a node from starting or serving.
    pub fn may_refuse_a_start(&self) -> bool {
        self.from_the_start && (self.disk != Disk::Well || self.store.flip_percent > 0.0)
    }

    /// Whether a volume may return this error while the faults last: then the request is repeated.
    pub fn explains(&self, kind: Kind) -> bool {
        let misreads = self.disk == Disk::Misreads && matches!(kind, Kind::Io | Kind::Damaged);
        kind.is_retryable() || misreads || (self.store.flip_percent > 0.0 && kind == Kind::Damaged)
    }
}

impl Disk {
    /// Begins the faults.
    pub fn begin(self, host: &Host) {
        host.change_faults(|faults| {
            faults.only = Some("flash".to_owned());
            match self {
                Disk::Well => {}
                Disk::Exhausted => {
                    faults.no_space = 0.05;
                    faults.no_memory = 0.03;
                    faults.no_descriptors = 0.1;
                    faults.no_files = 0.1;
                }
                Disk::Fails => (faults.write_error, faults.sync_error) = (0.02, 0.02),
                // A batch reads many changes, and fails with one error. So errors are rare enough
                // that batches succeed at times.
                Disk::Misreads => (faults.read_error, faults.read_flip) = (0.01, 0.03),
            }
        });
    }

    /// Ends the faults.
    pub fn end(host: &Host) {
        host.change_faults(|faults| {
            let well = Faults::none();
            (faults.no_space, faults.no_memory) = (well.no_space, well.no_memory);
            (faults.no_descriptors, faults.no_files) = (well.no_descriptors, well.no_files);
            (faults.write_error, faults.sync_error) = (well.write_error, well.sync_error);
            (faults.read_error, faults.read_flip) = (well.read_error, well.read_flip);
        });
    }
}

/// Draws how a disk tears unfinished writes at a power cut or a failure, for a whole run.
pub fn tears(dice: &mut Random) -> Faults {
    Faults {
        torn_sectors: [0.0, 0.5, 1.0][dice.below(3) as usize],
        torn_whole: [0.0, 0.3][dice.below(2) as usize],
        sector_bytes: [512, 4096][dice.below(2) as usize],
        ..Faults::none()
    }
}

/// Counts the faults that the disks of a run had.
pub fn note(mishaps: &Mishaps) {
    let Mishaps { torn_prefix, torn_sectors, torn_whole, .. } = *mishaps;
    for (what, count) in [
        ("disk: EIO", mishaps.io),
        ("disk: ENOSPC", mishaps.no_space),
        ("disk: EMFILE", mishaps.no_descriptors),
        ("disk: ENFILE", mishaps.no_files),
        ("disk: ENOMEM", mishaps.no_memory),
        ("disk: misread", mishaps.read_flips),
        ("torn: prefix", torn_prefix),
        ("torn: sectors", torn_sectors),
        ("torn: whole in the page cache", torn_whole),
    ] {
        if count > 0 {
            heard::note_many(what, count);
        }
    }
}
