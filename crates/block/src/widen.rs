//! The pages that a change writes anew beside itself, in a layout by content. Pure.
//!
//! A small write takes its pages out of a chunk and leaves the rest where it is: nothing is copied,
//! but the store keeps the bytes that were written over, and the tree gets more entries. Both are
//! paid back when they have become much: the rest of a chunk is written anew when little of it is
//! left, and so are neighbours that lie in many small chunks. (The idea is that of a cleaner of a
//! log-structured file system, applied where the change is at hand anyway.)

use crate::layout::Run;
use crate::limits;
use rekindle_content::Pointer;
use std::ops::Range;

/// Runs beside a change that lie so many pages away at most may be written anew with it.
pub(crate) const REACH_PAGES: u64 = crate::layout::CHUNK_PAGES_MAX;

/// Returns the pages to write when a change touches the pages `touched`. `outside` are the runs
/// beside them, as far as they are not touched.
pub(crate) fn widen(
    touched: &Range<u64>,
    outside: &[(Run, Pointer)],
    page_bytes: u64,
) -> Range<u64> {
    let mut wide = touched.clone();
    let mut take = |run: &Run| {
        wide = wide.start.min(run.page)..wide.end.max(run.page + run.count);
    };
    for (run, pointer) in outside {
        if is_cut(run, pointer, touched, page_bytes) {
            let shows =
                |(other, of): &&(Run, Pointer)| of == pointer && origin(other) == origin(run);
            let live: u64 = outside.iter().filter(shows).map(|(run, _)| run.count).sum();
            if live * 100 < pages_of(pointer, page_bytes) * limits::CHUNK_LIVE_PERCENT {
                take(run);
            }
        }
    }
    let unit = limits::SCATTERED_PAGES;
    let around = touched.start / unit * unit..touched.end.next_multiple_of(unit);
    let near = || outside.iter().filter(|(run, _)| run.within(&around).is_some());
    if near().count() >= limits::SCATTERED_RUNS {
        near().for_each(|(run, _)| take(run));
    }
    wide
}

/// Whether a chunk of which `run` is left had pages where the change is.
fn is_cut(run: &Run, pointer: &Pointer, touched: &Range<u64>, page_bytes: u64) -> bool {
    let begin = origin(run);
    let end = begin + i128::from(pages_of(pointer, page_bytes));
    begin < i128::from(touched.end) && end > i128::from(touched.start)
}

/// The page at which the chunk of a run would begin.
fn origin(run: &Run) -> i128 {
    i128::from(run.page) - i128::from(run.from)
}

fn pages_of(pointer: &Pointer, page_bytes: u64) -> u64 {
    u64::from(pointer.length).div_ceil(page_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::PackId;
    use rekindle_content::Part;

    fn chunk(number: u8, pages: u32) -> Pointer {
        let name = [number; 32];
        Pointer {
            name,
            pack: PackId([0; 16]),
            offset: 0,
            stored: 1,
            length: pages * 4096,
            part: Part::WHOLE,
        }
    }

    fn run(page: u64, from: u64, count: u64) -> Run {
        Run { page, from, count }
    }

    #[test]
    fn a_chunk_of_which_half_is_left_stays_and_one_of_which_less_is_left_is_written_anew() {
        let chunk = chunk(1, 16);
        let half = [(run(100, 0, 4), chunk), (run(112, 12, 4), chunk)];
        assert_eq!(widen(&(104..112), &half, 4096), 104..112);
        let less = [(run(100, 0, 4), chunk), (run(113, 13, 3), chunk)];
        assert_eq!(widen(&(104..113), &less, 4096), 100..116);
    }

    #[test]
    fn a_chunk_that_the_change_did_not_cut_stays_however_little_of_it_is_shown() {
        let beside = [(run(99, 15, 1), chunk(1, 16)), (run(104, 0, 1), chunk(2, 16))];
        assert_eq!(widen(&(100..104), &beside, 4096), 100..104);
        // The first page of the volume may show the middle of a chunk.
        assert_eq!(widen(&(1..2), &[(run(0, 9, 1), chunk(1, 16))], 4096), 0..2);
    }

    #[test]
    fn neighbours_in_many_small_chunks_are_joined() {
        let singles = |count: u64| -> Vec<(Run, Pointer)> {
            (0..count).map(|page| (run(page, 0, 1), chunk(page as u8, 1))).collect()
        };
        assert_eq!(widen(&(13..14), &singles(12), 4096), 0..14);
        assert_eq!(widen(&(13..14), &singles(11), 4096), 13..14);
        // Those of the next pages do not count.
        assert_eq!(widen(&(17..18), &singles(16), 4096), 17..18);
    }
}
