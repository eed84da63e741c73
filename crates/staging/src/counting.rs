//! How much of a volume's content a batch writes over: what the root before it keeps in the store, once it is a version.
//!
//! A discard or an import of the whole disk is as long as the disk, whatever was in it. So the tree of the root before is
//! asked what was there, in a few samples where that would be long; short stretches count as they are.

use crate::home::{Extent, Fold, Home};
use crate::limits;
use content::tree::Root;

/// Bytes with content that `folds`, in order, write over in `root`; an estimate.
pub(crate) async fn written_over(home: &dyn Home, root: &Root, folds: &[Fold]) -> u64 {
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

/// What lies side by side is one stretch.
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

/// Bytes with content in a stretch. `left`: how much of this batch may still be looked at one by one.
async fn stored(home: &dyn Home, root: &Root, position: u64, span: u64, left: &mut u64) -> u64 {
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
            // Whether it can be read is not for this to judge: then at most all of it was there.
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
