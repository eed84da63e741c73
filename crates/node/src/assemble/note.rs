//! What a start writes into `node.json` once the node's record names it, and what a stop does.

use super::Node;
use crate::limits;
use crate::node_file::{Keeper, LogNote, NodeFile};
use crate::starts::Landed;
use rekindle_env::Env;
use rekindle_log::Log;

/// Records in the background that the node's record names this start, and which segments the log's
/// folder must hold from now on. Until then, the folder only knows that the record may name this
/// start. The log takes nothing before that.
///
/// If the log that was used last is absent, it stays the log that a start looks for, until an
/// operator goes on without it. It may come back until then, and nothing is lost.
pub(super) fn note_start(env: &Env, keeper: &Keeper, landed: Landed, log: &Log, is_absent: bool) {
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
                file.log = Some(LogNote::of(log.known()));
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

impl Node {
    /// Notes that the log's folder may be deleted, if the closed log holds nothing after a drain.
    pub(crate) async fn note_drained(&self) {
        if !self.log.holds_nothing() {
            return;
        }
        let known = self.log.known();
        let note = |file: &mut NodeFile| {
            file.log = Some(LogNote { drained: true, ..LogNote::of(known) });
        };
        if let Err(error) = self.node_file.change(note).await {
            tracing::warn!(%error, "it is not written down that the log holds nothing");
        }
    }
}
