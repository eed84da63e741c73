//! Bundles on their way to readers: a bundle is read and decompressed whole, so readers of its
//! chunks share both.
//!
//! The last few stay in RAM as they were decompressed, for the reader of the neighbours. They are
//! not verified: each chunk is, when a reader takes it out.

use crate::single_flight::SingleFlight;
use crate::{Pointer, limits};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_base::PackId;
use std::collections::VecDeque;

/// The place of a bundle: its pack, and where in it the bundle lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BundlePlace {
    pack: PackId,
    offset: u32,
    stored: u32,
}

impl BundlePlace {
    /// The place of the bundle in which a chunk lies; `None` for a chunk with a blob of its own.
    pub(crate) fn of(pointer: &Pointer) -> Option<Self> {
        let Pointer { pack, offset, stored, .. } = *pointer;
        (!pointer.part.is_whole()).then_some(Self { pack, offset, stored })
    }
}

/// The result of one read of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// The bodies of its chunks.
    Bodies(Bytes),
    /// Bytes that cannot be decompressed.
    Bad(Bytes),
}

#[derive(Default)]
pub(crate) struct Bundles {
    pub(crate) flights: SingleFlight<BundlePlace, Fetched>,
    kept: Mutex<KeptBundles>,
}

/// The bundles in RAM, those last that were used last. They are few.
#[derive(Default)]
struct KeptBundles {
    bundles: VecDeque<(BundlePlace, Bytes)>,
    bytes: usize,
}

impl Bundles {
    /// The bodies of a bundle that is in RAM.
    pub(crate) fn get(&self, place: BundlePlace) -> Option<Bytes> {
        let mut kept = self.kept.lock();
        let at = kept.bundles.iter().rposition(|(kept, _)| *kept == place)?;
        let found = kept.bundles.remove(at)?;
        let bodies = found.1.clone();
        kept.bundles.push_back(found);
        Some(bodies)
    }

    /// Keeps the bodies of a bundle for a while.
    pub(crate) fn keep(&self, place: BundlePlace, bodies: Bytes) {
        let mut kept = self.kept.lock();
        kept.remove(place);
        kept.bytes += bodies.len();
        kept.bundles.push_back((place, bodies));
        while kept.bytes > limits::BUNDLES_KEPT_BYTES
            && let Some((_, oldest)) = kept.bundles.pop_front()
        {
            kept.bytes -= oldest.len();
        }
    }

    /// Drops a bundle from RAM: its bodies are not what they should be.
    pub(crate) fn forget(&self, place: BundlePlace) {
        self.kept.lock().remove(place);
    }
}

impl KeptBundles {
    fn remove(&mut self, place: BundlePlace) {
        if let Some(at) = self.bundles.iter().position(|(kept, _)| *kept == place)
            && let Some((_, bodies)) = self.bundles.remove(at)
        {
            self.bytes -= bodies.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_holds_and_the_bundle_used_last_stays() {
        let bundles = Bundles::default();
        let place = |offset| BundlePlace { pack: PackId([1; 16]), offset, stored: 10 };
        let bodies = Bytes::from(vec![7; limits::BUNDLE_RUN_BYTES]);
        let most = (limits::BUNDLES_KEPT_BYTES / bodies.len()) as u32;
        for offset in 0..3 * most {
            bundles.keep(place(offset), bodies.clone());
            assert!(bundles.get(place(0)).is_some(), "used each time");
            assert!(bundles.kept.lock().bytes <= limits::BUNDLES_KEPT_BYTES);
        }
        assert!(bundles.get(place(1)).is_none());
        assert!(bundles.get(place(3 * most - 1)).is_some());
        bundles.keep(place(0), bodies.clone());
        bundles.forget(place(0));
        assert!(bundles.get(place(0)).is_none());
        let kept = bundles.kept.lock();
        assert_eq!(kept.bytes, kept.bundles.len() * bodies.len());
    }
}
