//! The home of a file volume: its state, and what staging asks of it.

use crate::format::inode::Inode;
use crate::format::record::{WRITE, WRITE_HEAD_BYTES};
use crate::format::rows::Totals;
use crate::limits;
use crate::look::unreadable;
use crate::names::Names;
use crate::numbers::Numbers;
use crate::overlay::Overlay;
use crate::settings::RootSettings;
use crate::state::{ORPHANS, State, decode_own};
use crate::table;
use crate::types::{Error, FILE_BYTES_MAX, FileType, Ino, ROOT};
use parking_lot::Mutex;
use rekindle_base::Serial;
use rekindle_block::{Extents, Layout};
use rekindle_content::tree::Root;
use rekindle_content::{Batch, Content};
use rekindle_env::{BoxFuture, Moment};
use rekindle_staging::{Error as StagingError, Record, RecordHome, RecordRepair, Vault};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use tokio::sync::{oneshot, watch};

/// The home of one volume in service.
pub struct Home {
    pub(crate) content: Content,
    pub(crate) names: Names,
    pub(crate) state: Mutex<State>,
    /// The turn to change the volume: held until the log has the change.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    /// The inodes that the last change that was planned removes: that one has the turn, or the log
    /// has it. Locked under the state's lock.
    pub(crate) leaving: Mutex<Vec<Ino>>,
    /// The numbers of inodes that may be given next. Locked under the state's lock.
    pub(crate) numbers: Mutex<Numbers>,
    /// Held while numbers are noted.
    pub(crate) noting: tokio::sync::Mutex<()>,
    /// Told when the change whose turn it is has entered the log.
    pub(crate) entered: Mutex<Option<oneshot::Sender<()>>>,
    /// Whether a change waits for the next flush by age.
    pub(crate) is_flush_due: AtomicBool,
    /// Told of each change of what a front keeps of an inode, with the last ones.
    pub(crate) kept_changes: watch::Sender<KeptLately>,
    /// When the volume came into service.
    pub(crate) began: OnceLock<Moment>,
    /// Whether the files that are in use without a name are being looked after.
    pub(crate) is_tended: AtomicBool,
    /// The readers of files, each with its window of read-ahead.
    readers: Mutex<HashMap<u64, Arc<Extents>>>,
    /// Snapshots that were looked at, by number.
    pub(crate) frozen: Mutex<HashMap<u32, Arc<State>>>,
    /// Files of which a repair has given up what they take, and that are to be counted again.
    pub(crate) torn: Mutex<BTreeSet<Ino>>,
    /// What was counted for the last roots.
    pub(crate) counted: Mutex<CountedRoots>,
    /// Writes the extents of all files.
    pub(crate) extents: Extents,
}

/// The last changes of what a front keeps of the inodes of a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeptLately {
    /// The client of the last one ([`crate::Keeper::client`]), and its time.
    last: Option<(u64, Moment)>,
    /// The time of the last one of any other client.
    others: Option<Moment>,
}

impl KeptLately {
    /// Notes a change.
    pub fn note(&mut self, client: u64, now: Moment) {
        match self.last {
            Some((before, at)) if before != client => self.others = Some(at),
            _ => {}
        }
        self.last = Some((client, now));
    }

    /// Returns the time of the last change by any other client than this one.
    #[must_use]
    pub fn by_others(&self, client: u64) -> Option<Moment> {
        let last = self.last.filter(|(by, _)| *by != client);
        last.map_or(self.others, |(_, at)| Some(at))
    }
}

/// What was counted for a root that is not committed yet.
pub(crate) struct Counted {
    pub(crate) root: Root,
    pub(crate) totals: Totals,
    /// The bytes that files take.
    pub(crate) files: Vec<(Ino, u64)>,
}

/// What was counted for the last roots, in the order of their making.
#[derive(Default)]
pub(crate) struct CountedRoots(VecDeque<Counted>);

impl CountedRoots {
    /// Keeps what was counted for a root until its commit.
    pub(crate) fn note(&mut self, counted: Counted) {
        self.0.push_back(counted);
        if self.0.len() > limits::COUNTED_MAX {
            self.0.pop_front();
        }
    }

    /// Takes what was counted for a root. Earlier ones are committed, or never will be.
    fn take(&mut self, root: &Root) -> Option<Counted> {
        let at = self.0.iter().position(|counted| counted.root == *root)?;
        self.0.drain(..=at).next_back()
    }
}

impl Home {
    pub(crate) fn new(content: &Content, vault: &Vault, root: &RootSettings) -> Arc<Self> {
        let state = State {
            root: vault.root,
            applied: vault.checkpoint,
            overlay: Overlay::default(),
            totals: None,
            broken: None,
            uses: HashMap::new(),
            first_root: first_root(root),
            own: Mutex::default(),
        };
        Arc::new(Self {
            content: content.clone(),
            names: Names::new(content),
            state: Mutex::new(state),
            turn: Arc::default(),
            leaving: Mutex::default(),
            numbers: Mutex::new(Numbers::of(vault)),
            noting: tokio::sync::Mutex::default(),
            entered: Mutex::default(),
            is_flush_due: AtomicBool::new(false),
            kept_changes: watch::Sender::new(KeptLately::default()),
            began: OnceLock::new(),
            is_tended: AtomicBool::new(false),
            readers: Mutex::default(),
            frozen: Mutex::default(),
            torn: Mutex::default(),
            counted: Mutex::default(),
            extents: extents(content),
        })
    }

    /// Returns the extents with the reader's windows of a file.
    pub(crate) fn reader(&self, ino: u64) -> Arc<Extents> {
        let mut readers = self.readers.lock();
        if readers.len() >= limits::READERS_MAX && !readers.contains_key(&ino) {
            readers.clear();
        }
        readers.entry(ino).or_insert_with(|| Arc::new(extents(&self.content))).clone()
    }

    /// Takes records into the state that it does not have yet.
    fn take(&self, group: &[Record]) {
        let mut state = self.state.lock();
        for record in group {
            if record.serial <= state.applied {
                continue;
            }
            let State { overlay, totals, .. } = &mut *state;
            if let Err(bad) = overlay.add(record, totals.as_mut()) {
                state.broken.get_or_insert(bad);
            }
            state.applied = record.serial;
        }
    }
}

fn extents(content: &Content) -> Extents {
    Extents::new(content.clone(), FILE_BYTES_MAX, Layout::default())
}

/// The root directory of a volume that no change has named yet.
fn first_root(settings: &RootSettings) -> Inode {
    let time = crate::types::Time::default();
    Inode {
        kind: FileType::Directory,
        mode: settings.mode & 0o7777,
        links: 2,
        uid: settings.uid,
        gid: settings.gid,
        device: 0,
        size: 0,
        allocated: 0,
        beyond: 0,
        parent: ROOT,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
        target: bytes::Bytes::new(),
    }
}

impl RecordHome for Home {
    fn head_bytes(&self, kind: u64) -> usize {
        if kind == WRITE { WRITE_HEAD_BYTES } else { usize::MAX }
    }

    fn enter(&self, group: &[Record]) {
        self.take(group);
        if let Some(told) = self.entered.lock().take() {
            // A caller that has gone away needs no word.
            let _ = told.send(());
        }
    }

    fn apply(&self, group: &[Record]) {
        self.take(group);
    }

    fn finish(&self, root: &Root, checkpoint: Serial) {
        let mut state = self.state.lock();
        state.root = *root;
        state.overlay.finish(checkpoint);
        let counted = self.counted.lock().take(root);
        let Some(Counted { mut totals, files, .. }) = counted else { return };
        for (ino, allocated) in files {
            if let Some(dirty) = state.overlay.inodes.get_mut(&ino) {
                dirty.recount(allocated);
            }
        }
        if state.totals.is_some() {
            state.overlay.apply_to(&mut totals);
            state.totals = Some(totals);
        }
    }

    fn taken(&self) -> BoxFuture<'_, Result<Option<u64>, StagingError>> {
        Box::pin(async move {
            let root = {
                let state = self.state.lock();
                if let Some(totals) = &state.totals {
                    return Ok(Some(totals.bytes));
                }
                state.root
            };
            let own = table::get(&self.content, &root, ORPHANS).await.map_err(into_staging)?;
            let (mut totals, _) =
                decode_own(own.as_ref()).map_err(|bad| into_staging(unreadable(&bad)))?;
            self.state.lock().overlay.apply_to(&mut totals);
            Ok(Some(totals.bytes))
        })
    }

    fn repair(&self) -> Option<&dyn RecordRepair> {
        Some(self)
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        records: &'a [Record],
    ) -> BoxFuture<'a, Result<Root, StagingError>> {
        Box::pin(async move { self.commit(batch, root, records).await.map_err(into_staging) })
    }

    fn check_tree<'a>(&'a self, root: &'a Root) -> BoxFuture<'a, Result<(), StagingError>> {
        Box::pin(async move {
            table::get(&self.content, root, ORPHANS).await.map_err(into_staging)?;
            table::check(&self.content, root).await.map_err(into_staging)
        })
    }
}

pub(crate) fn into_staging(error: Error) -> StagingError {
    match error {
        Error::Volume(rekindle_volume::Error::Staging(error)) => error,
        other => StagingError::Invalid(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::PackId;
    use rekindle_content::{Part, Pointer};

    #[test]
    fn what_was_counted_is_kept_for_each_root_that_is_on_its_way() {
        let root = |number: u8| {
            let (pack, part) = (PackId([0; 16]), Part::WHOLE);
            Some(Pointer { name: [number; 32], pack, offset: 0, stored: 0, length: 0, part })
        };
        let mut roots = CountedRoots::default();
        let note = |roots: &mut CountedRoots, number: u8| {
            let (totals, _) = decode_own(None).unwrap();
            let totals = Totals { bytes: number.into(), ..totals };
            roots.note(Counted { root: root(number), totals, files: Vec::new() });
        };
        let take = |roots: &mut CountedRoots, number| {
            roots.take(&root(number)).map(|counted| counted.totals.bytes)
        };
        // One root is committed while the next one is counted already.
        (1..=2).for_each(|number| note(&mut roots, number));
        let taken = [1, 1, 2].map(|number| take(&mut roots, number));
        assert_eq!(taken, [Some(1), None, Some(2)]);
        // The first of two comes to nothing.
        (3..=4).for_each(|number| note(&mut roots, number));
        assert_eq!([4, 3].map(|number| take(&mut roots, number)), [Some(4), None]);
        (5..20).for_each(|number| note(&mut roots, number));
        assert_eq!(roots.0.len(), limits::COUNTED_MAX);
    }

    #[test]
    fn kept_lately_knows_the_last_change_of_others() {
        let at = |seconds| Moment::default() + std::time::Duration::from_secs(seconds);
        let mut lately = KeptLately::default();
        assert_eq!(lately.by_others(1), None);
        lately.note(1, at(1));
        lately.note(1, at(2));
        assert_eq!((lately.by_others(1), lately.by_others(2)), (None, Some(at(2))));
        lately.note(2, at(3));
        lately.note(1, at(4));
        lately.note(1, at(5));
        let of = [1, 2, 3].map(|client| lately.by_others(client));
        assert_eq!(of, [Some(at(3)), Some(at(5)), Some(at(5))]);
    }
}
