//! The records `sweep/acks/<node>`: the condemned set in which a node refuses duplicates.
//!
//! A set is dead for good only when every node of the store has acknowledged it: each refuses
//! duplicates in its packs from then on, and the batches that it had begun before have ended. Every
//! record `nodes/<id>` counts, however long it has been silent. A record that says `fenced` does
//! not count, nor does one whose life has left or was dismissed.
//!
//! A node that starts meanwhile is no hole. It writes its record before it reads `sweep/condemned`,
//! which it does before it finds its first duplicate. The sweeper writes `sweep/condemned` before
//! it lists the nodes.

use super::condemned::{self, CondemnedState};
use super::sources::{Roots, Written};
use crate::{Content, Error, limits};
use futures_util::FutureExt;
use rekindle_base::{Incarnation, NodeId};
use rekindle_datastore::key;
use rekindle_datastore::record::{self, Body, Writer};
use serde::{Deserialize, Serialize};

/// Whether this start has left, for good; a task that writes the record of this start holds the
/// lock.
pub(super) type Left = tokio::sync::Mutex<bool>;

/// Prefix of the keys of the records.
pub const PREFIX: &str = "sweep/acks/";

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The start of the node for which this holds.
    pub incarnation: Incarnation,
    /// The condemned set that is acknowledged.
    pub set: u64,
    /// The condemned set that the node will acknowledge as soon as its earlier holds have ended: a
    /// sign of life.
    #[serde(default)]
    pub ending: u64,
    /// Whether this start of the node is over: it writes nothing any more.
    #[serde(default)]
    pub left: bool,
    /// The sources that the node has begun to write since the write that the condemned set names,
    /// or since its start. Absent: too many, or a binary that does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrote: Option<Written>,
}

impl Ack {
    /// Whether this says all that matters of the other.
    fn says(&self, other: &Ack) -> bool {
        let word = |ack: &Ack| (ack.incarnation, ack.set, ack.ending, ack.left);
        word(self) == word(other)
    }

    fn of(incarnation: Incarnation) -> Self {
        Self { incarnation, set: 0, ending: 0, left: false, wrote: None }
    }
}

impl Body for Ack {
    const WHAT: &'static str = "acknowledgement of a sweep";
    const FORMAT: u32 = 1;
}

fn key_of(node: NodeId) -> String {
    format!("{PREFIX}{node}")
}

/// Does this node's part in another node's sweep; returns whether there is such a sweep. Never
/// called while this node itself sweeps: the set in the record may be an older one.
pub(super) async fn acknowledge(
    content: &Content,
    writer: &Writer,
    left: &Left,
    roots: &dyn Roots,
) -> Result<bool, Error> {
    let condemned = condemned::read(&content.inner.store).await?;
    condemned::refuse(content, &condemned);
    if condemned.state == CondemnedState::Deleting {
        content.inner.index.forget_wholly(&condemned.packs);
    }
    if condemned.state != CondemnedState::Condemned {
        return Ok(condemned.state == CondemnedState::Deleting);
    }
    let incarnation = writer.life().incarnation;
    let mut settled = std::pin::pin!(content.inner.live.settle());
    if settled.as_mut().now_or_never().is_none() {
        let ack = Ack { ending: condemned.set, ..Ack::of(incarnation) };
        if !say(writer, left, ack).await? {
            return Ok(false);
        }
        settled.await;
    }
    // After the settling: whatever a batch begun before has committed is among these.
    let known = condemned.heard.get(&writer.node).filter(|known| known.incarnation == incarnation);
    let wrote = roots.written(known.map_or(0, |known| known.upto));
    let wrote = wrote.filter(|wrote| wrote.sources.len() <= limits::ACK_SOURCES_MAX);
    say(writer, left, Ack { set: condemned.set, wrote, ..Ack::of(incarnation) }).await
}

/// Writes the record of this start, unless it has left; returns whether it did.
async fn say(writer: &Writer, left: &Left, ack: Ack) -> Result<bool, Error> {
    let left = left.lock().await;
    if *left {
        return Ok(false);
    }
    put(writer, writer.node, ack).await?;
    Ok(true)
}

/// Whether this start of the node was dismissed, or has left. Then other nodes do not wait for it,
/// and chunks that it takes for granted may be deleted: it must write nothing more that leads to
/// them.
pub async fn is_dismissed(writer: &Writer) -> Result<bool, Error> {
    let life = writer.life();
    has_left(writer, life.node, life.incarnation).await
}

/// Returns the newer start that the node's record names, if it does: one from another copy of the
/// node's folder. The newer start sweeps as this node, without asking this one. So this one must
/// write nothing more that leads to chunks that it takes for granted.
pub async fn replaced_by(writer: &Writer) -> Result<Option<Incarnation>, Error> {
    match last_start(writer, writer.node).await {
        Ok(newest) => Ok(newest.filter(|newest| *newest > writer.life().incarnation)),
        Err(rekindle_datastore::Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The start that a node's record names; `None` when the record names none.
async fn last_start(
    writer: &Writer,
    node: NodeId,
) -> Result<Option<Incarnation>, rekindle_datastore::Error> {
    let key = key::node_key(node);
    let (bytes, _) = writer.store.get(&key).await?;
    let body = record::decode(&key, &bytes)?.body;
    Ok(body.get("incarnation").and_then(|number| number.as_u64()).map(Incarnation))
}

/// Returns the start of another node that the user dismisses: the one that the node's record names.
pub(super) async fn dismissed(writer: &Writer, node: NodeId) -> Result<Incarnation, Error> {
    if node == writer.node {
        let reason = "this is the node that was asked: it is not gone".to_owned();
        return Err(Error::Invalid(reason));
    }
    let unclear = || rekindle_datastore::Error::Damaged {
        reason: "it does not say which start of the node is the last one".to_owned(),
        key: key::node_key(node),
    };
    Ok(last_start(writer, node).await?.ok_or_else(unclear)?)
}

/// Returns an error when that start of a node has answered the sweep at hand: it lives.
pub(super) async fn prove_silent(
    writer: &Writer,
    node: NodeId,
    incarnation: Incarnation,
) -> Result<(), Error> {
    let condemned = condemned::read(&writer.store).await?;
    let ack = read(writer, node).await?.filter(|ack| ack.incarnation == incarnation && !ack.left);
    let answers = |ack: &Ack| [ack.set, ack.ending].contains(&condemned.set);
    if condemned.state != CondemnedState::Clear && ack.as_ref().is_some_and(answers) {
        return Err(Error::Invalid(format!(
            "node {node} lives: it has answered the sweep at hand. Stop it first, or wait until it has ended what it had begun"
        )));
    }
    Ok(())
}

/// Writes that a start of a node is over: after its own stop in good order, or by the user's word
/// for one that will never come back.
pub(super) async fn leave(
    writer: &Writer,
    node: NodeId,
    incarnation: Incarnation,
) -> Result<(), Error> {
    put(writer, node, Ack { left: true, ..Ack::of(incarnation) }).await
}

async fn put(writer: &Writer, node: NodeId, ack: Ack) -> Result<(), Error> {
    let key = key_of(node);
    match writer.read::<Ack>(&key).await? {
        // A late word of an earlier start says nothing about a later one. What was said of a set
        // once is enough: later writes lead nowhere that matters.
        Some(found) if found.value.says(&ack) || found.value.incarnation > ack.incarnation => {}
        // A start that is over does not come back.
        Some(found) if found.value.left && found.value.incarnation == ack.incarnation => {
            return Err(Error::Dismissed);
        }
        Some(found) => drop(writer.replace(&found, ack).await?),
        None => drop(writer.create(&key, ack).await?),
    }
    Ok(())
}

/// The answer of another node of the store to a condemned set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing yet. `is_ending`: it lives, and ends what it had begun before.
    Missing { is_ending: bool },
    /// It has acknowledged the set, and has written these sources.
    Agreed(Option<Written>),
    /// Its start is over: it has left, was dismissed or is fenced.
    Over,
}

/// Another node of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) node: NodeId,
    /// `None`: the record cannot be understood, so the node lives.
    pub(super) incarnation: Option<Incarnation>,
    pub(super) word: Word,
}

/// Asks the records of all other nodes what they say of a condemned set.
pub(super) async fn others(writer: &Writer, set: u64) -> Result<Vec<Other>, Error> {
    let mut others = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = writer.store.list(key::NODES, after.as_deref()).await?;
        let Some(last) = page.last() else { return Ok(others) };
        after = Some(last.key.clone());
        for listed in &page {
            let id = listed.key.strip_prefix(key::NODES).and_then(|id| id.parse().ok());
            let Some(node) = id.filter(|node| *node != writer.node) else { continue };
            let bytes = match writer.store.get(&listed.key).await {
                Ok((bytes, _)) => bytes,
                Err(rekindle_datastore::Error::NotFound(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            let body = record::decode(&listed.key, &bytes).map(|found| found.body);
            let field = |name| body.as_ref().ok().and_then(|body| body.get(name));
            let incarnation = field("incarnation").and_then(|number| number.as_u64());
            let incarnation = incarnation.map(Incarnation);
            let is_fenced = field("fenced").is_some_and(|is| !is.is_null() && is != false);
            let word = match is_fenced {
                true => Word::Over,
                false => word(writer, node, incarnation, set).await?,
            };
            others.push(Other { node, incarnation, word });
        }
    }
}

async fn word(
    writer: &Writer,
    node: NodeId,
    incarnation: Option<Incarnation>,
    set: u64,
) -> Result<Word, Error> {
    let ack = match incarnation {
        Some(_) => read(writer, node).await?,
        None => None,
    };
    Ok(match ack.filter(|ack| Some(ack.incarnation) == incarnation) {
        Some(ack) if ack.left => Word::Over,
        Some(ack) if ack.set == set => Word::Agreed(ack.wrote),
        Some(ack) => Word::Missing { is_ending: ack.ending == set },
        None => Word::Missing { is_ending: false },
    })
}

async fn read(writer: &Writer, node: NodeId) -> Result<Option<Ack>, Error> {
    Ok(writer.read::<Ack>(&key_of(node)).await?.map(|held| held.value))
}

async fn has_left(writer: &Writer, node: NodeId, incarnation: Incarnation) -> Result<bool, Error> {
    let ack = read(writer, node).await?;
    Ok(ack.is_some_and(|ack| ack.left && ack.incarnation == incarnation))
}
