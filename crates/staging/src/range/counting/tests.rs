//! Tests of the parent module.

use super::*;
use crate::Error;
use crate::Source;
use futures_util::FutureExt;
use rekindle_base::PackId;
use rekindle_content::{Batch, Part, Pointer};
use rekindle_env::BoxFuture;
use std::ops::Range;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A home with content in some stretches.
struct Drawn(Vec<Range<u64>>);

impl RangeHome for Drawn {
    fn read_now(&self, _: &Root, _: u64, _: &mut [u8]) -> Result<bool, Error> {
        unreachable!()
    }

    fn read<'a>(
        &'a self,
        _: &'a Root,
        _: u64,
        _: &'a mut [u8],
        _: bool,
    ) -> BoxFuture<'a, Result<(), Error>> {
        unreachable!()
    }

    fn fold<'a>(
        &'a self,
        _: &'a mut Batch,
        _: &'a Root,
        _: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, Error>> {
        unreachable!()
    }

    fn bytes_of(&self, _: Range<u64>) -> Range<u64> {
        unreachable!()
    }

    fn extents<'a>(
        &'a self,
        _: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, Error>> {
        let met = self.0.iter().filter_map(|data| {
            let (from, to) = (data.start.max(position), data.end.min(position + span));
            (from < to).then(|| Extent { position: from, span: to - from, data: true })
        });
        let hole = Extent { position, span, data: false };
        let all = met.chain([hole]).collect();
        Box::pin(async move { Ok(all) })
    }
}

fn over(data: &[Range<u64>], folds: &[(u64, u64)]) -> u64 {
    let root = Some(Pointer {
        name: [1; 32],
        pack: PackId([1; 16]),
        offset: 32,
        stored: 10,
        length: 10,
        part: Part::WHOLE,
    });
    let folds: Vec<Fold> = folds
        .iter()
        .map(|&(position, span)| Fold { position, span, source: Source::Zero })
        .collect();
    let home = Drawn(data.to_vec());
    assert_eq!(written_over(&home, &None, &folds).now_or_never(), Some(0), "of nothing, nothing");
    written_over(&home, &root, &folds).now_or_never().unwrap()
}

#[test]
fn a_discard_of_the_whole_disk_counts_what_was_in_it() {
    let content: Vec<_> = std::iter::once(0..20 * MIB).collect();
    assert_eq!(over(&content, &[(0, 2 * GIB)]), 20 * MIB);
    assert_eq!(over(&content, &[(5 * MIB, GIB), (5 * MIB + GIB, GIB)]), 15 * MIB);
    assert_eq!(over(&content, &[(GIB, GIB)]), 0);
    assert_eq!(over(&content, &[(GIB, 4096)]), 4096, "what is short is not looked up");
}

#[test]
fn of_what_is_long_a_few_samples_are_taken() {
    // Half of the volume has content, everywhere.
    let content: Vec<_> = (0..2000).map(|at| at * GIB..at * GIB + GIB / 2).collect();
    let found = over(&content, &[(0, 2000 * GIB)]);
    assert!((800 * GIB..=1200 * GIB).contains(&found), "{}", found / GIB);
    let found = over(std::slice::from_ref(&(0..20 * MIB)), &[(0, 20 * GIB)]);
    assert!(found <= GIB, "{}", found / MIB);
}
