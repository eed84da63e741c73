//! The roots of all volumes, which a sweep counts.

use crate::manage::list::is_its_own;
use crate::manage::versions::shed;
use crate::records;
use crate::registry::Inner;
use crate::registry::entry::Entry;
use rekindle_base::{Serial, VolumeId};
use rekindle_content::Pointer;
use rekindle_content::sweep::{KeptRoot, Look, Source, SourceId, Sources, Written};
use rekindle_datastore::{Tag, key};
use rekindle_env::Timestamp;
use rekindle_staging::versions::CLOCK_SURE;
use rekindle_staging::{Vault, VaultState, Version, versions};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Returns the roots of all volumes: those in the datastore, and those of volumes in service, which
/// may be newer. Vaults that are known by the tag of the list are not read, unless `look` says so.
///
/// A vault that cannot be read is an error: the content that it reaches must not seem to be
/// garbage. While the store is full, every vault is read, and each volume first drops the older
/// half of its earlier contents.
pub(crate) async fn look(
    inner: &Arc<Inner>,
    known: &Sources,
    look: &Looked,
) -> Result<Sources, rekindle_datastore::Error> {
    let is_full = inner.staging.is_store_full();
    let look = if is_full { Look::All } else { look.as_look() };
    let reads_all = matches!(look, Look::All);
    // Names first: a vault is older than its name.
    let names =
        if reads_all { records::keys(&inner.writer, key::NAMES).await? } else { Vec::new() };
    let listed: BTreeMap<VolumeId, Option<Tag>> =
        records::vaults(&inner.writer).await?.into_iter().collect();
    let mut ids: BTreeSet<VolumeId> = listed.keys().copied().collect();
    // A vault is gone when a read says so, whatever the list shows.
    ids.extend(known.records.keys().map(|id| VolumeId(id.0)));
    if let Look::Told(told) = look {
        ids.extend(told.iter().map(|id| VolumeId(id.0)));
    }
    let mut found = Sources::default();
    let mut unread = Vec::new();
    for id in ids {
        let (source, tag) = (SourceId(id.0), listed.get(&id).copied().flatten());
        let before = known.records.get(&source);
        match before.filter(|_| !look.reads(source, before, tag)) {
            Some(before) => drop(found.records.insert(source, before.clone())),
            None => unread.push((id, tag)),
        }
    }
    let read = async |(id, tag)| match records::vault(&inner.writer, id).await? {
        Some(held) if held.value.state == VaultState::Deleted => Ok(None),
        Some(held) if is_full => Ok(Some((shed(inner, held).await, tag))),
        found => Ok::<_, rekindle_datastore::Error>(found.map(|held| (held.value, tag))),
    };
    // The checkpoint of each shed volume's stored vault, up to which that vault decides which
    // earlier contents are kept.
    let mut told = HashMap::new();
    let mut named = HashSet::new();
    for vault in records::each(unread, read).await {
        let Some((vault, tag)) = vault? else { continue };
        if is_full {
            told.insert(vault.id, vault.checkpoint);
        }
        let source = Source { tag, roots: roots_of(&vault, Serial(0)) };
        found.records.insert(SourceId(vault.id.0), source);
        named.insert(vault.name);
    }
    if reads_all {
        none_is_lost(inner, &names, &named, &listed).await?;
    }
    found.live = live_roots(inner, &found, &told);
    // A node that has just started cannot tell the age of anything.
    let is_sure = inner.env.uptime() >= CLOCK_SURE;
    let now = if is_sure { inner.env.aging_clock() } else { Timestamp(0) };
    found.age(now.max(known.aged));
    Ok(found)
}

/// The owned form of a [`Look`], for a task of its own.
pub(crate) enum Looked {
    Listed,
    Told(BTreeSet<SourceId>),
    All,
}

impl Looked {
    pub(crate) fn of(look: Look<'_>) -> Self {
        match look {
            Look::Listed => Looked::Listed,
            Look::Told(told) => Looked::Told(told.clone()),
            Look::All => Looked::All,
        }
    }

    fn as_look(&self) -> Look<'_> {
        match self {
            Looked::Listed => Look::Listed,
            Looked::Told(told) => Look::Told(told),
            Looked::All => Look::All,
        }
    }
}

/// Returns the vaults that this node has begun to write behind its write number `since`.
pub(crate) fn written(inner: &Inner, since: u64) -> Option<Written> {
    let (upto, keys) = inner.writer.vaults().since(since)?;
    let id = |key: String| key.strip_prefix(key::VOLUMES)?.parse::<VolumeId>().ok();
    let sources = keys.into_iter().map(|key| id(key).map(|id| SourceId(id.0)));
    Some(Written { upto, sources: sources.collect::<Option<Vec<_>>>()? })
}

/// Returns the roots of volumes in service that their stored vaults do not have.
fn live_roots(inner: &Inner, found: &Sources, told: &HashMap<VolumeId, Serial>) -> Vec<Pointer> {
    let mut live = Vec::new();
    for vault in in_service(inner) {
        let stored = found.records.get(&SourceId(vault.id.0));
        let stored: HashSet<Pointer> =
            stored.into_iter().flat_map(|source| &source.roots).map(|kept| kept.root).collect();
        let from = told.get(&vault.id).copied().unwrap_or_default();
        let roots = roots_of(&vault, from).into_iter();
        let now = found.aged;
        let roots = roots.filter(|kept| kept.until.is_none_or(|until| now <= until));
        live.extend(roots.map(|kept| kept.root).filter(|root| !stored.contains(root)));
    }
    live
}

/// Returns the vaults of the volumes in service, as they are now.
fn in_service(inner: &Inner) -> impl Iterator<Item = Vault> {
    let live = |entry: Arc<Entry>| entry.inside.lock().live.clone();
    inner.all().into_iter().filter_map(live).map(|live| live.staged.vault())
}

/// Fails if a name leads to an existing vault that was not listed.
async fn none_is_lost(
    inner: &Inner,
    names: &[String],
    named: &HashSet<String>,
    listed: &BTreeMap<VolumeId, Option<Tag>>,
) -> Result<(), rekindle_datastore::Error> {
    let others = names.iter().filter_map(|key| key::name_of_key(key));
    let others: Vec<String> = others.filter(|name| !named.contains(name)).collect();
    let lost = async |name: String| is_lost(inner, &name, listed).await;
    for lost in records::each(others, lost).await {
        if let Some(name) = lost? {
            return Err(rekindle_datastore::Error::Unavailable(format!(
                "the store's list of volumes leaves out that of the name {name}: it is not whole"
            )));
        }
    }
    Ok(())
}

/// Returns the name if it leads to an existing vault that was not listed.
async fn is_lost(
    inner: &Inner,
    name: &str,
    listed: &BTreeMap<VolumeId, Option<Tag>>,
) -> Result<Option<String>, rekindle_datastore::Error> {
    let id = match records::name(&inner.writer, name).await {
        Ok(Some(record)) => record.value.id,
        Ok(None) => return Ok(None),
        // The damaged name hides no vault: the listed vaults are found without it.
        Err(error) if is_its_own(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_there = !listed.contains_key(&id) && records::vault(&inner.writer, id).await?.is_some();
    Ok(is_there.then(|| name.to_owned()))
}

/// Returns the root of the content, of the kept earlier contents from a checkpoint on, and of the
/// snapshots. A volume in the trash keeps its own.
fn roots_of(vault: &Vault, from: Serial) -> Vec<KeptRoot> {
    let mut roots: Vec<KeptRoot> =
        vault.root.iter().map(|root| KeptRoot { root: *root, until: None }).collect();
    let is_kept = |version: &&Version| version.checkpoint >= from;
    roots.extend(vault.versions.iter().filter(is_kept).filter_map(|version| {
        let until = Some(Timestamp(versions::reached_until(version)));
        Some(KeptRoot { root: version.root?, until })
    }));
    let snapshots = vault.snapshots.iter().filter_map(|one| one.content.as_ref()?.root);
    roots.extend(snapshots.map(|root| KeptRoot { root, until: None }));
    roots
}
