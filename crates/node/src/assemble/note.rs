//! What a start writes into `node.json` once the node's record names it, and what a stop does.

use super::Node;
use crate::limits;
use crate::node_file::{Keeper, LogNote, NodeFile};
use crate::starts::Landed;
use rekindle_base::Incarnation;
use rekindle_env::Env;
use rekindle_log::Log;

/// Records in the background that the node's record names this start, and which segments the log's
/// folder must hold from now on. Until then, the folder only knows that the record may name this
/// start. The log takes nothing before that.
///
/// If the log that was used last is absent, it stays the log that a start looks for, until an
/// operator goes on without it. It may come back until then, and nothing is lost.
pub(super) fn note_start(
    env: &Env,
    keeper: &Keeper,
    (landed, since): (Landed, Incarnation),
    log: &Log,
    is_absent: bool,
) {
    log.hold();
    let (env, keeper, log) = (env.clone(), keeper.clone(), log.clone());
    env.clone().spawn("note-start", async move {
        if is_absent {
            let stand_in = |file: &mut NodeFile| {
                file.starts = file.starts.landed(landed);
                file.log.as_mut().map(|log| log.stand_in.get_or_insert(landed.incarnation));
            };
            if let Err(error) = keeper.change(stand_in).await {
                tracing::warn!(%error, "it is not written down that this start succeeded");
            }
            log.wanted().await;
        }
        if !log.reserve().await {
            tracing::warn!(
                "the disk is full: a start that finds it still full may have to wait for room"
            );
        }
        while log.failure().is_none() {
            let note = |file: &mut NodeFile| {
                file.starts = file.starts.landed(landed);
                let unbroken_since = Some(since).filter(|since| *since != landed.incarnation);
                file.log = Some(LogNote { unbroken_since, ..LogNote::of(log.known()) });
            };
            match keeper.change(note).await {
                Ok(()) => return log.go_on(),
                Err(error) => {
                    tracing::warn!(%error, "writes wait until this start is written down")
                }
            }
            env.sleep(limits::NOTE_RETRY).await;
        }
    });
}

/// Returns the first life after which each one has closed the log in good order, up to the start
/// `this`. `last`: the life before, as the node's record had it. `closed`: the life that has closed
/// the log. `noted`: what that one has written down.
pub(super) fn unbroken_since(
    this: Incarnation,
    last: Option<Incarnation>,
    closed: Option<Incarnation>,
    noted: Option<LogNote>,
) -> Incarnation {
    // A life in between, in a copy of the folder, may have acknowledged what this one lacks.
    let Some(closed) = closed.filter(|closed| Some(*closed) == last) else { return this };
    let noted = noted.filter(|noted| noted.incarnation == closed);
    noted.and_then(|noted| noted.unbroken_since).unwrap_or(closed)
}

impl Node {
    /// Notes that the log's folder may be deleted, if the closed log holds nothing after a drain.
    pub(crate) async fn note_drained(&self) {
        if !self.log.holds_nothing() {
            return;
        }
        let known = self.log.known();
        let note = |file: &mut NodeFile| {
            let unbroken_since = file.log.and_then(|log| log.unbroken_since);
            file.log = Some(LogNote { drained: true, unbroken_since, ..LogNote::of(known) });
        };
        if let Err(error) = self.node_file.change(note).await {
            tracing::warn!(%error, "it is not written down that the log holds nothing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::SegmentId;

    #[test]
    fn starts_go_on_from_a_closed_log_and_begin_anew_after_a_kill() {
        let life = |number| Some(Incarnation(number));
        let noted = |incarnation: u64, unbroken_since| {
            let (newest, incarnation) = (SegmentId(9), Incarnation(incarnation));
            Some(LogNote { newest, incarnation, stand_in: None, drained: false, unbroken_since })
        };
        let since = |last, closed, noted| unbroken_since(Incarnation(8), last, closed, noted).0;
        assert_eq!(since(None, None, None), 8, "the first start");
        assert_eq!(since(life(7), None, noted(7, life(4))), 8, "a kill");
        assert_eq!(since(life(7), life(7), noted(7, None)), 7);
        assert_eq!(since(life(7), life(7), noted(7, life(4))), 4, "and stops before it");
        assert_eq!(since(life(7), life(7), noted(6, life(4))), 7, "it has not written that down");
        assert_eq!(since(life(7), life(7), None), 7, "an older binary");
        assert_eq!(since(life(7), life(6), noted(6, life(4))), 8, "another copy was started");
    }
}
