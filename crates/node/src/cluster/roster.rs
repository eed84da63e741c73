//! The roster of a cluster: the records `nodes/<id>` of a store, as peers see them.

use crate::record::{NodeRecord, PeerNote, PinNote};
use futures_util::future::join_all;
use parking_lot::Mutex;
use rekindle_base::NodeId;
use rekindle_cluster::Secret;
use rekindle_cluster::roster::{Contact, Entry, HolderSet, Named, Pin, Roster};
use rekindle_datastore::key::{NODES, node_key};
use rekindle_datastore::record::Writer;
use rekindle_env::{BoxFuture, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The records, as they were read last.
pub(crate) struct StoreRoster {
    writer: Writer,
    secret: Secret,
    known: Mutex<BTreeMap<NodeId, Arc<Entry>>>,
}

impl StoreRoster {
    pub(crate) fn new(writer: Writer, secret: Secret) -> Self {
        Self { writer, secret, known: Mutex::default() }
    }

    async fn read_one(&self, node: NodeId) -> Result<Option<Arc<Entry>>, String> {
        let found = self.writer.read::<NodeRecord>(&node_key(node)).await;
        let Some(held) = found.map_err(|error| error.to_string())? else { return Ok(None) };
        let entry = Arc::new(entry(node, &held.value, &self.secret)?);
        self.known.lock().insert(node, Arc::clone(&entry));
        Ok(Some(entry))
    }
}

impl Roster for StoreRoster {
    fn known(&self) -> Vec<Arc<Entry>> {
        self.known.lock().values().cloned().collect()
    }

    fn find(&self, node: NodeId) -> Option<Arc<Entry>> {
        self.known.lock().get(&node).cloned()
    }

    fn read(&self, node: NodeId) -> BoxFuture<'_, Result<Option<Arc<Entry>>, String>> {
        Box::pin(self.read_one(node))
    }

    fn read_all(&self) -> BoxFuture<'_, Result<Vec<Arc<Entry>>, String>> {
        Box::pin(async {
            let listed = self.writer.store.list(NODES, None).await;
            let listed = listed.map_err(|error| error.to_string())?;
            let nodes = listed.iter().filter_map(|one| one.key.strip_prefix(NODES)?.parse().ok());
            let read = nodes.map(async |node: NodeId| match self.read_one(node).await {
                Ok(entry) => entry,
                Err(why) => {
                    tracing::debug!(%node, why, "a node's record is left out");
                    None
                }
            });
            Ok(join_all(read).await.into_iter().flatten().collect())
        })
    }
}

/// A node's record as peers see it. Returns an error if its contact was not written by a node that
/// knows the secret.
pub(crate) fn entry(node: NodeId, record: &NodeRecord, secret: &Secret) -> Result<Entry, String> {
    let host = record.host.unwrap_or(node);
    let contact = record.peer.as_ref().map(|note| contact(note, host, secret)).transpose();
    let contact =
        contact.map_err(|why| format!("the record of node {node} is not believed: {why}"))?;
    let named = record.holders.nodes.iter();
    let nodes = named.map(|one| Named { node: one.node, since: one.since }).collect();
    Ok(Entry {
        node,
        incarnation: record.incarnation,
        host,
        contact,
        holders: HolderSet { epoch: record.holders.epoch, nodes },
        is_resting: record.resting,
        is_draining: record.draining,
        is_removed: record.removed,
    })
}

fn contact(note: &PeerNote, host: NodeId, secret: &Secret) -> Result<Contact, String> {
    let pin = |pin: &PinNote| Ok(Pin { key: pin.key.parse()?, until: Timestamp(pin.until) });
    let contact = Contact {
        address: note.address.parse().map_err(|bad| format!("{bad}"))?,
        domain: note.domain.clone(),
        name: note.name.clone(),
        pins: note.pins.iter().map(pin).collect::<Result<_, String>>()?,
    };
    match contact.proof(secret, host) == note.proof {
        true => Ok(contact),
        false => Err("it was not written by a node of this cluster".to_owned()),
    }
}

/// The way to a host, as records have it.
pub(crate) fn note(contact: &Contact, host: NodeId, secret: &Secret) -> PeerNote {
    let pin = |pin: &Pin| PinNote { key: pin.key.to_string(), until: pin.until.0 };
    PeerNote {
        address: contact.address.to_string(),
        domain: contact.domain.clone(),
        name: contact.name.clone(),
        pins: contact.pins.iter().map(pin).collect(),
        proof: contact.proof(secret, host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;
    use rekindle_cluster::Fingerprint;

    #[test]
    fn a_place_comes_back_and_a_forged_one_is_not_believed() {
        let (secret, host, node) = (Secret([1; 32]), NodeId([8; 16]), NodeId([7; 16]));
        let contact = Contact {
            address: "tcp:10.0.0.8:7733".parse().expect("an address"),
            domain: "rack1".to_owned(),
            name: "eight".to_owned(),
            pins: vec![Pin { key: Fingerprint([3; 32]), until: Timestamp(77) }],
        };
        let written = NodeRecord { peer: Some(note(&contact, host, &secret)), ..sample() };
        let found = entry(node, &written, &secret).expect("it is of this cluster");
        assert_eq!((found.contact.as_ref(), found.host), (Some(&contact), host));
        assert_eq!((found.holders.epoch, found.holders.place_of(NodeId([9; 16]))), (3, Some(0)));
        let forge = |change: &dyn Fn(&mut NodeRecord)| {
            let mut forged = written.clone();
            change(&mut forged);
            entry(node, &forged, &secret).expect_err("it is forged")
        };
        let peer = |record: &mut NodeRecord, change: &dyn Fn(&mut PeerNote)| {
            change(record.peer.as_mut().expect("a contact"));
        };
        let changes: [&dyn Fn(&mut PeerNote); 5] = [
            &|note| note.address = "tcp:10.0.0.9:7733".to_owned(),
            &|note| note.domain = "rack2".to_owned(),
            &|note| note.name = "nine".to_owned(),
            &|note| note.pins[0].key = "00".repeat(32),
            &|note| note.pins[0].until += 1,
        ];
        for change in changes {
            let why = forge(&|record| peer(record, change));
            assert!(why.contains("not written by a node of this cluster"), "{why}");
        }
        assert!(forge(&|record| record.host = None).contains("not written"));
        assert!(entry(node, &written, &Secret([2; 32])).is_err(), "another cluster's");
        let alone = NodeRecord { peer: None, host: None, ..sample() };
        let alone = entry(node, &alone, &secret).expect("it is in no cluster");
        assert_eq!((alone.contact, alone.host), (None, node));
    }
}
