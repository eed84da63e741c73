//! Spans of service over which nothing is lost that was acknowledged before it was durable.
//!
//! A life may lose at its end what it had in memory alone, and so may a volume with its owner. Two
//! ends lose nothing: a life's that has closed its log in good order, and a generation's that was
//! handed over, with all changes in the store. So a client that must send again what may be lost
//! need not do so after these two.

use super::Vault;
use crate::Policy;
use rekindle_base::{Generation, Incarnation, Life, NodeId};
use serde::{Deserialize, Serialize};

/// The beginning of such a span: the life, and the generation of the volume, that came first in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub generation: Generation,
}

/// A span that a hand-over has passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbroken {
    pub since: Beginning,
    /// The generation that the hand-over has begun. The span ends with it, unless it is handed
    /// over, too.
    pub generation: Generation,
    /// The life of the new owner.
    pub incarnation: Incarnation,
}

/// Returns the beginning of the span in which `life` serves a volume. `since` is the first life
/// of the node after which each one has closed its log.
pub(crate) fn beginning(vault: &Vault, life: Life, since: Incarnation) -> Beginning {
    // The log has nothing of what waits for the store.
    let since = if vault.policy == Policy::Back { since } else { life.incarnation };
    let passed_on = vault.unbroken.filter(|unbroken| {
        vault.owner == Some(life.node)
            && unbroken.generation == vault.generation
            && unbroken.incarnation >= since
    });
    let own = Beginning { node: life.node, incarnation: since, generation: vault.generation };
    passed_on.map_or(own, |unbroken| unbroken.since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault::tests::example;

    fn first() -> Beginning {
        Beginning { node: NodeId([7; 16]), incarnation: Incarnation(2), generation: Generation(1) }
    }

    /// A vault of generation 3 that its owner's start 12 was given.
    fn given() -> Vault {
        let (generation, incarnation) = (Generation(3), Incarnation(12));
        Vault { unbroken: Some(Unbroken { since: first(), generation, incarnation }), ..example() }
    }

    fn seen(vault: &Vault, incarnation: u64, since: u64) -> Beginning {
        let life =
            Life { node: vault.owner.expect("it has one"), incarnation: Incarnation(incarnation) };
        beginning(vault, life, Incarnation(since))
    }

    fn own(incarnation: u64) -> Beginning {
        let (node, generation) = (example().owner.expect("it has one"), example().generation);
        Beginning { node, incarnation: Incarnation(incarnation), generation }
    }

    #[test]
    fn a_span_goes_on_over_a_move_and_over_starts_after_a_stop() {
        assert_eq!(seen(&given(), 12, 12), first());
        assert_eq!(seen(&given(), 14, 11), first(), "each start since has found a closed log");
        assert_eq!(seen(&example(), 14, 11), own(11));
    }

    #[test]
    fn a_span_ends_with_a_kill_another_generation_and_another_owner() {
        assert_eq!(seen(&given(), 14, 13), own(13), "the start that was given it was killed");
        let later = Vault { generation: Generation(4), ..given() };
        let generation = Generation(4);
        assert_eq!(seen(&later, 12, 12), Beginning { generation, ..own(12) }, "it was set back");
        let life = Life { node: NodeId([9; 16]), incarnation: Incarnation(12) };
        let there = beginning(&given(), life, Incarnation(12));
        assert_eq!(there, Beginning { node: life.node, ..own(12) });
    }

    #[test]
    fn what_waits_for_the_store_is_lost_with_its_life() {
        let vault = Vault { policy: Policy::Through, ..example() };
        assert_eq!(seen(&vault, 14, 11), own(14));
        let vault = Vault { policy: Policy::Through, ..given() };
        assert_eq!(seen(&vault, 12, 11), first(), "all was in the store");
        assert_eq!(seen(&vault, 13, 11), own(13));
    }
}
