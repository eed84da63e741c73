//! Volumes of records: the changes are records that only the volume's kind understands. There are
//! no ranges, so no record hides another: each counts, in serial order.
//!
//! The home keeps what the visible records say in a form of its own, and its readers read that. The
//! core tells the home of each group when that becomes visible, and of each root that holds the
//! records up to a serial.

pub(crate) mod append;
pub(crate) mod repair;

use crate::queue::{Change, Payload};
use crate::range::home::read_ahead;
use crate::{Error, Source, limits};
use bytes::Bytes;
use rekindle_base::Serial;
use rekindle_content::{Batch, tree::Root};
use rekindle_env::BoxFuture;
use repair::RecordRepair;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// A record of a volume.
#[derive(Clone)]
pub struct Record {
    pub serial: Serial,
    /// The record's own kind; its meaning belongs to the volume's kind.
    pub kind: u64,
    /// The bytes, or as many of the first ones as the home asks for ([`RecordHome::head_bytes`]).
    pub bytes: Bytes,
    /// How many bytes the record has.
    pub length: u64,
    /// All of the bytes, where they are kept. The home may hold on to it for as long as the root
    /// does not have the record.
    pub source: Source,
    /// Whether the next record belongs to the same group.
    pub joined: bool,
}

/// The home of a volume of records. The vault with which the volume is opened tells the root with
/// which the home begins, and the checkpoint up to which that root has the records.
pub trait RecordHome: Any + Send + Sync {
    /// Returns how many of the first bytes of a record of this kind the home is shown; it reads the
    /// others from [`Record::source`].
    fn head_bytes(&self, _kind: u64) -> usize {
        usize::MAX
    }

    /// Notes that one record, or the records of one group, were given their serials: in serial
    /// order, each once, before [`RecordHome::apply`] of them. Not called for what a volume had
    /// when it came into service. A plain and short call: the volume's lock is held.
    fn enter(&self, _group: &[Record]) {}

    /// Notes that one record, or the records of one group, are visible from now on: in serial
    /// order, each once, never a part of a group. A plain and short call: the volume's lock is
    /// held.
    fn apply(&self, group: &[Record]);

    /// Notes that the datastore has all records up to `checkpoint` under `root`. Called in the same
    /// critical section in which the vault changes, also when only the root does (a salvage), and
    /// after [`RecordHome::apply`] of all these records. A plain and short call.
    fn finish(&self, root: &Root, checkpoint: Serial);

    /// Writes records into `batch` and returns the root with them. `root` has all records before
    /// the first one; groups are whole.
    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        records: &'a [Record],
    ) -> BoxFuture<'a, Result<Root, Error>>;

    /// Returns how many bytes the content takes, of a home that counts them against the volume's
    /// size.
    fn taken(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Returns the home's repair, if the home can go on without a part of its tree.
    fn repair(&self) -> Option<&dyn RecordRepair> {
        None
    }

    /// Reads the tree of a root, as far as lookups need it; fails if part of it cannot be read.
    fn check_tree<'a>(&'a self, root: &'a Root) -> BoxFuture<'a, Result<(), Error>>;
}

/// The way of records to their home.
pub(crate) struct Coming {
    home: Arc<dyn RecordHome>,
    /// The heads of the records that the log has and that are not visible yet, in serial order.
    bytes: VecDeque<Bytes>,
    /// The first records of a group while the others are being shown, too.
    group: Vec<Record>,
}

impl Coming {
    pub(crate) fn new(home: Arc<dyn RecordHome>) -> Self {
        Self { home, bytes: VecDeque::new(), group: Vec::new() }
    }

    /// With the bytes of recovered records that are not visible yet.
    pub(crate) async fn with(
        home: Arc<dyn RecordHome>,
        volume: &str,
        first: Serial,
        records: impl Iterator<Item = &Change>,
    ) -> Result<Self, Error> {
        let mut coming = Self::new(home);
        let records: Vec<_> = records.collect();
        let heads = heads_of(&*coming.home, records.iter().copied()).await;
        for ((change, head), serial) in records.into_iter().zip(heads).zip((first.0..).map(Serial))
        {
            let bytes = read_head(&head).await;
            coming.bytes.push_back(bytes.map_err(|error| damaged(volume, serial, change, error))?);
        }
        Ok(coming)
    }

    /// Notes a group of records that have entered the queue; the first has the serial `first`.
    pub(crate) fn enter(&mut self, first: Serial, changes: &[Change], payloads: &[&[u8]]) {
        let mut group = Vec::with_capacity(changes.len());
        for ((change, payload), serial) in changes.iter().zip(payloads).zip((first.0..).map(Serial))
        {
            let length = self.home.head_bytes(change.position).min(payload.len());
            let bytes = Bytes::copy_from_slice(&payload[..length]);
            if change.is_logged() {
                self.bytes.push_back(bytes.clone());
            }
            group.push(record(change, serial, bytes));
        }
        self.home.enter(&group);
    }

    /// Shows the next record, with its group when that is whole.
    pub(crate) fn show(&mut self, change: &Change, serial: Serial) {
        let bytes = match &change.payload {
            Payload::Memory(kept) => head(&*self.home, change, &kept.bytes),
            Payload::Log(_) | Payload::Zero => {
                self.bytes.pop_front().expect("a record in the log is expected before it is shown")
            }
        };
        self.group.push(record(change, serial, bytes));
        if !change.joined {
            self.home.apply(&self.group);
            self.group.clear();
        }
    }

    pub(crate) fn finish(&self, root: &Root, checkpoint: Serial) {
        debug_assert!(self.group.is_empty(), "groups become visible as a whole");
        self.home.finish(root, checkpoint);
    }
}

fn record(change: &Change, serial: Serial, bytes: Bytes) -> Record {
    let (kind, source) = (change.position, change.source(0));
    Record { serial, kind, bytes, length: change.span, source, joined: change.joined }
}

/// Applies the unfinished records of a volume that comes into service, in serial order. Nothing
/// reads the home meanwhile.
pub(crate) async fn replay(
    home: &dyn RecordHome,
    volume: &str,
    first: Serial,
    changes: impl Iterator<Item = &Change>,
) -> Result<(), Error> {
    let mut changes = changes.zip((first.0..).map(Serial)).peekable();
    let mut group = Vec::new();
    while changes.peek().is_some() {
        let slice: Vec<_> = changes.by_ref().take(limits::SLICE_CHANGES).collect();
        let heads = heads_of(home, slice.iter().map(|(change, _)| *change)).await;
        for ((change, serial), head) in slice.into_iter().zip(heads) {
            let bytes = read_head(&head).await;
            let bytes = bytes.map_err(|error| damaged(volume, serial, change, error))?;
            group.push(record(change, serial, bytes));
            if !change.joined {
                home.apply(&group);
                group.clear();
            }
        }
    }
    debug_assert!(group.is_empty(), "half a group is dropped before");
    Ok(())
}

/// Reads records of which the first has the serial `first`.
pub(crate) async fn read(
    home: &dyn RecordHome,
    first: Serial,
    changes: &[Change],
) -> Result<Vec<Record>, Error> {
    let heads = heads_of(home, changes.iter()).await;
    let mut records = Vec::with_capacity(changes.len());
    for ((change, head), serial) in changes.iter().zip(heads).zip((first.0..).map(Serial)) {
        records.push(record(change, serial, read_head(&head).await?));
    }
    Ok(records)
}

/// The heads of records, which are read in this order.
async fn heads_of(
    home: &dyn RecordHome,
    changes: impl Iterator<Item = &Change>,
) -> Vec<(Source, usize)> {
    let head = |change: &Change| {
        let length = match &change.payload {
            Payload::Zero => 0,
            Payload::Memory(kept) => kept.bytes.len(),
            Payload::Log(place) => place.length() as usize,
        };
        (change.source(0), home.head_bytes(change.position).min(length))
    };
    let mut heads: Vec<_> = changes.map(head).collect();
    read_ahead(heads.iter_mut().map(|(head, bytes)| (head, *bytes as u64)).collect()).await;
    heads
}

async fn read_head((head, length): &(Source, usize)) -> Result<Bytes, Error> {
    if let Source::Memory(bytes) = head {
        return Ok(bytes.slice(..*length));
    }
    let mut bytes = vec![0; *length];
    head.read(0, &mut bytes).await?;
    Ok(bytes.into())
}

fn head(home: &dyn RecordHome, change: &Change, bytes: &Bytes) -> Bytes {
    bytes.slice(..home.head_bytes(change.position).min(bytes.len()))
}

/// The error of a record that cannot be read back: the records behind it may mean
/// something else without it.
fn damaged(volume: &str, serial: Serial, change: &Change, error: Error) -> Error {
    if !matches!(error, Error::Log(rekindle_log::Error::Damaged { .. })) {
        return error;
    }
    let reason = format!(
        "serial {serial} ({}): {error}: `rekindle salvage run {volume} --accept-losses` goes on from what is whole before it",
        change.name()
    );
    Error::Lost { volume: volume.to_owned(), reason }
}
