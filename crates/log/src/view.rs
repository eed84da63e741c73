//! The log as an observer of a live node sees it: its segments and its head. Each part is copied
//! under a short lock of its own, so the head may be a moment newer than the rest.

use crate::format::Lost;
use crate::inner::Inner;
use crate::machine::table::Needed;
use crate::segment::Segment;
use rekindle_base::SegmentId;
use rekindle_warm::Memory;
use std::sync::Arc;

/// The log at a moment.
#[derive(Debug, Clone)]
pub struct View {
    /// Ascending.
    pub segments: Vec<SegmentView>,
    pub head: HeadView,
    /// Positions: the end of all appended bytes, and the end of those that are durable on flash.
    pub appended: u64,
    pub committed: u64,
    /// The reason, if the log takes no more appends.
    pub ended: Option<String>,
}

/// A segment of the log.
#[derive(Debug, Clone)]
pub struct SegmentView {
    pub segment: SegmentId,
    /// Number of the segment's file, or of the missing file that a digest names, if known.
    pub file: Option<u32>,
    /// The slot of warm memory that holds the segment; without one, it is read from flash.
    pub slot: Option<usize>,
    /// `head`, `live`, `dead`, `unread` (recovered, and its table not read yet) or `lost`.
    pub state: &'static str,
    /// Volumes with changes here that the datastore lacks; `None` while they are not counted.
    pub volumes: Option<usize>,
}

/// The segment that takes appends.
#[derive(Debug, Clone)]
pub struct HeadView {
    pub segment: SegmentId,
    /// Bytes appended, and how many of them are on flash.
    pub filled: u32,
    pub durable: u32,
    pub capacity: u32,
    /// Volumes with changes here that the datastore lacks.
    pub volumes: usize,
}

impl Inner {
    pub(crate) fn view(&self) -> View {
        let head = {
            let heads = self.heads.lock();
            let head = &heads.open;
            HeadView {
                segment: head.segment.id(),
                filled: head.front(),
                durable: head.durable(),
                capacity: self.pool.capacity,
                volumes: head.volumes.len(),
            }
        };
        let segments = {
            let table = self.table.lock();
            let view =
                |(segment, file, needed, lost, held): (_, _, _, _, &Option<Arc<Segment>>)| {
                    let memory = |held: &Arc<Segment>| held.with_memory(Memory::index);
                    let slot = held.as_ref().and_then(memory);
                    let (state, volumes) = match (needed, lost) {
                        _ if segment == head.segment => ("head", Some(head.volumes)),
                        (Needed::Unknown, Lost::Nothing) => ("unread", None),
                        (Needed::Unknown, _) => ("lost", None),
                        (Needed::By(0), _) => ("dead", Some(0)),
                        (Needed::By(volumes), Lost::Nothing) => ("live", Some(volumes)),
                        // The loss itself counts as one volume.
                        (Needed::By(volumes), _) => ("lost", Some(volumes.saturating_sub(1))),
                    };
                    SegmentView { segment, file, slot, state, volumes }
                };
            table.rows().map(view).collect()
        };
        View {
            segments,
            head,
            appended: self.appended().0,
            committed: self.durable().0,
            ended: self.check().err().map(|error| error.to_string()),
        }
    }
}
