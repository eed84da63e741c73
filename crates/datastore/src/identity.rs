//! The record that identifies a folder or a bucket as a store of rekindle: `rekindle.json`.

use crate::record::{Body, Seal, Writer};
use crate::secret::Secret;
use crate::{Error, key};
use futures_util::future::{join, join_all, try_join_all};
use rekindle_base::StoreId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] = [(Identity::WHAT, Identity::FORMAT)];

/// The identity of a store; id and secret never change.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The store's id. A node remembers the id, and so notices another store at the same address.
    pub store: StoreId,
    /// The key of all content hashes.
    pub secret: Secret,
    /// The folders that hold a marker: see [`crate::layer::marks`]. A store of an older version has
    /// an empty list until [`mark`] has run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marked: Vec<String>,
    /// In a marker: the folder that it marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

impl Body for Identity {
    const WHAT: &'static str = "store";
    const FORMAT: u32 = 2;

    fn own_secret(&self) -> Option<Secret> {
        Some(self.secret)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Returns the identity of the store. An empty store gets an identity and markers; a place with
/// foreign objects is refused.
pub async fn open_or_create(writer: &Writer) -> Result<Identity, Error> {
    match look(writer).await? {
        Some(identity) => Ok(identity),
        None => make(writer).await,
    }
}

/// Returns the identity of the store; `None` for an empty store. A place with foreign objects is
/// refused.
pub async fn look(writer: &Writer) -> Result<Option<Identity>, Error> {
    if let Some(held) = writer.read::<Identity>(key::IDENTITY).await.map_err(advised)? {
        // The node that made the store was cut off before the markers.
        let unfinished = held.seal() != Seal::None && held.value.marked.is_empty();
        return match unfinished {
            true => mark(writer).await.map(Some),
            false => Ok(Some(held.value)),
        };
    }
    if let Some(stranger) = stranger(writer).await? {
        // Another node may have made the store between our two reads.
        if let Some(identity) = find(writer).await? {
            return Ok(Some(identity));
        }
        return Err(Error::Refused(refusal(writer, &stranger)));
    }
    Ok(None)
}

/// Gives an empty store an identity and markers, unless another node has done so.
pub async fn make(writer: &Writer) -> Result<Identity, Error> {
    let identity = Identity {
        store: StoreId(writer.env.random()),
        secret: Secret(writer.env.random()),
        marked: Vec::new(),
        folder: None,
    };
    match writer.create(key::IDENTITY, identity).await {
        Ok(made) => {
            tracing::info!(store = %made.value.store, place = writer.store.describe(), "made a new store");
            mark(writer).await
        }
        Err(Error::Exists(_)) => find(writer).await?.ok_or_else(|| {
            Error::Unavailable(format!(
                "{} comes and goes: is the store being deleted?",
                key::IDENTITY
            ))
        }),
        Err(error) => Err(error),
    }
}

impl Identity {
    /// Whether all folders that this version uses have markers.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        key::MARKED.iter().all(|folder| self.marked.iter().any(|marked| marked == folder))
    }
}

/// Gives a marker to each folder that has none, and then lists the folders in the identity. From
/// then on a folder without its marker is taken for absent, and gets no new marker.
///
/// This also seals the identity as it is. So the caller of a store of an older version has checked
/// that the identity is sound: that something in the store could be read with its secret, or that
/// nothing has been written yet.
pub async fn mark(writer: &Writer) -> Result<Identity, Error> {
    loop {
        let held = writer.read::<Identity>(key::IDENTITY).await.map_err(advised)?;
        let held = held.ok_or_else(|| Error::Unavailable(format!("{} is gone", key::IDENTITY)))?;
        if held.value.is_marked() {
            return Ok(held.value);
        }
        let new = |folder: &&&str| !held.value.marked.iter().any(|marked| marked == **folder);
        let mut identity = held.value.clone();
        identity.marked.extend(key::MARKED.iter().filter(new).map(|folder| (*folder).to_owned()));
        let markers = key::MARKED.iter().filter(new).map(|folder| {
            let marker = Identity { folder: Some((*folder).to_owned()), ..identity.clone() };
            make_marker(writer, folder, marker)
        });
        join_all(markers).await.into_iter().collect::<Result<(), Error>>()?;
        match writer.replace(&held, identity).await {
            Ok(made) => return Ok(made.value),
            Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

async fn make_marker(writer: &Writer, folder: &str, marker: Identity) -> Result<(), Error> {
    let (key, store) = (key::marker_key(folder), marker.store);
    match writer.create(&key, marker).await {
        Ok(_) => return Ok(()),
        Err(Error::Exists(_)) => {}
        Err(error) => return Err(error),
    }
    // The marker is from an attempt that was cut off, or from another node that makes markers now.
    match writer.read::<Identity>(&key).await? {
        Some(held) if held.value.store == store => Ok(()),
        Some(held) => Err(Error::Refused(format!(
            "'{folder}' in {} belongs to another store, {}: is the right folder mounted there?",
            writer.store.describe(),
            held.value.store
        ))),
        None => Err(Error::Unavailable(format!("{key} comes and goes"))),
    }
}

/// Returns the identity of the store, if it has one.
pub async fn find(writer: &Writer) -> Result<Option<Identity>, Error> {
    let found = writer.read::<Identity>(key::IDENTITY).await.map_err(advised)?;
    Ok(found.map(|held| held.value))
}

/// Adds advice to damage of the identity. Without the right secret everything in the store would
/// look damaged, so nothing else is judged before.
fn advised(error: Error) -> Error {
    match error {
        Error::Damaged { key, reason } => Error::Damaged {
            key,
            reason: format!(
                "{reason}. Nothing else in the store is judged before this is mended: restore the object, a copy is {}",
                key::marker_key(key::PACKS_DATA)
            ),
        },
        other => other,
    }
}

/// Finds an object that cannot be in an empty store.
async fn stranger(writer: &Writer) -> Result<Option<String>, Error> {
    let (listed, marked) = join(listed(writer), marker(writer)).await;
    match listed? {
        Some(stranger) => Ok(Some(stranger)),
        None => marked,
    }
}

async fn listed(writer: &Writer) -> Result<Option<String>, Error> {
    let mut after: Option<String> = None;
    loop {
        let page = writer.store.list("", after.as_deref()).await?;
        let Some(last) = page.last() else { return Ok(None) };
        after = Some(last.key.clone());
        // A probe that was interrupted leaves objects before there is an identity.
        if let Some(other) = page.into_iter().find(|object| !object.key.starts_with(key::PROBE)) {
            return Ok(Some(other.key));
        }
    }
}

/// Finds a marker: where a marker lies, there was a store.
async fn marker(writer: &Writer) -> Result<Option<String>, Error> {
    let found = key::MARKED.iter().map(async |folder| {
        let key = key::marker_key(folder);
        match writer.store.get(&key).await {
            Ok(_) => Ok(Some(key)),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    });
    Ok(try_join_all(found).await?.into_iter().flatten().next())
}

fn refusal(writer: &Writer, stranger: &str) -> String {
    let place = writer.store.describe();
    if key::MARKED.iter().any(|folder| stranger.starts_with(folder)) {
        format!(
            "{place} holds '{stranger}' as a store of rekindle would, but {} is gone: restore that object (a copy \
             may be {}), or begin with an empty folder or prefix",
            key::IDENTITY,
            key::marker_key(key::PACKS_DATA)
        )
    } else {
        format!(
            "{place} is not empty and not a store of rekindle: it holds '{stranger}'. Name an empty folder, or add a \
             prefix of its own to the bucket"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::mem::Mem;
    use bytes::Bytes;
    use futures_util::future::join_all;
    use rekindle_base::NodeId;
    use rekindle_env::sim::{Faults, World};

    fn writer(world: &World) -> Writer {
        Writer::new(world.env(), Mem::store(), NodeId([1; 16]))
    }

    #[test]
    fn the_first_makes_the_store_and_all_others_find_it() {
        let world = World::new(1, Faults::none());
        let writer = writer(&world);
        world.block_on(async {
            let all = join_all((0..8).map(|_| open_or_create(&writer))).await;
            let first = all[0].clone().unwrap();
            assert!(
                all.iter()
                    .all(|identity| identity.as_ref().is_ok_and(|identity| *identity == first))
            );
            assert_eq!(find(&writer).await.unwrap(), Some(first.clone()));
            let (data, _) = writer.store.get(key::IDENTITY).await.unwrap();
            let text = String::from_utf8(data.to_vec()).unwrap();
            assert!(text.contains("\"rekindle\": \"store\""), "{text}");
            assert!(!format!("{first:?}").contains("secret"), "{first:?}");
        });
    }

    #[test]
    fn somebody_elses_place_is_refused_with_what_was_found() {
        let world = World::new(1, Faults::none());
        for (key, says) in [
            ("holiday/beach.jpg", "not a store of rekindle"),
            ("packs/data/00", "restore that object"),
        ] {
            let writer = writer(&world);
            world.block_on(async {
                writer.store.put("probe/00/a", Bytes::new()).await.unwrap();
                writer.store.put(key, Bytes::new()).await.unwrap();
                let error = open_or_create(&writer).await.unwrap_err();
                assert!(matches!(error, Error::Refused(_)));
                assert!(
                    error.to_string().contains(key) && error.to_string().contains(says),
                    "{error}"
                );
                writer.store.delete(key).await.unwrap();
                open_or_create(&writer).await.unwrap();
            });
        }
    }

    #[test]
    fn what_is_written_today_is_read_for_ever() {
        let golden = include_bytes!("../golden/store-2.json");
        let (identity, _) = crate::record::decode_as::<Identity>(key::IDENTITY, golden).unwrap();
        assert!(identity.is_marked() && identity.folder.as_deref() == Some("packs/data/"));
        assert_eq!(identity.secret.0, std::array::from_fn::<u8, 32, _>(|index| index as u8));
    }

    #[test]
    fn a_store_has_its_markers_from_the_beginning_and_after_any_interruption() {
        for steps in 0..40 {
            let world = World::new(1, Faults::none());
            let writer = writer(&world);
            let (store, _) = crate::layer::fault::wrap(
                &world.env(),
                writer.store.clone(),
                "latency=1ms".parse().unwrap(),
            );
            let cut = Writer::new(world.env(), store, NodeId([2; 16]));
            world.block_on_until(rekindle_env::sim::Stop::Step(steps), async {
                let _ = open_or_create(&cut).await;
            });
            world.block_on(async {
                let identity = open_or_create(&writer).await.unwrap();
                assert!(identity.is_marked(), "after {steps} steps");
                for folder in key::MARKED {
                    let marker = writer.read::<Identity>(&key::marker_key(folder)).await;
                    let marker = marker.unwrap().unwrap().value;
                    assert_eq!(
                        (marker.store, marker.folder.as_deref()),
                        (identity.store, Some(folder))
                    );
                }
                assert!(writer.store.list("packs/", None).await.unwrap().is_empty());
            });
        }
    }

    #[test]
    fn a_store_whose_identity_is_gone_is_not_taken_for_an_empty_place() {
        let world = World::new(1, Faults::none());
        let writer = writer(&world);
        world.block_on(async {
            let made = open_or_create(&writer).await.unwrap();
            writer.store.delete(key::IDENTITY).await.unwrap();
            let error = open_or_create(&writer).await.unwrap_err();
            assert!(
                matches!(&error, Error::Refused(text) if text.contains("packs/data/.rekindle"))
            );
            // The copy in a marker serves as well.
            let (copy, _) = writer.store.get("packs/data/.rekindle").await.unwrap();
            writer.store.put(key::IDENTITY, copy).await.unwrap();
            let found = find(&writer).await.unwrap().unwrap();
            assert_eq!((found.store, found.secret), (made.store, made.secret));
        });
    }

    #[test]
    fn old_identities_are_read_for_ever() {
        let golden = include_bytes!("../golden/store-1.json");
        let (identity, mark) = crate::record::decode_as::<Identity>(key::IDENTITY, golden).unwrap();
        assert_eq!(identity.store, StoreId([0xa5; 16]));
        assert_eq!(identity.secret.0, std::array::from_fn::<u8, 32, _>(|index| index as u8));
        assert_eq!(mark.edition, 1);
        let cut = String::from_utf8_lossy(golden).replace("1e1f", "1e1");
        let error = crate::record::decode_as::<Identity>(key::IDENTITY, cut.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains("64 hexadecimal digits") && !error.contains("0001"), "{error}");
    }

    #[test]
    fn one_changed_digit_of_the_secret_is_damage_of_this_record_and_is_called_so() {
        let world = World::new(1, Faults::none());
        let writer = writer(&world);
        world.block_on(async {
            let made = open_or_create(&writer).await.unwrap();
            let (whole, _) = writer.store.get(key::IDENTITY).await.unwrap();
            let text = String::from_utf8(whole.to_vec()).unwrap();
            let secret = blake3::Hash::from_bytes(made.secret.0).to_hex().to_string();
            let mut wrong = secret.clone().into_bytes();
            wrong[17] = if wrong[17] == b'0' { b'1' } else { b'0' };
            let wrong = String::from_utf8(wrong).unwrap();
            for knows in [false, true] {
                let writer =
                    if knows { writer.clone().with_secret(made.secret) } else { writer.clone() };
                let damaged = text.replace(&secret, &wrong);
                writer.store.put(key::IDENTITY, Bytes::from(damaged)).await.unwrap();
                for error in
                    [find(&writer).await.unwrap_err(), open_or_create(&writer).await.unwrap_err()]
                {
                    assert!(matches!(&error, Error::Damaged { .. }), "{error}");
                    let text = error.to_string();
                    assert!(text.contains("checksum") && text.contains("restore"), "{text}");
                    assert!(!text.contains(&wrong), "{text}");
                }
                // Putting the digit back helps.
                writer.store.put(key::IDENTITY, whole.clone()).await.unwrap();
                assert_eq!(find(&writer).await.unwrap(), Some(made.clone()));
            }
        });
    }

    #[test]
    fn what_cannot_be_read_is_never_overwritten() {
        let world = World::new(1, Faults::none());
        let writer = writer(&world);
        let newer = r#"{"rekindle": "store", "format": 3, "strange": []}"#;
        world.block_on(async {
            for (text, newer) in [("", false), ("garbage", false), ("{}", false), (newer, true)] {
                writer.store.put(key::IDENTITY, Bytes::from(text)).await.unwrap();
                let error = open_or_create(&writer).await.unwrap_err();
                assert_eq!(matches!(error, Error::Newer { .. }), newer, "{error}");
                assert!(newer || matches!(error, Error::Damaged { .. }), "{error}");
                assert!(error.to_string().contains(key::IDENTITY), "{error}");
                assert_eq!(writer.store.get(key::IDENTITY).await.unwrap().0, text);
            }
        });
    }
}
