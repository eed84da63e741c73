//! Counts the bytes of a volume's content that a batch writes over: the root before the batch keeps
//! them in the store, once it is a version.
//!
//! A discard or an import of the whole disk is as long as the disk, however much content that had.
//! So the tree of the root before is asked, in a few samples where the whole would take long; short
//! stretches count as they are.

use crate::limits;
use crate::range::home::{Extent, Fold, RangeHome};
use rekindle_content::tree::Root;

/// Estimates the bytes with content that `folds`, in order, write over in `root`.
pub(crate) async fn written_over(home: &dyn RangeHome, root: &Root, folds: &[Fold]) -> u64 {
    if root.is_none() {
        return 0;
    }
    let mut sum = 0u64;
    let mut left = limits::COUNTED_BYTES_MAX;
    for (position, span) in stretches(folds) {
        let bytes = match span < limits::COUNTED_SPAN_MIN {
            true => span,
            false => stored(home, root, position, span, &mut left).await,
        };
        sum = sum.saturating_add(bytes);
    }
    sum
}

/// Joins neighbouring folds into stretches.
fn stretches(folds: &[Fold]) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for fold in folds {
        match all.last_mut() {
            Some((position, span)) if *position + *span == fold.position => *span += fold.span,
            _ => all.push((fold.position, fold.span)),
        }
    }
    all
}

/// Bytes with content in a stretch. `left`: bytes of this batch that may still be asked for in
/// full.
async fn stored(
    home: &dyn RangeHome,
    root: &Root,
    position: u64,
    span: u64,
    left: &mut u64,
) -> u64 {
    let is_whole = span <= *left;
    if is_whole {
        *left -= span;
    }
    let (step, width) = match is_whole {
        true => (span, span),
        false => {
            let step = (span / limits::COUNTED_SAMPLES).max(limits::COUNTED_SPAN_MIN);
            (step, (limits::COUNTED_BYTES_MAX / limits::COUNTED_SAMPLES).min(step))
        }
    };
    let (mut data, mut looked, mut at) = (0u64, 0u64, 0u64);
    while at < span {
        let width = width.min(span - at);
        let Ok(extents) = home.extents(root, position + at, width).await else {
            // A tree that cannot be read is not judged here: count the most that it may have had.
            return span;
        };
        let with_content = extents.iter().filter(|extent: &&Extent| extent.data);
        data += with_content.map(|extent| extent.span).sum::<u64>();
        looked += width;
        at += step;
    }
    let scaled = u128::from(data) * u128::from(span) / u128::from(looked.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
