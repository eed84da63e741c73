//! Decides what the log is, from the newest head that can be read; says what of it is damaged.

use crate::format::{Foot, Lost, Statistics};
use crate::machine::history::{End, History, Present, Probe, what_is_the_log};
use crate::machine::table::NO_FILE;
use crate::scan::{Looked, Scan, look, read_foot};
use crate::segment_pool::SegmentPool;
use crate::{Error, Known};
use rekindle_base::{Incarnation, SegmentId};
use std::collections::BTreeMap;

/// What a start knows of the log before it makes segments of what it found.
pub(crate) struct Decided {
    pub(crate) history: History,
    /// The newest head that can be read.
    pub(crate) newest: Option<SegmentId>,
    /// The newest head with statistics, and its statistics.
    pub(crate) counted: Option<(SegmentId, Statistics)>,
    /// The newest segment with any change in it, if the log was closed there.
    pub(crate) closed: Option<(u32, Foot)>,
    /// No head was begun after the close.
    pub(crate) was_closed: bool,
}

/// The end of the head before the newest one; `None` if it cannot be read.
type BeforeEnd = Option<(SegmentId, End)>;

/// Looks at heads, the newest first, until one can be read; then decides.
pub(crate) async fn decide(pool: &SegmentPool, scan: &mut Scan) -> Result<Decided, Error> {
    let (mut present, newest) = newest_head(pool, scan).await?;
    for named in newest.iter().flat_map(|probe| &probe.opening.digest) {
        if scan.keep_only(named) {
            present.remove(&named.segment);
        }
    }
    let (before_end, counted) = head_before(pool, scan, newest.as_ref()).await?;
    if let (None, Some((file, why))) = (&newest, scan.unreadable.first()) {
        // No log at all is better than an empty one in the place of one with changes.
        let reason = format!(
            "no head can be read, and {file:08}.seg may be one ({why}): move the file away to go on without it"
        );
        return Err(Error::Damaged { segment: SegmentId(0), offset: 0, reason });
    }
    let mut history = what_is_the_log(&present, newest.as_ref(), before_end);
    let unsealed = before_end.filter(|(_, end)| *end == End::Open).map(|(id, _)| id);
    let open = [unsealed, history.resume, history.empty].into_iter().flatten();
    if let Some(id) = open.into_iter().find(|&id| scan.is_lost_in_memory(id)) {
        history.tail_lost.get_or_insert(id);
    }
    let last = newest.as_ref().filter(|probe| probe.end != End::Open || probe.has_changes);
    let last = last.map_or(before_end, |probe| Some((probe.segment, probe.end)));
    let closed = closed_foot(pool, scan, last).await?;
    let is_closed = |probe: &Probe| probe.end == End::Sealed { successor: None };
    let was_closed = newest.as_ref().map_or(present.is_empty(), is_closed);
    let newest = newest.map(|probe| probe.segment);
    Ok(Decided { history, newest, counted, closed, was_closed })
}

/// Returns the newest head that can be read, and what is known of each segment.
async fn newest_head(
    pool: &SegmentPool,
    scan: &mut Scan,
) -> Result<(BTreeMap<SegmentId, Present>, Option<Probe>), Error> {
    let file_of = |scan: &Scan, id| scan.segments[&id].file().unwrap_or(NO_FILE);
    let ids = scan.segments.keys().copied();
    let mut present: BTreeMap<_, _> =
        ids.map(|id| (id, Present::Yes { file: file_of(scan, id) })).collect();
    for id in present.keys().rev().copied().collect::<Vec<_>>() {
        scan.settle(pool, id).await;
        match look(pool, &scan.segments[&id]).await? {
            Looked::Head(probe) => return Ok((present, Some(probe))),
            Looked::NoHead { traces: true } => {
                present.insert(id, Present::Broken { file: file_of(scan, id) });
            }
            Looked::NoHead { traces: false } => {
                present.insert(id, Present::NeverOpened);
            }
        }
    }
    Ok((present, None))
}

/// Returns the end of the head before the newest one, and the newest head that has statistics.
async fn head_before(
    pool: &SegmentPool,
    scan: &mut Scan,
    newest: Option<&Probe>,
) -> Result<(BeforeEnd, Option<(SegmentId, Statistics)>), Error> {
    let Some(probe) = newest else { return Ok((None, None)) };
    let mut counted = probe.opening.statistics.clone().map(|said| (probe.segment, said));
    let earlier = probe.opening.digest.iter().rev().map(|named| named.segment);
    let before = earlier.into_iter().find(|&id| id < probe.segment);
    let Some(id) = before.filter(|id| scan.segments.contains_key(id)) else {
        return Ok((None, counted));
    };
    scan.settle(pool, id).await;
    let found = &scan.segments[&id];
    let mut before_end = None;
    if let Some((file, header)) = found.flash {
        let foot = read_foot(pool, file, &header).await.ok().flatten();
        let sealed = |foot: Foot| End::Sealed { successor: foot.successor };
        before_end = Some((id, foot.map_or(End::Open, sealed)));
    }
    // The newest head was opened ahead of need and never took over: the head before it has the
    // statistics.
    if counted.is_none()
        && let Looked::Head(probe) = look(pool, found).await?
    {
        counted = probe.opening.statistics.map(|said| (id, said));
    }
    Ok((before_end, counted))
}

/// The foot of the last segment, if the log was closed there.
async fn closed_foot(
    pool: &SegmentPool,
    scan: &Scan,
    last: Option<(SegmentId, End)>,
) -> Result<Option<(u32, Foot)>, Error> {
    let Some((id, _)) = last.filter(|(_, end)| *end == (End::Sealed { successor: None })) else {
        return Ok(None);
    };
    let Some((file, header)) = scan.segments.get(&id).and_then(|found| found.flash) else {
        return Ok(None);
    };
    Ok(read_foot(pool, file, &header).await.ok().flatten().map(|foot| (file, foot)))
}

/// The message about a log that is not in its folder: what it means, and what to do.
pub(crate) fn absence(
    pool: &SegmentPool,
    known: Known,
    found: Option<(Incarnation, SegmentId)>,
) -> String {
    let here = match found {
        None => "there is none".to_owned(),
        Some((life, newest)) => format!("what is there ends at segment {newest} of start {life}"),
    };
    format!(
        "the log of this node is not in {}: it had segment {} of start {}, {here}. If its disk is not mounted: stop, mount it, \
         start again. If it is gone for good, acknowledged changes that were not in the store are lost",
        pool.folder.display(),
        known.newest,
        known.incarnation
    )
}

pub(crate) fn damage_of(scan: &Scan, history: &History, absent: Option<&str>) -> Vec<String> {
    let mut damage: Vec<String> = absent.map(str::to_owned).into_iter().collect();
    for named in &history.missing {
        let why = scan
            .unreadable
            .iter()
            .find(|(file, _)| *file == named.file)
            .map_or("no such file", |(_, why)| why);
        damage.push(format!("segment {} (file {}) is missing: {why}", named.segment, named.file));
    }
    if let Some(segment) = history.tail_lost.filter(|_| absent.is_none()) {
        damage.push(format!(
            "segment {segment}, the head, is missing or damaged: the latest changes may be lost"
        ));
    }
    for named in history.members.iter().filter(|named| named.lost != Lost::Nothing) {
        let segment = named.segment;
        damage.push(format!("changes of segment {segment} were found lost by an earlier start"));
    }
    let unnamed = |file: &u32| !history.missing.iter().any(|named| named.file == *file);
    for (file, why) in scan.unreadable.iter().filter(|(file, _)| unnamed(file)) {
        damage.push(format!("file {file:08}.seg cannot be read ({why}); the log does not name it"));
    }
    damage
}
