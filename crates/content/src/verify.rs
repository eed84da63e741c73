//! The proof that everything is there: every chunk that roots reach is read from the store (not
//! from the cache) and checked against its name, each copy of it for itself. A chunk that cannot be
//! had is listed, absent apart from damaged, and the proof goes on. Then the footers of the reached
//! packs are read: pointers carry places, so a damaged footer costs no chunk, but it hides the
//! chunks from dedup and sweep.

use crate::fetch::{Sharing, neighbours, range_of};
use crate::format::Bad;
use crate::format::node;
use crate::name::{NameSet, PackMap, PlaceSet};
use crate::pack::reader::{Body, read_sound_footer};
use crate::sweep::Budget;
use crate::sweep::pace::Pace;
use crate::tree::Root;
use crate::{Class, Content, Error, Missing, Pointer, limits, pack};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use rekindle_base::PackId;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The progress of a proof.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Chunks read.
    pub chunks: u64,
    /// Bytes of those chunks.
    pub bytes: u64,
    /// Damages found.
    pub damages: u64,
}

/// A chunk that cannot be had.
#[derive(Debug, Clone)]
pub struct Damage {
    /// Index of the root from which it was met.
    pub root: usize,
    /// The chunk: its name, and the pack and offset where its parent says it lies.
    pub pointer: Pointer,
    /// The keys that the chunk answers for: those in its tree, and before them those of the trees
    /// in which that tree is an entry. Empty for the root itself, which answers for everything.
    pub keys: Vec<Range<u64>>,
    /// Whether the chunk is absent or damaged.
    pub missing: Missing,
    /// The error of the read.
    pub error: Error,
}

impl Damage {
    /// Whether the root itself cannot be had: then nothing is known of what is below, least of all
    /// that there is nothing.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.keys.is_empty()
    }

    /// The pack in which the damage is: compaction may have moved the chunk out of the pack that
    /// its parent names.
    pub(crate) fn pack(&self) -> PackId {
        match self.error {
            Error::Damaged { pack, .. }
            | Error::Gone { pack, .. }
            | Error::Unsteady { pack, .. } => pack,
            _ => self.pointer.pack,
        }
    }
}

/// The result of a proof.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The chunks and bytes that were read.
    pub progress: Progress,
    /// Chunks that cannot be had; empty when all is well. A chunk that several roots reach is
    /// listed for each.
    pub damages: Vec<Damage>,
    /// Packs whose footers are damaged, ascending, and the index of a root that reaches each. A
    /// damaged footer loses no chunk.
    pub footers: Vec<(PackId, usize)>,
}

impl Report {
    /// The part of a root that is in doubt.
    #[must_use]
    pub fn in_doubt(&self, root: usize) -> Extent {
        let damages = || self.damages.iter().filter(|damage| damage.root == root);
        if damages().any(Damage::is_root) {
            return Extent::All;
        }
        Extent::Stretches(damages().filter_map(|damage| damage.keys.first().cloned()).collect())
    }
}

/// The part of a root that is to be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Everything below the root.
    All,
    /// Chunks that answer for some of these keys of the outermost tree.
    Stretches(Vec<Range<u64>>),
}

impl Extent {
    /// Whether nothing is to be checked.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Extent::Stretches(stretches) if stretches.is_empty())
    }

    fn has(&self, path: &Path) -> bool {
        match (self, path.keys.first()) {
            (Extent::All, _) | (_, None) => true,
            (Extent::Stretches(stretches), Some(keys)) => {
                stretches.iter().any(|one| one.start < keys.end && keys.start < one.end)
            }
        }
    }
}

/// Reads and checks everything below `roots`, as fast as it goes. See [`verify_extents`].
pub async fn verify(
    content: &Content,
    roots: &[Root],
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, Error> {
    let roots: Vec<_> = roots.iter().map(|root| (*root, Extent::All)).collect();
    verify_extents(content, &roots, Budget::Unlimited, progress).await
}

/// Reads and checks an extent of each root, and takes no more of the machine than `budget`. Calls
/// `progress` after every few chunks. An error means that no proof is possible now (the store is
/// away), not that something is damaged. A caller that keeps no [`crate::Hold`] through a long
/// check keeps one during this call, and looks again at what was missing: it may have been written
/// over and swept meanwhile.
pub async fn verify_extents(
    content: &Content,
    roots: &[(Root, Extent)],
    budget: Budget,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, Error> {
    verify_remembering(limits::VERIFIED_NAMES_MAX, content, roots, budget, progress).await
}

/// Like [`verify_extents`]; remembers at most `names_max` chunks of each sort.
async fn verify_remembering(
    names_max: usize,
    content: &Content,
    roots: &[(Root, Extent)],
    budget: Budget,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, Error> {
    let mut proof = Proof {
        names_max,
        pace: Pace::new(&content.inner.env, budget, Arc::default()),
        content,
        progress,
        report: Report::default(),
        whole: NameSet::default(),
        sound: PlaceSet::default(),
        packs: PackMap::default(),
        extents: roots.iter().map(|(_, extent)| extent).collect(),
    };
    for (index, (root, extent)) in roots.iter().enumerate() {
        if let Some(root) = root.as_ref().filter(|_| !extent.is_nothing()) {
            let path = Path { root: index, keys: Vec::new(), ends: None };
            proof.check(vec![(*root, path)]).await?;
        }
    }
    (proof.progress)(proof.report.progress);
    proof.report.footers = damaged_footers(content, &proof.packs).await?;
    Ok(proof.report)
}

/// Lists those of `packs` that have damaged footers, ascending. A pack that is gone has none: its
/// chunks are missed already.
async fn damaged_footers(
    content: &Content,
    packs: &PackMap<usize>,
) -> Result<Vec<(PackId, usize)>, Error> {
    let mut present = Vec::new();
    for class in [Class::Data, Class::Metadata] {
        if packs.keys().any(|&id| pack::class(id) == class) {
            present.extend(pack::list(&content.inner.store, class).await?);
        }
    }
    present.retain(|(id, _)| packs.contains_key(id));
    present.sort_unstable();
    let mut damaged = Vec::new();
    for window in present.chunks(limits::FETCH_WINDOW) {
        let store = &content.inner.store;
        let reads = window.iter().map(async |&(id, length)| {
            match read_sound_footer(store, id, length).await {
                // The second read: the store's bytes may be sound, and only the way here was not.
                Err(Error::Format(Bad::Damaged { .. })) => {
                    read_sound_footer(store, id, length).await
                }
                result => result,
            }
        });
        for ((id, _), read) in window.iter().zip(join_all(reads).await) {
            match read {
                Err(Error::Format(Bad::Damaged { .. })) => damaged.push((*id, packs[id])),
                // The pack is gone meanwhile, or a newer binary wrote it: no fault of the footer.
                Err(error)
                    if error.missing().is_some()
                        || error.kind() == rekindle_base::Kind::Unsupported => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
    }
    Ok(damaged)
}

/// The path by which a chunk was reached.
#[derive(Clone)]
struct Path {
    root: usize,
    /// The keys that the chunk answers for.
    keys: Vec<Range<u64>>,
    /// Inside a tree, the end of the keys of the node at hand. `None` at the root of a tree.
    ends: Option<u64>,
}

struct Proof<'a> {
    content: &'a Content,
    pace: Pace,
    progress: &'a mut (dyn FnMut(Progress) + Send),
    report: Report,
    /// Most entries of `whole`, and of `sound`.
    names_max: usize,
    /// Metadata chunks below which all is well, wherever they lie themselves.
    whole: NameSet,
    /// Chunks that are well where they are: shared ones are read once, a second copy is read too.
    /// Like `whole`, cleared now and then to bound the set: what follows is read again.
    sound: PlaceSet,
    /// Packs that were reached, and from which root first.
    packs: PackMap<usize>,
    /// Of each root, the part that is to be checked.
    extents: Vec<&'a Extent>,
}

impl Proof<'_> {
    /// Checks chunks and everything below them; returns whether all is well. Neighbours in a pack
    /// come with one request.
    fn check(
        &mut self,
        mut chunks: Vec<(Pointer, Path)>,
    ) -> rekindle_env::BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let mut is_sound = true;
            chunks.retain(|(pointer, _)| !self.is_done(pointer));
            for window in windows(&chunks) {
                let pointers = window.iter().map(|(pointer, _)| *pointer).collect();
                let groups = neighbours(pointers);
                let bytes = groups.iter().map(|group| range_of(group)).map(|at| at.end - at.start);
                let bytes = bytes.sum();
                let mut results = fetch(self.content, groups).await;
                self.pace.spend(bytes).await?;
                for (pointer, path) in window {
                    // Several keys of the window may lead to one chunk.
                    if self.is_done(pointer) {
                        continue;
                    }
                    let result = match results.remove(pointer) {
                        Some(result) => result,
                        None => self.content.inner.fetch(pointer, Sharing::No).await,
                    };
                    is_sound &= self.enter(*pointer, path, result).await?;
                }
                (self.progress)(self.report.progress);
            }
            Ok(is_sound)
        })
    }

    /// Whether a chunk is well where it is, and all below it.
    fn is_done(&self, pointer: &Pointer) -> bool {
        let has_leaves_only = pack::class(pointer.pack) == Class::Data;
        self.sound.contains(pointer) && (has_leaves_only || self.whole.contains(&pointer.name))
    }

    /// Enters the result of a read, and checks what is below; returns whether all is well.
    async fn enter(
        &mut self,
        pointer: Pointer,
        path: &Path,
        result: Result<Body, Error>,
    ) -> Result<bool, Error> {
        let is_whole = self.whole.contains(&pointer.name);
        let Some(body) = self.judge(pointer, path, result)? else {
            return Ok(false);
        };
        self.remember(pointer);
        if is_whole || pack::class(pointer.pack) == Class::Data {
            return Ok(true);
        }
        let extent = self.extents[path.root];
        let mut children = children(&body, path);
        drop(body);
        children.retain(|(_, path)| extent.has(path));
        let is_node = |(pointer, _): &(Pointer, _)| pack::class(pointer.pack) == Class::Metadata;
        let (nodes, data): (Vec<_>, Vec<_>) = children.into_iter().partition(is_node);
        let is_sound = self.check(nodes).await? & self.check(data).await?;
        if is_sound && *extent == Extent::All {
            if self.whole.len() >= self.names_max {
                self.whole.clear();
            }
            self.whole.insert(pointer.name);
        }
        Ok(is_sound)
    }

    fn remember(&mut self, place: Pointer) {
        if self.sound.len() >= self.names_max {
            self.sound.clear();
        }
        self.sound.insert(place);
    }

    /// Enters the result of a read. Returns an error only when it says nothing about the chunk.
    fn judge(
        &mut self,
        pointer: Pointer,
        path: &Path,
        result: Result<Body, Error>,
    ) -> Result<Option<Body>, Error> {
        self.packs.entry(pointer.pack).or_insert(path.root);
        let progress = &mut self.report.progress;
        progress.chunks += 1;
        match result {
            Ok(body) => {
                progress.bytes += body.bytes.len() as u64;
                Ok(Some(body))
            }
            Err(error) => {
                let Some(missing) = error.missing() else { return Err(error) };
                progress.damages += 1;
                let keys = path.keys.clone();
                self.report.damages.push(Damage { root: path.root, pointer, keys, missing, error });
                Ok(None)
            }
        }
    }
}

/// Parts chunks into windows of at most [`limits::VERIFY_WINDOW_BYTES`], but for one chunk alone.
fn windows(chunks: &[(Pointer, Path)]) -> impl Iterator<Item = &[(Pointer, Path)]> {
    let mut rest = chunks;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |(pointer, _): &&(Pointer, Path)| {
            bytes += u64::from(pointer.share().max(pointer.length));
            bytes <= limits::VERIFY_WINDOW_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let window = rest.get(..count)?;
        rest = &rest[count..];
        Some(window)
    })
}

/// Fetches groups of chunks, each in a task of its own, so that all background threads verify.
async fn fetch(
    content: &Content,
    groups: Vec<Vec<Pointer>>,
) -> HashMap<Pointer, Result<Body, Error>> {
    let away = Arc::new(OnceLock::new());
    let groups = groups.into_iter().map(|group| {
        let (inner, away) = (content.inner.clone(), away.clone());
        let fetch = async move { inner.fetch_each(group, &away).await };
        content.inner.env.run("content-verify", fetch)
    });
    stream::iter(groups).buffer_unordered(limits::FETCH_WINDOW).concat().await.into_iter().collect()
}

/// The children of a chunk, each with the keys that it answers for.
fn children(body: &Body, path: &Path) -> Vec<(Pointer, Path)> {
    let Ok(node) = node::decode(&body.bytes, body.children) else {
        // A chunk of another kind: its children answer for the same keys as the chunk.
        return body.children().map(|child| (child, path.clone())).collect();
    };
    let mut children = Vec::with_capacity(node.count());
    for (index, (key, child)) in node.entries().enumerate() {
        let mut keys = path.keys.clone();
        // Within a tree a node's own keys are replaced by the narrower ones of its child.
        if path.ends.is_some() {
            keys.pop();
        }
        let ends = match (node.level(), index + 1 < node.count()) {
            (0, _) => key.saturating_add(1),
            (_, true) => node.key(index + 1),
            (_, false) => path.ends.unwrap_or(u64::MAX),
        };
        keys.push(key..ends);
        let ends = (node.level() > 0).then_some(ends);
        children.push((child, Path { root: path.root, keys, ends }));
    }
    children
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::{Broken, config, random, run};
    use crate::tree::update;
    use rekindle_datastore::backend::mem::Mem;
    use rekindle_datastore::layer::{fault::Plan, meter::Call, usual};
    use rekindle_env::sim::{Faults, World};
    use std::sync::Arc;

    #[test]
    fn a_budget_counts_all_that_is_read_and_not_only_what_is_needed_of_it() {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let config = Config { pack_bytes: 8 << 20, ..config() };
            let content = Content::open(env.clone(), Mem::store(), config);
            let mut batch = content.batch();
            let mut changes = Vec::new();
            for key in 0..50 {
                let live = batch.write(Class::Data, random(key, 2000), &[]).await.unwrap();
                changes.push((key, Some(live)));
                batch.write(Class::Data, random(1000 + key, 60_000), &[]).await.unwrap();
            }
            let root = update(&content, &mut batch, &None, &changes).await.unwrap();
            batch.flush().await.unwrap();
            let layers = usual(&env, content.inner.store.clone(), Plan::default());
            let (store, meter) = (layers.store, layers.meter);
            let cold = Content::open(env.clone(), store, content.inner.config.clone());
            let begun = env.now();
            let budget = Budget::BytesPerSecond(100_000);
            verify_extents(&cold, &[(root, Extent::All)], budget, &mut |_| ()).await.unwrap();
            let (took, read) = (env.now().since(begun), meter.read(Call::GetRange).bytes);
            assert!(took.as_secs() * 100_000 >= read / 2, "{read} bytes in {took:?}");
        });
    }

    #[test]
    fn damage_is_listed_exactly_and_the_proof_goes_on() {
        run(async |env| {
            let store = Arc::new(Broken::new());
            let content = Content::open(env.clone(), store.clone(), config());
            let mut batch = content.batch();
            let mut changes = Vec::new();
            for key in 0..1000u64 {
                changes.push((
                    key * 10,
                    Some(batch.write(Class::Data, random(key, 2000), &[]).await.unwrap()),
                ));
            }
            let first = update(&content, &mut batch, &None, &changes).await.unwrap();
            let second = update(&content, &mut batch, &first, &[(0, None)]).await.unwrap();
            let inode =
                batch.write(Class::Metadata, random(5000, 10), &[first.unwrap()]).await.unwrap();
            let inodes = update(&content, &mut batch, &None, &[(77, Some(inode))]).await.unwrap();
            batch.flush().await.unwrap();
            let roots = [first, None, second, inodes];
            let before = store.reads();
            let report = verify(&content, &roots, &mut |_| ()).await.unwrap();
            assert!(report.damages.is_empty());
            let reads = store.reads() - before;
            assert!(reads < report.progress.chunks / 10, "neighbours come together: {reads}");
            assert!(
                report.progress.chunks < 1000 + 20,
                "shared chunks are read once: {:?}",
                report.progress
            );

            let bad = changes[123].1.unwrap();
            store.flip(&pack::key(bad.pack), u64::from(bad.offset) + 100);
            let mut told = 0;
            let report = verify(&content, &roots, &mut |_| told += 1).await.unwrap();
            assert!(told > 3);
            let found: Vec<_> =
                report.damages.iter().map(|d| (d.root, d.pointer, d.keys.clone())).collect();
            let keys = 1230..1231;
            let expected = [
                (0, bad, vec![keys.clone()]),
                (2, bad, vec![keys.clone()]),
                (3, bad, vec![77..78, keys]),
            ];
            assert_eq!(found, expected);

            // Only the part in doubt is checked again, under the root as it is by then.
            let mut batch = content.batch();
            let good = batch.write(Class::Data, random(9999, 2000), &[]).await.unwrap();
            let newer = [(1230, Some(good)), (1240, None)];
            let newer = update(&content, &mut batch, &first, &newer).await.unwrap();
            batch.flush().await.unwrap();
            let of = |root: Root, index| (root, report.in_doubt(index));
            let again = async |roots: &[(Root, Extent)]| {
                verify_extents(&content, roots, Budget::Unlimited, &mut |_| ()).await.unwrap()
            };
            let sound = again(&[of(newer, 0), of(None, 1), of(newer, 2)]).await;
            assert!(sound.damages.is_empty(), "written over meanwhile");
            assert!(sound.progress.chunks < 10, "{:?}", sound.progress);
            let still = again(&[of(first, 0), of(None, 1), of(second, 2), of(inodes, 3)]).await;
            let still: Vec<_> =
                still.damages.iter().map(|d| (d.root, d.pointer, d.keys.clone())).collect();
            assert_eq!(still, found);

            // A proof that remembers little reads more, and finds the same.
            let whole: Vec<_> = roots.iter().map(|root| (*root, Extent::All)).collect();
            let forgetful = verify_remembering(2, &content, &whole, Budget::Unlimited, &mut |_| ())
                .await
                .unwrap();
            assert!(forgetful.progress.chunks > report.progress.chunks);
            let found_again: Vec<_> =
                forgetful.damages.iter().map(|d| (d.root, d.pointer, d.keys.clone())).collect();
            assert_eq!(found_again, found);

            // A lost pack of data: each of its chunks is named.
            store.lose(&pack::key(bad.pack));
            let report = verify(&content, &[first], &mut |_| ()).await.unwrap();
            let lost =
                changes.iter().filter(|(_, pointer)| pointer.unwrap().pack == bad.pack).count();
            assert_eq!(report.damages.len(), lost);
            assert!(report.damages.iter().all(|damage| damage.pointer.pack == bad.pack));

            // A lost node: the range of keys is named.
            let key = pack::key(first.unwrap().pack);
            store.lose(&key);
            let report = verify(&content, &[first], &mut |_| ()).await.unwrap();
            assert_eq!((report.damages.len(), report.damages[0].pointer), (1, first.unwrap()));
        });
    }
}
