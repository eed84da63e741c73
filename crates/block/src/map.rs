//! The range map: runs of which a sequential reader has heard, so that its reads do not walk the
//! tree again. HydraFS has one for each inode.
//!
//! What is fetched ahead was looked up in the tree, and the reads that follow find it here. A tree
//! never changes, so what the map says of a root stays true; another root begins it anew.

use crate::layout::Run;
use crate::limits::MAPPED_RUNS_MAX;
use parking_lot::Mutex;
use rekindle_content::Pointer;
use rekindle_content::tree::Root;

/// The map of one reader's volume or file.
#[derive(Default)]
pub(crate) struct RangeMap(Mutex<Mapped>);

#[derive(Default)]
struct Mapped {
    root: Root,
    /// Ascending; no two show the same page.
    runs: Vec<(Run, Pointer)>,
}

impl RangeMap {
    /// Notes whole runs, which are ascending.
    pub(crate) fn note(&self, root: &Root, runs: &[(Run, Pointer)]) {
        let Some((first, _)) = runs.first() else { return };
        let mut mapped = self.0.lock();
        // The last stream has the map.
        let goes_on = mapped.runs.last().is_none_or(|(last, _)| last.page <= first.page);
        if mapped.root != *root || !goes_on {
            mapped.runs.clear();
            mapped.root = *root;
        }
        let known = mapped.runs.last().map_or(0, |(last, _)| last.pages().end);
        mapped.runs.extend(runs.iter().filter(|(run, _)| run.page >= known));
        let surplus = mapped.runs.len().saturating_sub(MAPPED_RUNS_MAX);
        mapped.runs.drain(..surplus);
    }

    /// Returns the run that shows a page, if the map has it. It never waits.
    pub(crate) fn find(&self, root: &Root, page: u64) -> Option<(Run, Pointer)> {
        let mapped = self.0.try_lock()?;
        let index = mapped.runs.partition_point(|(run, _)| run.page <= page).checked_sub(1)?;
        let (run, pointer) = mapped.runs[index];
        (run.pages().contains(&page) && mapped.root == *root).then_some((run, pointer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::PackId;
    use rekindle_content::Part;

    fn root(number: u8) -> Pointer {
        let (pack, part) = (PackId([number; 16]), Part::WHOLE);
        Pointer { name: [number; 32], pack, offset: 0, stored: 1, length: 1, part }
    }

    fn run(page: u64, count: u64) -> (Run, Pointer) {
        (Run { page, from: 0, count }, root(u8::try_from(page).unwrap()))
    }

    #[test]
    fn a_page_is_found_where_it_was_noted_and_only_below_that_root() {
        let (map, first, second) = (RangeMap::default(), Some(root(1)), Some(root(2)));
        map.note(&first, &[run(0, 4), run(6, 2)]);
        // The run at the edge of two windows is in both.
        map.note(&first, &[run(6, 2), run(8, 1)]);
        let found = |root, page| map.find(root, page).map(|(run, _)| run.page);
        let all: Vec<_> = (0..10).map(|page| found(&first, page)).collect();
        let (a, b, c) = (Some(0), Some(6), Some(8));
        assert_eq!(all, [a, a, a, a, None, None, b, b, c, None]);
        assert_eq!(found(&second, 0), None);
        map.note(&second, &[run(4, 1)]);
        assert_eq!((found(&first, 0), found(&second, 0), found(&second, 4)), (None, None, Some(4)));
    }

    #[test]
    fn the_map_is_bounded_and_keeps_what_is_ahead() {
        let map = RangeMap::default();
        let many: Vec<_> = (0..MAPPED_RUNS_MAX as u64 + 10)
            .map(|page| (Run { page, from: 0, count: 1 }, root(1)))
            .collect();
        map.note(&None, &many);
        assert_eq!(
            (map.find(&None, 9), map.find(&None, 10).map(|(run, _)| run.page)),
            (None, Some(10))
        );
        // A stream that begins anew has the map.
        map.note(&None, &many[..1]);
        assert!(map.find(&None, 0).is_some() && map.find(&None, 10).is_none());
    }
}
