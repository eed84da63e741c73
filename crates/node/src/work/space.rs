//! The space of volumes in the store: a walk over their trees, without reading data.
//!
//! The bytes that belong to one volume alone cannot be summed up node by node, and a set of all
//! names would grow with the store. Chunk names are uniform hashes, so the names below a limit are
//! a fair sample. The sample is bounded: when it is full, the limit halves. The sums over it are
//! scaled up (the bottom-k sketch of Beyer et al., 2007).

use crate::assemble::Node;
use crate::jobs::Progress;
use crate::limits;
use rekindle_content::tree::{Visitor, walk};
use rekindle_content::{Error, Pointer};
use rekindle_front::http::api::ApiError;
use rekindle_staging::VaultState;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

/// The counters of one volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counted {
    /// Chunks of data, and their content, bytes.
    chunks: u64,
    used: u64,
    /// Nodes of its tree as they are stored, bytes.
    metadata: u64,
}

/// A chunk of the sample.
struct Sampled {
    length: u32,
    stored: u32,
    /// The only volume that has it; `None`: several volumes have it.
    owner: Option<usize>,
    /// Whether only snapshots have it.
    is_past: bool,
}

/// A visitor that counts the chunks it meets.
struct Count {
    sample: HashMap<u64, Sampled>,
    /// Bound of the sample: it has the names below this.
    limit: u64,
    sample_max: usize,
    volume: usize,
    /// Whether the content is that of a snapshot. What a volume has now is walked before.
    is_past: bool,
    counted: Vec<Counted>,
    nodes: HashSet<u64>,
    tell: Box<dyn FnMut(u64) + Send>,
    met: u64,
}

impl Count {
    fn new(volumes: usize, sample_max: usize, tell: Box<dyn FnMut(u64) + Send>) -> Self {
        Self {
            sample: HashMap::new(),
            limit: u64::MAX,
            sample_max,
            volume: 0,
            is_past: false,
            counted: vec![Counted::default(); volumes],
            nodes: HashSet::new(),
            tell,
            met: 0,
        }
    }

    fn data(&mut self, hash: u64, length: u32, stored: u32) {
        let (volume, is_past) = (self.volume, self.is_past);
        if !is_past {
            let counted = &mut self.counted[volume];
            counted.chunks += 1;
            counted.used += u64::from(length);
        }
        if hash >= self.limit {
            return;
        }
        let found = self.sample.entry(hash).or_insert(Sampled {
            length,
            stored,
            owner: Some(volume),
            is_past,
        });
        found.owner = found.owner.filter(|&owner| owner == volume);
        found.is_past &= is_past;
        if self.sample.len() > self.sample_max {
            self.limit /= 2;
            let limit = self.limit;
            self.sample.retain(|&hash, _| hash < limit);
        }
    }

    /// Scales a sum over the sample up to all chunks.
    fn scaled(&self, sum: u64) -> u64 {
        let all = u128::from(sum) * u128::from(u64::MAX) / u128::from(self.limit.max(1));
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Estimates the stored bytes that only this volume has.
    fn unique(&self, volume: usize) -> u64 {
        let own = self.sample.values().filter(|found| found.owner == Some(volume));
        self.scaled(own.map(|found| u64::from(found.stored)).sum())
    }

    /// Estimates the stored bytes that only snapshots have: those of one volume, or of all.
    fn past(&self, volume: Option<usize>) -> u64 {
        let is_its = |found: &&Sampled| volume.is_none() || found.owner == volume;
        let past = self.sample.values().filter(|found| found.is_past).filter(is_its);
        self.scaled(past.map(|found| u64::from(found.stored)).sum())
    }

    /// Estimates the bytes of all distinct chunks that volumes have now: their content, and as they
    /// are stored.
    fn distinct(&self) -> (u64, u64) {
        let now = || self.sample.values().filter(|found| !found.is_past);
        let sum = |of: fn(&Sampled) -> u32| now().map(|found| u64::from(of(found))).sum();
        (self.scaled(sum(|found| found.length)), self.scaled(sum(|found| found.stored)))
    }
}

/// Returns the first 8 bytes of a name.
fn hash(pointer: &Pointer) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&pointer.name[..8]);
    u64::from_be_bytes(first)
}

impl Visitor for Count {
    fn meet(&mut self, pointer: &Pointer) -> bool {
        self.met += 1;
        if self.met.is_multiple_of(4096) {
            (self.tell)(self.met);
        }
        if rekindle_content::pack::class(pointer.pack) == rekindle_content::Class::Metadata {
            let is_new = self.nodes.insert(hash(pointer));
            if is_new && !self.is_past {
                self.counted[self.volume].metadata += u64::from(pointer.share());
            }
            return is_new;
        }
        self.data(hash(pointer), pointer.length, pointer.share());
        false
    }

    fn failed(&mut self, _pointer: &Pointer, error: Error) -> Result<(), Error> {
        Err(error)
    }
}

/// Counts the space of all volumes, or of one of them beside the others.
pub async fn space(
    node: Arc<Node>,
    only: Option<String>,
    progress: Progress,
) -> Result<Value, ApiError> {
    // While the hold lives, no sweep deletes content that the roots below reach.
    let _hold = node.content.hold();
    let infos = node.volumes.list().await?.into_iter();
    let vaults: Vec<_> =
        infos.map(|info| info.vault).filter(|vault| vault.state == VaultState::Live).collect();
    let tell = Box::new(move |chunks| progress.set(chunks, None));
    let mut count = Count::new(vaults.len(), limits::SPACE_SAMPLE, tell);
    for (index, vault) in vaults.iter().enumerate() {
        count.volume = index;
        // Each volume's tree is walked, even if another volume has the same one: both have its
        // chunks.
        count.nodes.clear();
        let snapshots = vault.snapshots.iter().filter_map(|one| one.content.as_ref()?.root);
        let now: Vec<Pointer> = vault.root.iter().copied().collect();
        for (is_past, roots) in [(false, now), (true, snapshots.collect())] {
            count.is_past = is_past;
            walk(&node.content, &roots, &mut count).await.map_err(|error| {
                let message = format!("volume '{}' could not be counted: {error}", vault.name);
                ApiError::new(error.kind(), message)
            })?;
        }
    }
    let volumes: Vec<Value> = vaults
        .iter()
        .enumerate()
        .filter(|(_, vault)| only.as_ref().is_none_or(|name| *name == vault.name))
        .map(|(index, vault)| {
            let counted = &count.counted[index];
            json!({
                "name": vault.name,
                "size": vault.size,
                "used": counted.used,
                "chunks": counted.chunks,
                "metadata": counted.metadata,
                "unique": count.unique(index),
                "snapshots": count.past(Some(index)),
            })
        })
        .collect();
    let used: u64 = count.counted.iter().map(|counted| counted.used).sum();
    let (distinct, stored) = count.distinct();
    Ok(json!({
        "volumes": volumes,
        "all": {
            "used": used,
            "distinct": distinct,
            "stored": stored,
            "snapshots": count.past(None),
        },
        "exact": count.limit == u64::MAX,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::random::Random;

    /// Makes a uniform number, like the name of a chunk.
    fn name(number: u64) -> u64 {
        Random::new(number).next_u64()
    }

    #[test]
    fn what_only_snapshots_have_is_told_apart() {
        let mut count = Count::new(2, 1000, Box::new(|_| ()));
        (0..100).for_each(|number| count.data(name(number), 16, 4));
        count.is_past = true;
        (50..150).for_each(|number| count.data(name(number), 16, 4));
        (count.volume, count.is_past) = (1, false);
        (140..160).for_each(|number| count.data(name(number), 16, 4));
        assert_eq!((count.counted[0].used, count.counted[1].used), (1600, 320));
        assert_eq!((count.past(Some(0)), count.past(Some(1)), count.past(None)), (160, 0, 160));
        assert_eq!((count.unique(0), count.unique(1)), (140 * 4, 10 * 4));
        assert_eq!(count.distinct(), (120 * 16, 120 * 4));
    }

    #[test]
    fn while_the_sample_holds_all_it_is_exact() {
        let mut count = Count::new(2, 1000, Box::new(|_| ()));
        // The first volume has 0..100; the second has 50..150, and 140..150 twice.
        (0..100).for_each(|number| count.data(name(number), 16, 4));
        count.volume = 1;
        (50..150).chain(140..150).for_each(|number| count.data(name(number), 16, 4));
        assert_eq!((count.unique(0), count.unique(1)), (50 * 4, 50 * 4));
        assert_eq!(count.distinct(), (150 * 16, 150 * 4));
        assert_eq!((count.counted[0].used, count.counted[1].used), (1600, 1760));
    }

    #[test]
    fn a_sample_that_overflows_stays_bounded_and_near_the_truth() {
        let mut count = Count::new(2, 4096, Box::new(|_| ()));
        (0..200_000).for_each(|number| count.data(name(number), 16, 8));
        count.volume = 1;
        (100_000..200_000).for_each(|number| count.data(name(number), 16, 8));
        assert!(count.sample.len() <= 4096 && count.limit < u64::MAX);
        let near = |found: u64, truth: u64| found.abs_diff(truth) < truth / 10;
        assert!(near(count.unique(0), 800_000), "{}", count.unique(0));
        assert_eq!(count.unique(1), 0);
        assert!(near(count.distinct().0, 3_200_000), "{:?}", count.distinct());
    }
}
