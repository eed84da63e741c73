//! Waiting until nothing is left that could bring a condemned pack back to life.

use super::Sweeper;
use super::acks::{self, Word};
use super::machine::Event;
use crate::{Error, limits};
use futures_util::future::{Either, select};
use rekindle_base::NodeId;
use std::sync::atomic::Ordering;

impl Sweeper {
    /// Waits until no batch is left that could have found a duplicate in a condemned set. Returns
    /// the words of the other nodes.
    pub(super) async fn settle(&self, set: u64) -> Result<Vec<acks::Other>, Error> {
        self.ended().await?;
        let others = self.agreed(set).await?;
        let env = &self.writer.env;
        let until = env.now() + self.options.grace;
        loop {
            // At least once in each group of a sweep.
            self.check_stop()?;
            let left = until.since(env.now());
            if left.is_zero() {
                break;
            }
            env.sleep(left.min(limits::SWEEP_POLL)).await;
        }
        self.step(Event::Settled);
        Ok(others)
    }

    fn check_stop(&self) -> Result<(), Error> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::Stopped("a user asked for it".into())),
            false => Ok(()),
        }
    }

    /// Waits until everything that this node had begun before has ended.
    async fn ended(&self) -> Result<(), Error> {
        let env = &self.writer.env;
        let begun = env.now();
        let mut settled = std::pin::pin!(self.content.inner.live.settle());
        loop {
            let poll = env.sleep(limits::SWEEP_POLL);
            match select(settled.as_mut(), poll).await {
                Either::Left(_) => {
                    self.count(|status| status.waits_for = None);
                    return Ok(());
                }
                Either::Right(_) => {}
            }
            self.check_stop()?;
            if env.now().since(begun) >= self.options.patience {
                return Err(Error::Stopped(
                    "what this node had begun before it has not ended, so nothing is deleted: sweep again later".into(),
                ));
            }
            let what = "what this node had begun before: batches, checks, imports".to_owned();
            self.count(|status| status.waits_for = Some(what));
        }
    }

    /// Waits until every other node has acknowledged the set. Returns their words.
    async fn agreed(&self, set: u64) -> Result<Vec<acks::Other>, Error> {
        let env = &self.writer.env;
        // A newer start of this node writes, and is not among the other nodes. A start that comes
        // later finds the set.
        if let Some(newer) = acks::replaced_by(&self.writer).await? {
            return Err(Error::Stopped(format!(
                "start {newer} of this node is in its record: another copy of its folder was started, and has not been asked"
            )));
        }
        let begun = env.now();
        loop {
            let others = acks::others(&self.writer, set).await?;
            let listed = |is_wanted: &dyn Fn(&Word) -> bool| {
                let nodes = others.iter().filter(|other| is_wanted(&other.word));
                nodes.map(|other| other.node).collect::<Vec<NodeId>>()
            };
            let missing = listed(&|word| matches!(word, Word::Missing { .. }));
            if missing.is_empty() {
                self.count(|status| status.waits_for = None);
                return Ok(others);
            }
            let silent = listed(&|word| matches!(word, Word::Missing { is_ending: false }));
            if env.now().since(begun) >= self.options.patience {
                if silent.is_empty() {
                    return Err(Error::Stopped(format!(
                        "node {} lives, and has not ended yet what it had begun before, so nothing is deleted: sweep \
                         again later",
                        joined(&missing)
                    )));
                }
                let command = |node: &NodeId| format!("`rekindle sweep dismiss {node}`");
                let commands: Vec<String> = silent.iter().map(command).collect();
                let nodes = joined(&silent);
                return Err(Error::Stopped(format!(
                    "node {nodes} uses this store too and has not agreed to the deletion, so nothing is deleted: start \
                     it, or, if it is gone for good, say so: {}",
                    commands.join(", ")
                )));
            }
            self.check_stop()?;
            let nodes = joined(&missing);
            self.count(|status| status.waits_for = Some(format!("node {nodes}")));
            env.sleep(limits::SWEEP_POLL).await;
        }
    }
}

fn joined(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
