//! A volume kind that is no range: a map of numbered values, changed by records. A group moves a
//! value from one key to another.

use crate::bed::Node;
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_base::Serial;
use rekindle_content::tree::{self, Root};
use rekindle_content::{Batch, Class, Content};
use rekindle_env::BoxFuture;
use rekindle_staging::{Error, Home, NewRecord, Record, RecordHome, Staged, Vault};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys of a map: 0 to this.
pub const KEYS: u64 = 40;
/// The kinds of its records: a key and a value, a key.
pub const PUT: u64 = 1;
pub const DELETE: u64 = 2;

pub type Values = BTreeMap<u64, Bytes>;

/// A change of a map, before it is a record.
#[derive(Debug, Clone)]
pub enum Op {
    Put(u64, Bytes),
    Delete(u64),
}

impl Op {
    /// The record's kind and bytes.
    pub fn encode(&self) -> (u64, Vec<u8>) {
        match self {
            Op::Put(key, value) => (PUT, [&key.to_le_bytes()[..], value].concat()),
            Op::Delete(key) => (DELETE, key.to_le_bytes().to_vec()),
        }
    }

    fn decode(record: &Record) -> Op {
        let (key, value) = record.bytes.split_at(8);
        let key = u64::from_le_bytes(key.try_into().unwrap());
        match record.kind {
            PUT => Op::Put(key, Bytes::copy_from_slice(value)),
            DELETE => Op::Delete(key),
            other => panic!("a map has no records of kind {other}"),
        }
    }

    pub fn apply(&self, values: &mut Values) {
        match self {
            Op::Put(key, value) => drop(values.insert(*key, value.clone())),
            // A move of a value that is not there would show that a record was applied twice.
            Op::Delete(key) => assert!(values.remove(key).is_some(), "key {key} is deleted once"),
        }
    }
}

/// The home of a map: its visible state, in RAM.
pub struct Map {
    content: Content,
    state: Mutex<State>,
}

struct State {
    values: Values,
    /// The last visible record.
    last: Serial,
    root: Root,
    checkpoint: Serial,
}

impl Map {
    /// The map under a root.
    pub async fn load(content: &Content, root: &Root) -> Values {
        let mut values = Values::new();
        for key in 0..KEYS {
            if let Some(pointer) = tree::get(content, root, key).await.unwrap() {
                values.insert(key, content.read(&pointer, Class::Data).await.unwrap());
            }
        }
        values
    }

    pub async fn new(content: &Content, vault: &Vault) -> Arc<Map> {
        let (root, checkpoint) = (vault.root, vault.checkpoint);
        let values = Map::load(content, &root).await;
        let state = Mutex::new(State { values, last: checkpoint, root, checkpoint });
        Arc::new(Map { content: content.clone(), state })
    }

    pub fn values(&self) -> Values {
        self.state.lock().values.clone()
    }

    pub fn last(&self) -> Serial {
        self.state.lock().last
    }

    /// The root, and the checkpoint up to which it has the records.
    pub fn stored(&self) -> (Root, Serial) {
        let state = self.state.lock();
        (state.root, state.checkpoint)
    }
}

impl RecordHome for Map {
    fn apply(&self, group: &[Record]) {
        let mut state = self.state.lock();
        for (index, record) in group.iter().enumerate() {
            assert_eq!(record.serial, state.last.next(), "each record once, in serial order");
            assert_eq!(record.joined, index + 1 < group.len(), "one whole group");
            Op::decode(record).apply(&mut state.values);
            state.last = record.serial;
        }
    }

    fn finish(&self, root: &Root, checkpoint: Serial) {
        let mut state = self.state.lock();
        assert!(checkpoint >= state.checkpoint && checkpoint <= state.last, "visible before");
        (state.root, state.checkpoint) = (*root, checkpoint);
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        records: &'a [Record],
    ) -> BoxFuture<'a, Result<Root, Error>> {
        Box::pin(async move {
            assert!(!records.last().unwrap().joined, "groups are whole");
            let mut values: BTreeMap<u64, Option<Bytes>> = BTreeMap::new();
            for record in records {
                match Op::decode(record) {
                    Op::Put(key, value) => values.insert(key, Some(value)),
                    Op::Delete(key) => values.insert(key, None),
                };
            }
            let mut entries = Vec::new();
            for (key, value) in values {
                let pointer = match value {
                    Some(value) => Some(batch.write(Class::Data, value, &[]).await?),
                    None => None,
                };
                entries.push((key, pointer));
            }
            Ok(tree::update(&self.content, batch, root, &entries).await?)
        })
    }

    fn check_tree<'a>(&'a self, root: &'a Root) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for key in 0..KEYS {
                tree::get(&self.content, root, key).await?;
            }
            Ok(())
        })
    }
}

/// Brings a map into service, and makes it if there is none.
pub async fn open(node: &Node, tag: u8) -> Result<(Arc<Staged>, Arc<Map>), Error> {
    let held = node.held(Vault { kind: "map".into(), ..node.setup.vault(tag) }).await;
    let map = Map::new(&node.content, &held.value).await;
    let volume = node.staging.open(held, Home::Record(map.clone())).await?;
    volume.until_readable().await?;
    Ok((volume, map))
}

/// Submits one change or a group.
pub fn submit(volume: &Arc<Staged>, ops: &[Op], durable: bool) -> rekindle_staging::Written {
    let encoded: Vec<_> = ops.iter().map(Op::encode).collect();
    let records: Vec<_> =
        encoded.iter().map(|(kind, bytes)| NewRecord { kind: *kind, bytes }).collect();
    volume.append_records(&records, durable)
}
