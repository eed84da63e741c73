//! The choice of a holder: the best of a few that were drawn at random. The draw spreads the logs
//! of many nodes, the offers avoid what is slow or full.

use rekindle_base::NodeId;

/// Where a holder may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// In another fault domain than the owner and its other holders, if there is one.
    #[default]
    Prefer,
    /// In another fault domain than the owner only.
    Remote,
    /// In the owner's fault domain only.
    Local,
}

/// A node that may become a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub node: NodeId,
    pub domain: String,
}

/// What a candidate says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offer {
    /// Bytes that it may still take.
    pub free: u64,
    /// Bytes of copies that it has.
    pub taken: u64,
    /// Its measured speed of durable writes, bytes per second.
    pub speed: u64,
}

/// The candidates among which to draw: those that the rule allows, and of these the ones in unused
/// domains, if there are any.
#[must_use]
pub fn eligible(
    candidates: Vec<Candidate>,
    spread: Spread,
    (own, used): (&str, &[String]),
) -> Vec<Candidate> {
    let is_allowed = |one: &Candidate| match spread {
        Spread::Prefer => true,
        Spread::Remote => one.domain != own,
        Spread::Local => one.domain == own,
    };
    let allowed: Vec<_> = candidates.into_iter().filter(is_allowed).collect();
    if spread == Spread::Local {
        return allowed;
    }
    let is_unused = |one: &&Candidate| one.domain != own && !used.contains(&one.domain);
    let unused: Vec<_> = allowed.iter().filter(is_unused).cloned().collect();
    if unused.is_empty() { allowed } else { unused }
}

/// Draws at most `count` of the candidates; `random` gives a number below its argument.
#[must_use]
pub fn draw(
    mut candidates: Vec<Candidate>,
    count: usize,
    mut random: impl FnMut(usize) -> usize,
) -> Vec<Candidate> {
    let count = count.min(candidates.len());
    for at in 0..count {
        let other = at + random(candidates.len() - at);
        candidates.swap(at, other);
    }
    candidates.truncate(count);
    candidates
}

/// The best offer: the node that would be done soonest with all that it has and what comes. `need`:
/// bytes that the log takes at least; a holder without that room is none.
#[must_use]
pub fn best(offers: &[(NodeId, Offer)], need: u64) -> Option<NodeId> {
    let time = |offer: &Offer| {
        let bytes = u128::from(offer.taken) + u128::from(need);
        bytes * 1_000_000 / u128::from(offer.speed.max(1))
    };
    let has_room = |(_, offer): &&(NodeId, Offer)| offer.free >= need;
    offers.iter().filter(has_room).min_by_key(|(node, offer)| (time(offer), *node)).map(|one| one.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(number: u8, domain: &str) -> Candidate {
        Candidate { node: NodeId([number; 16]), domain: domain.to_owned() }
    }

    #[test]
    fn unused_domains_come_first_and_rules_are_kept() {
        let all = || vec![candidate(1, "a"), candidate(2, "b"), candidate(3, "c")];
        let named = |spread, own, used: &[&str]| -> Vec<u8> {
            let used: Vec<_> = used.iter().map(|one| (*one).to_owned()).collect();
            eligible(all(), spread, (own, &used)).iter().map(|one| one.node.0[0]).collect()
        };
        assert_eq!(named(Spread::Prefer, "a", &[]), [2, 3]);
        assert_eq!(named(Spread::Prefer, "a", &["b"]), [3]);
        assert_eq!(named(Spread::Prefer, "a", &["b", "c"]), [1, 2, 3], "better than none");
        assert_eq!(named(Spread::Remote, "a", &["b", "c"]), [2, 3]);
        assert_eq!(named(Spread::Local, "a", &["b"]), [1]);
        assert!(named(Spread::Local, "d", &[]).is_empty());
    }

    #[test]
    fn a_draw_has_no_candidate_twice_and_reaches_each() {
        let all: Vec<_> = (0..5).map(|number| candidate(number, "")).collect();
        let mut seen = [false; 5];
        for first in 0..5 {
            let drawn = draw(all.clone(), 3, |below| first % below);
            assert_eq!(drawn.len(), 3);
            let mut nodes: Vec<_> = drawn.iter().map(|one| one.node.0[0]).collect();
            nodes.iter().for_each(|node| seen[usize::from(*node)] = true);
            nodes.sort_unstable();
            nodes.dedup();
            assert_eq!(nodes.len(), 3);
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(draw(all, 9, |_| 0).len(), 5);
    }

    #[test]
    fn the_holder_that_is_done_soonest_is_chosen_and_a_full_one_never() {
        let offer = |free, taken, speed| Offer { free, taken, speed };
        let [fast, slow, full] = [1, 2, 3].map(|number| NodeId([number; 16]));
        let offers =
            [(slow, offer(100, 0, 10)), (fast, offer(100, 50, 100)), (full, offer(9, 0, 1000))];
        assert_eq!(best(&offers, 10), Some(fast));
        assert_eq!(best(&offers, 9), Some(full));
        assert_eq!(best(&offers[..1], 10), Some(slow));
        assert_eq!(best(&offers, 101), None);
        let busy = [(slow, offer(100, 0, 10)), (fast, offer(100, 5000, 100))];
        assert_eq!(best(&busy, 10), Some(slow), "the fast one has too much to do");
    }
}
