//! Parity of a pack: made when the pack is sealed, used when its bytes are damaged.
//!
//! A plain Reed-Solomon code over GF(2^8) with the Cauchy matrix, by stripes of small cells. In
//! each stripe as many cells may be damaged as it has parity cells, wherever they are. Checksums
//! tell which cells are damaged. Every part of the section has a copy of them: damage to one part
//! costs one parity cell a stripe, no more.

use crate::Parity;
use crate::format::parity::Layout;
use rekindle_base::PackId;
use rekindle_base::checksum::crc32c;
use rusty_erasure::{Coder, Matrix};

pub use crate::format::parity::find;

/// A pack after parity has rebuilt what it can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healed {
    /// The bytes in front of the section, each as it was written if its stripe could be rebuilt,
    /// else as it is.
    pub covered: Vec<u8>,
    /// Cells that differ from what was written, those of parity too.
    pub damaged: u64,
    /// Stripes with damaged cells that parity could not rebuild.
    pub hopeless: u64,
}

fn coder(layout: &Layout) -> Option<Coder> {
    rusty_erasure::coder(Matrix::cauchy(layout.data, layout.parity).ok()?).ok()
}

/// Appends the parity of all that `pack` has so far.
pub(crate) fn append(id: PackId, parity: Parity, pack: &mut Vec<u8>) {
    append_as(id, &Layout::new(parity, pack.len()), pack);
}

/// Like [`append`], with a layout that was chosen before.
pub(crate) fn append_as(id: PackId, layout: &Layout, pack: &mut Vec<u8>) {
    let Some(coder) = coder(layout) else { return };
    let shard_bytes = layout.shard_bytes();
    let mut parity = vec![0; layout.parity * shard_bytes];
    // The coder needs shards of equal length; the padding goes again below.
    pack.resize(layout.data * shard_bytes, 0);
    let shards: Vec<&[u8]> = pack.chunks_exact(shard_bytes).collect();
    let mut parity_shards: Vec<&mut [u8]> = parity.chunks_exact_mut(shard_bytes).collect();
    if coder.encode(&shards, &mut parity_shards).is_err() {
        pack.truncate(layout.covered);
        return;
    }
    pack.truncate(layout.covered);
    let mut checksums = Vec::with_capacity(layout.shards() * layout.stripes() * 4);
    for shard in 0..layout.data {
        for stripe in 0..layout.stripes() {
            checksums.extend(crc32c(&pack[layout.cell(shard, stripe)]).to_le_bytes());
        }
    }
    for cell in parity.chunks_exact(layout.cell) {
        checksums.extend(crc32c(cell).to_le_bytes());
    }
    pack.reserve(layout.end() - layout.covered);
    for (part, shard) in parity.chunks_exact(shard_bytes).enumerate() {
        let head = layout.head(id, part);
        for bytes in [&head[..], shard, &checksums, &head] {
            pack.extend_from_slice(bytes);
        }
    }
}

/// Rebuilds damaged bytes in front of the section that [`find`] has found. Any bytes give an
/// answer, right or not: the reader of a chunk compares the chunk with its name.
#[must_use]
pub fn heal(object: &[u8], layout: &Layout) -> Healed {
    let mut covered = object[..layout.covered.min(object.len())].to_vec();
    covered.resize(layout.covered, 0);
    let mut healed = Healed { covered, damaged: 0, hopeless: 0 };
    let coder = coder(layout);
    for stripe in 0..layout.stripes() {
        let is_sound: Vec<bool> =
            (0..layout.shards()).map(|shard| is_sound(object, layout, shard, stripe)).collect();
        let damaged = is_sound.iter().filter(|is_sound| !**is_sound).count();
        healed.damaged += damaged as u64;
        let lost: Vec<usize> = (0..layout.data).filter(|shard| !is_sound[*shard]).collect();
        let rebuilt = match &coder {
            _ if lost.is_empty() && damaged <= layout.parity => continue,
            Some(coder) if damaged <= layout.parity => {
                rebuild(coder, object, layout, stripe, &is_sound, &lost)
            }
            _ => None,
        };
        let Some(rebuilt) = rebuilt else {
            healed.hopeless += 1;
            continue;
        };
        for (shard, bytes) in lost.iter().zip(rebuilt.chunks_exact(layout.cell)) {
            let cell = layout.cell(*shard, stripe);
            let length = cell.len();
            healed.covered[cell].copy_from_slice(&bytes[..length]);
        }
    }
    healed
}

/// Whether a cell has the checksum that any of the parts has of it. A cell that is only padding
/// cannot be damaged.
fn is_sound(object: &[u8], layout: &Layout, shard: usize, stripe: usize) -> bool {
    let cell = layout.cell(shard, stripe);
    if cell.is_empty() {
        return true;
    }
    let Some(bytes) = object.get(cell) else { return false };
    let found = crc32c(bytes).to_le_bytes();
    let mut kept =
        (0..layout.parity).filter_map(|part| object.get(layout.checksum(part, shard, stripe)));
    kept.any(|kept| kept == found)
}

/// Rebuilds the cells of the shards `lost`, one after the other, with padding.
fn rebuild(
    coder: &Coder,
    object: &[u8],
    layout: &Layout,
    stripe: usize,
    is_sound: &[bool],
    lost: &[usize],
) -> Option<Vec<u8>> {
    let mut padded = vec![0; layout.shards() * layout.cell];
    for (shard, place) in padded.chunks_exact_mut(layout.cell).enumerate() {
        if is_sound[shard] {
            let bytes = object.get(layout.cell(shard, stripe))?;
            place[..bytes.len()].copy_from_slice(bytes);
        }
    }
    let cells: Vec<Option<&[u8]>> = padded
        .chunks_exact(layout.cell)
        .zip(is_sound)
        .map(|(cell, is_sound)| is_sound.then_some(cell))
        .collect();
    let mut rebuilt = vec![0; lost.len() * layout.cell];
    let mut places: Vec<&mut [u8]> = rebuilt.chunks_exact_mut(layout.cell).collect();
    coder.recover(&cells, lost, &mut places).ok()?;
    Some(rebuilt)
}

#[cfg(test)]
mod tests;
