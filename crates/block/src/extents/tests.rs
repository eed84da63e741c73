//! A block volume's content against a model of plain bytes.

use super::*;
use proptest::prelude::*;
use rekindle_content::{Compression, Config};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Source;
use std::time::Duration;

const BLOCK: u64 = 4096;
const FIXED: Layout = Layout::Fixed { block_size: BLOCK };
const LAYOUTS: [Layout; 2] = [FIXED, Layout::ByContent { page_size: BLOCK }];

fn content(world: &World, store: &Store) -> Content {
    content_with(world, store, 64 << 20)
}

fn content_with(world: &World, store: &Store, cache_bytes: u64) -> Content {
    Content::open(world.env(), store.clone(), config(cache_bytes, 64 << 10))
}

fn config(cache_bytes: u64, pack_bytes: u64) -> Config {
    Config {
        secret: [7; 32],
        compression: Compression::Lz4,
        parity: None,
        pack_bytes,
        cache_bytes,
        index_bytes: 1 << 20,
        uploads: 2,
    }
}

async fn fold(home: &Extents, root: &Root, changes: &[Fold]) -> Root {
    let mut batch = home.content.batch();
    let root = home.fold(&mut batch, root, changes).await.unwrap();
    batch.flush().await.unwrap();
    batch.committed();
    root
}

fn zeros(position: u64, span: u64) -> Fold {
    Fold { position, span, source: Source::Zero }
}

fn bytes(position: u64, data: Vec<u8>) -> Fold {
    Fold { position, span: data.len() as u64, source: Source::Memory(data.into()) }
}

/// The pages that the runs of a tree show. No two runs show one, and each lies within its chunk.
async fn shown(home: &Extents, root: &Root) -> Vec<u64> {
    let entries = tree::range(&home.content, root, 0..u64::MAX).await.unwrap();
    let runs = entries.iter().map(|(key, pointer)| (home.layout.run(*key), pointer));
    let pages: Vec<u64> = runs
        .flat_map(|(run, pointer)| {
            assert!((run.from + run.count) * BLOCK <= u64::from(pointer.length));
            run.pages()
        })
        .collect();
    assert!(pages.is_sorted_by(|one, other| one < other), "runs do not overlap");
    pages
}

/// The effect of a change: a clear, zeros as data, or a pattern. A gap before it and a length go
/// with it.
#[derive(Debug, Clone)]
enum Paint {
    Clear,
    Zeros,
    Pattern(u8),
}

fn batches() -> impl Strategy<Value = Vec<Vec<(u64, u64, Paint)>>> {
    let paint =
        prop_oneof![Just(Paint::Clear), Just(Paint::Zeros), (1u8..=255).prop_map(Paint::Pattern)];
    // Aligned lengths matter as much as odd ones.
    let length = prop_oneof![0u64..3 * BLOCK, (0u64..12).prop_map(|blocks| blocks * BLOCK)];
    let gap = prop_oneof![0u64..3 * BLOCK, (0u64..4).prop_map(|blocks| blocks * BLOCK), Just(0)];
    proptest::collection::vec(proptest::collection::vec((gap, length, paint), 1..8), 1..8)
}

fn make_changes(model: &mut [u8], batch: Vec<(u64, u64, Paint)>) -> Vec<Fold> {
    let (mut from, mut changes) = (0, Vec::new());
    for (gap, length, paint) in batch {
        let begin = (from + gap).min(model.len() as u64);
        let end = (begin + length).min(model.len() as u64);
        from = end;
        let data: Vec<u8> = match paint {
            Paint::Clear | Paint::Zeros => vec![0; (end - begin) as usize],
            Paint::Pattern(seed) => {
                (begin..end).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect()
            }
        };
        model[begin as usize..end as usize].copy_from_slice(&data);
        changes.push(if matches!(paint, Paint::Clear) {
            zeros(begin, end - begin)
        } else {
            bytes(begin, data)
        });
    }
    changes
}

async fn compare(home: &Extents, root: &Root, model: &[u8]) {
    let mut all = vec![0xee; model.len()];
    home.read(root, 0, &mut all, true).await.unwrap();
    assert!(all == model, "what is read is what was written");
    let pieces = home.pieces(root, 0, model.len() as u64).await.unwrap();
    assert!(pieces.concat() == model, "and so in pieces");
    let holes = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let expected: Vec<u64> = (0u64..)
        .zip(model.chunks(BLOCK as usize))
        .filter(|(_, block)| !holes(block))
        .map(|(number, _)| number)
        .collect();
    assert_eq!(shown(home, root).await, expected, "zero blocks are holes, and nothing else is");

    // Unaligned parts, with and without the cache.
    for (begin, end) in
        [(1, 2), (BLOCK - 1, BLOCK + 1), (BLOCK / 2, 5 * BLOCK + 3), (7 * BLOCK, 8 * BLOCK)]
    {
        let range = begin.min(model.len() as u64) as usize..end.min(model.len() as u64) as usize;
        let mut part = vec![0xee; range.len()];
        assert!(home.read_now(root, range.start as u64, &mut part).unwrap(), "all was read before");
        assert_eq!(part, model[range.clone()]);
        part.fill(0xee);
        home.read(root, range.start as u64, &mut part, false).await.unwrap();
        assert_eq!(part, model[range.clone()]);
        let mut at = range.start as u64;
        let pieces = home.pieces(root, at, range.len() as u64).await.unwrap();
        assert_eq!(pieces.concat(), model[range.clone()]);
        for extent in home.extents(root, at, range.len() as u64).await.unwrap() {
            assert_eq!(extent.position, at, "extents cover the range");
            at += extent.span;
            for block in extent.position / BLOCK..at.div_ceil(BLOCK) {
                assert_eq!(extent.data, expected.contains(&block));
            }
        }
        assert_eq!(at, range.end as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_folds_are_as_plain_bytes(
        seed: u64,
        size in 1u64..40 * BLOCK,
        batches in batches(),
        layout in proptest::sample::select(&LAYOUTS),
    ) {
        let world = World::new(seed, Faults::none());
        let store = Mem::store();
        world.block_on(async {
            let home = Extents::new(content(&world, &store), size, layout);
            let (mut model, mut root) = (vec![0; size as usize], None);
            for batch in batches {
                let changes = make_changes(&mut model, batch);
                root = fold(&home, &root, &changes).await;
                compare(&home, &root, &model).await;
            }
            // A new life, with an empty cache.
            let cold = Extents::new(content(&world, &store), size, layout);
            compare(&cold, &root, &model).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn ranges_that_are_shared_show_what_the_other_tree_shows(
        seed: u64,
        one in batches(),
        other in batches(),
        shares in proptest::collection::vec((0u64..40, 0u64..40, 1u64..20), 1..6),
        layout in proptest::sample::select(&LAYOUTS),
    ) {
        const SIZE: u64 = 64 * BLOCK;
        let world = World::new(seed, Faults::none());
        let store = Mem::store();
        world.block_on(async {
            let home = Extents::new(content(&world, &store), SIZE, layout);
            let (mut trees, mut models) = ([None; 2], [vec![0; SIZE as usize], vec![0; SIZE as usize]]);
            for (at, batches) in [one, other].into_iter().enumerate() {
                for batch in batches {
                    let changes = make_changes(&mut models[at], batch);
                    trees[at] = fold(&home, &trees[at], &changes).await;
                }
            }
            let count = || {
                let stats = home.content.stats();
                stats.chunks_written + stats.chunks_deduplicated
            };
            let before = count();
            for (position, from, count) in shares {
                let (range, to) = (from * BLOCK..(from + count) * BLOCK, position * BLOCK);
                let shown = models[1][range.start as usize..range.end as usize].to_vec();
                models[0][to as usize..to as usize + shown.len()].copy_from_slice(&shown);
                let mut batch = home.content.batch();
                trees[0] = home.share(&mut batch, (&trees[0], to), (&trees[1], range)).await.unwrap();
                batch.flush().await.unwrap();
                batch.committed();
                compare(&home, &trees[0], &models[0]).await;
            }
            let written = count() - before;
            assert!(written < 30, "{written} chunks: only nodes of trees are written");
        });
    }
}

#[test]
fn a_large_fold_goes_through_several_windows() {
    LAYOUTS.into_iter().for_each(fold_largely);
}

fn fold_largely(layout: Layout) {
    let size = 3 * limits::WINDOW_BYTES + 5 * BLOCK + 1234;
    let world = World::new(1, Faults::none());
    world.block_on(async {
        let home = Extents::new(content(&world, &Mem::store()), size, layout);
        let pattern =
            |seed: u64| (0..size).map(|at| (at * 7 + at / BLOCK + seed) as u8).collect::<Vec<_>>();
        let first = pattern(1);
        let root = fold(&home, &None, &[bytes(0, first.clone())]).await;
        let mut model = first;
        // Writes all blocks again, each in part.
        let second = pattern(2);
        let changes: Vec<Fold> = (0..size / BLOCK)
            .map(|block| {
                let range = (block * BLOCK + 100) as usize..(block * BLOCK + 200) as usize;
                model[range.clone()].copy_from_slice(&second[range.clone()]);
                bytes(range.start as u64, second[range].to_vec())
            })
            .collect();
        let root = fold(&home, &root, &changes).await;
        let mut all = vec![0; size as usize];
        home.read(&root, 0, &mut all, true).await.unwrap();
        assert!(all == model);
        assert_eq!(fold(&home, &root, &[zeros(0, size)]).await, None);
    });
}

#[test]
fn a_page_that_is_written_in_part_shows_nothing_of_the_window_before() {
    let (long, size) = (2 * limits::WINDOW_BYTES, 3 * limits::WINDOW_BYTES);
    let world = World::new(1, Faults::none());
    world.block_on(async {
        let home = Extents::new(content(&world, &Mem::store()), size, LAYOUTS[1]);
        let mut model = vec![0; size as usize];
        let mut changes = vec![bytes(0, unlike(1, long / BLOCK))];
        changes.extend((long..size).step_by(64 * BLOCK as usize).map(|at| bytes(at, vec![7; 100])));
        for change in &changes {
            let at = change.position as usize;
            assert!(change.source.read_now(0, &mut model[at..at + change.span as usize]).unwrap());
        }
        let root = fold(&home, &None, &changes).await;
        compare(&home, &root, &model).await;
    });
}

#[test]
fn a_petabyte_of_nothing_is_cleared_in_a_moment() {
    LAYOUTS.into_iter().for_each(clear_a_petabyte);
}

fn clear_a_petabyte(layout: Layout) {
    let size = rekindle_base::limits::VOLUME_BYTES_MAX;
    let world = World::new(2, Faults::none());
    world.block_on(async {
        let home = Extents::new(content(&world, &Mem::store()), size, layout);
        let places: Vec<u64> = (0..2000).map(|index: u64| index * index * 60_000 * BLOCK).collect();
        let changes: Vec<Fold> = places.iter().map(|at| bytes(*at, vec![1; 10])).collect();
        let root = fold(&home, &None, &changes).await;
        assert_eq!(shown(&home, &root).await.len(), places.len());
        // All blocks are cleared but the first and the last, of which other bytes remain.
        let last = places[places.len() - 1];
        let root = fold(&home, &root, &[zeros(5, last)]).await;
        assert_eq!(shown(&home, &root).await, [0, last / BLOCK]);
        let mut part = [0xee; 10];
        home.read(&root, 0, &mut part, true).await.unwrap();
        assert_eq!(part, [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
        home.read(&root, last, &mut part, true).await.unwrap();
        assert_eq!(part, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        // What is a hole costs a few looks at the tree, and not one for each stretch of it.
        let stretches = size / BLOCK / limits::STRETCH_PAGES_MAX;
        let few = (stretches / 1000) as usize;
        let looks = || home.content.stats().cache_hits as usize;
        let before = looks();
        let extents = home.extents(&root, 0, last + BLOCK).await.unwrap();
        let data: Vec<bool> = extents.iter().map(|extent| extent.data).collect();
        assert_eq!(data, [true, false, true]);
        assert!(looks() - before < few, "{} looks for a list", looks() - before);
        let before = looks();
        let again = fold(&home, &root, &[zeros(5, last)]).await;
        assert!(looks() - before < few, "{} looks for a hole", looks() - before);
        assert_eq!(shown(&home, &again).await, [0, last / BLOCK]);
    });
}

#[test]
fn a_petabyte_beside_a_chunk_that_is_mostly_gone_is_cleared_in_a_moment() {
    // The shorter one first: a fault that takes time for each page shows there.
    for size in [1 << 30, rekindle_base::limits::VOLUME_BYTES_MAX] {
        clear_beside_chunks(size);
    }
}

fn clear_beside_chunks(size: u64) {
    let world = World::new(4, Faults::none());
    world.block_on(async {
        let home = Extents::new(content(&world, &Mem::store()), size, Layout::default());
        // Chunks of three pages, of which one is left: it is written anew.
        let (first, last) = (bytes(0, vec![1; 12_288]), bytes(size - 12_288, vec![2; 12_288]));
        let root = fold(&home, &None, &[first, last]).await;
        let before = home.content.stats().cache_hits;
        let root = fold(&home, &root, &[zeros(5000, size - 10_000)]).await;
        let looks = home.content.stats().cache_hits - before;
        assert!(looks < 1000, "{looks} looks");
        let pages = size / BLOCK;
        assert_eq!(shown(&home, &root).await, [0, 1, pages - 2, pages - 1]);
        let mut part = vec![0xee; 12_288];
        home.read(&root, 0, &mut part, true).await.unwrap();
        assert!(part[..5000].iter().all(|byte| *byte == 1));
        assert!(part[5000..].iter().all(|byte| *byte == 0));
        home.read(&root, size - 12_288, &mut part, true).await.unwrap();
        assert!(part[12_288 - 5000..].iter().all(|byte| *byte == 2));
        assert!(part[..12_288 - 5000].iter().all(|byte| *byte == 0));
        // What was left of the first chunk is one of its own now.
        let kept = tree::floor(&home.content, &root, u64::MAX >> 20).await.unwrap();
        assert!(kept.is_some_and(|(_, chunk)| u64::from(chunk.length) <= 2 * BLOCK));
    });
}

#[test]
fn a_dense_range_is_cleared_in_stretches() {
    let blocks = 3 * limits::CHANGES_MAX as u64 / 2;
    let world = World::new(3, Faults::none());
    world.block_on(async {
        let home = Extents::new(content(&world, &Mem::store()), (blocks + 2) * BLOCK, FIXED);
        // One chunk is used many times: only the tree is large.
        let mut batch = home.content.batch();
        let chunk = batch.write(Class::Data, vec![3; BLOCK as usize].into(), &[]).await.unwrap();
        let all: Vec<_> = (0..blocks + 2).map(|block| (block, Some(chunk))).collect();
        let root = tree::update(&home.content, &mut batch, &None, &all).await.unwrap();
        batch.flush().await.unwrap();
        batch.committed();
        let root = fold(&home, &root, &[zeros(BLOCK, blocks * BLOCK)]).await;
        assert_eq!(shown(&home, &root).await, [0, blocks + 1]);
    });
}

#[test]
fn a_chunk_that_is_no_block_is_damage_and_a_short_one_ends_in_zeros() {
    let world = World::new(4, Faults::none());
    world.block_on(async {
        let home = Extents::new(content(&world, &Mem::store()), 4 * BLOCK, FIXED);
        let mut batch = home.content.batch();
        let long = batch.write(Class::Data, vec![3; BLOCK as usize + 1].into(), &[]).await.unwrap();
        let short = batch.write(Class::Data, vec![4; 10].into(), &[]).await.unwrap();
        let entries = [(0, Some(long)), (1, Some(short))];
        let root = tree::update(&home.content, &mut batch, &None, &entries).await.unwrap();
        batch.flush().await.unwrap();
        batch.committed();
        let mut out = vec![0xee; BLOCK as usize];
        let damaged = home.read(&root, 0, &mut out, true).await.unwrap_err();
        assert_eq!(damaged.kind(), rekindle_base::Kind::Damaged, "{damaged}");
        home.read(&root, BLOCK + 5, &mut out[..20], true).await.unwrap();
        assert_eq!(out[..20], [&[4; 5][..], &[0; 15][..]].concat());
    });
}

#[test]
fn a_sequential_reader_finds_most_of_it_in_memory() {
    LAYOUTS.into_iter().for_each(read_in_order);
}

fn read_in_order(layout: Layout) {
    let blocks = 512;
    let world = World::new(5, Faults::none());
    let store = Mem::store();
    world.block_on(async {
        let home = Extents::new(content(&world, &store), blocks * BLOCK, layout);
        let data: Vec<u8> =
            (0..blocks * BLOCK).map(|at| (at / 7) as u8 ^ (at / BLOCK) as u8).collect();
        let root = fold(&home, &None, &[bytes(0, data.clone())]).await;

        let cold = Extents::new(content(&world, &store), blocks * BLOCK, layout);
        let (mut out, mut misses) = (vec![0; 2 * BLOCK as usize], 0);
        for position in (0..blocks * BLOCK).step_by(out.len()) {
            if !cold.read_now(&root, position, &mut out).unwrap() {
                misses += 1;
                cold.read(&root, position, &mut out, true).await.unwrap();
            }
            assert!(out == data[position as usize..position as usize + out.len()]);
            world.env().sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(misses <= 4, "{misses} misses");
    });
}

/// Bytes of one read of [`read_on`].
const STEP: u64 = 64 << 10;

/// Reads `size` bytes in order, with nothing in memory, out of a store that answers after
/// `latency`. The reader takes 100 MiB/s. Returns the counters after a quarter and at the end.
fn read_on(latency: Duration, size: u64) -> [rekindle_content::Stats; 2] {
    let (world, mut data) = (World::new(7, Faults::none()), vec![0; size as usize]);
    rekindle_base::random::Random::new(1).fill(&mut data);
    let store = Mem::store();
    world.block_on(async {
        let config = config(256 << 20, 16 << 20);
        let content = Content::open(world.env(), store.clone(), config.clone());
        let home = Extents::new(content, size, Layout::default());
        let root = fold(&home, &None, &[bytes(0, data.clone())]).await;
        let plan = fault::Plan { latency, ..fault::Plan::default() };
        let (far, _) = fault::wrap(&world.env(), store, plan);
        let cold = Content::open(world.env(), far, config);
        let cold = Extents::new(cold, size, Layout::default());
        let mut early = None;
        for position in (0..size).step_by(STEP as usize) {
            let pieces = cold.pieces(&root, position, STEP).await.unwrap();
            assert!(pieces.concat() == data[position as usize..(position + STEP) as usize]);
            world.env().sleep(Duration::from_micros(625)).await;
            if position >= size / 4 {
                early.get_or_insert_with(|| cold.content.stats());
            }
        }
        [early.unwrap(), cold.content.stats()]
    })
}

/// HydraFS reports 58 % fewer accesses of the cache with its range map. Here a chunk is looked for
/// when it is fetched ahead and when it is read, and nodes of the tree hardly at all.
#[test]
fn a_sequential_reader_does_not_walk_the_tree() {
    let size = 16 << 20;
    let [_, stats] = read_on(Duration::ZERO, size);
    let chunks = stats.fetched_ahead + stats.data_waits;
    assert!(chunks > 100 && stats.cache_hits < 2 * chunks + size / STEP, "{chunks}: {stats:?}");
}

#[test]
fn a_reader_of_a_far_store_does_not_wait_at_the_edges_of_subtrees() {
    let [early, end] = read_on(Duration::from_millis(100), 128 << 20);
    let waits = |stats: &rekindle_content::Stats| (stats.data_waits, stats.metadata_waits);
    assert_eq!(waits(&early), waits(&end), "{early:?} {end:?}");
    assert!(end.metadata_waits > 0 && end.fetched_ahead > 1000 && end.fetched_in_vain == 0);
}

/// Run it by hand: `cargo test --release -p rekindle-block -- --ignored --nocapture hit`.
#[test]
#[ignore = "a measurement"]
fn what_a_hit_costs() {
    let blocks = 1 << 16;
    let block_size = 16 << 10;
    let world = World::new(6, Faults::none());
    world.block_on(async {
        let home = Extents::new(
            content_with(&world, &Mem::store(), 4 << 30),
            blocks * block_size,
            Layout::Fixed { block_size },
        );
        let mut batch = home.content.batch();
        let mut entries = Vec::new();
        for block in 0..blocks {
            let data = vec![(block % 199) as u8 + 1; block_size as usize];
            entries.push((block, Some(batch.write(Class::Data, data.into(), &[]).await.unwrap())));
        }
        let root = tree::update(&home.content, &mut batch, &None, &entries).await.unwrap();
        batch.flush().await.unwrap();
        batch.committed();
        let mut out = vec![0; 4096];
        for block in 0..blocks {
            home.read(&root, block * block_size, &mut out, true).await.unwrap();
        }
        #[expect(clippy::disallowed_methods, reason = "a measurement of real time")]
        let clock = std::time::Instant::now;
        let (began, count, mut hits) = (clock(), 1 << 20, 0u64);
        for index in 0..count {
            let position = (index * 0x9E37_79B9 % (blocks * 4)) * 4096;
            hits += u64::from(home.read_now(&root, position, &mut out).unwrap());
        }
        let each = began.elapsed().as_nanos() as f64 / count as f64;
        println!("{each:.0} ns per 4 KiB read, {hits} of {count} hits");
    });
}

/// Bytes of pages that no other seed gives, none of them the padded end of a file.
fn unlike(seed: u64, pages: u64) -> Vec<u8> {
    let mut random = rekindle_base::random::Random::new(seed);
    (0..pages * BLOCK).map(|_| random.below(255) as u8 + 1).collect()
}

#[test]
fn pages_that_lie_elsewhere_in_the_next_image_are_found_again() {
    let (world, store) = (World::new(7, Faults::none()), Mem::store());
    world.block_on(async {
        let content = content(&world, &store);
        let home = || Extents::new(content.clone(), 2000 * BLOCK, LAYOUTS[1]);
        // Files of odd lengths, each padded to whole pages.
        let file = |number: u64| {
            let mut bytes = unlike(number, 1 + number % 40);
            let end = bytes.len() - 100;
            bytes[end..].fill(0);
            bytes
        };
        let image = |order: Vec<u64>| order.into_iter().flat_map(file).collect::<Vec<u8>>();
        fold(&home(), &None, &[bytes(0, image((0..60).collect()))]).await;
        let before = content.stats();
        let other = image((0..60).rev().collect());
        let root = fold(&home(), &None, &[bytes(5 * BLOCK, other.clone())]).await;
        let after = content.stats();
        let found = after.bytes_deduplicated - before.bytes_deduplicated;
        assert!(found * 100 >= other.len() as u64 * 95, "{found} of {}", other.len());
        let mut all = vec![0; other.len()];
        home().read(&root, 5 * BLOCK, &mut all, true).await.unwrap();
        assert!(all == other);
    });
}

#[test]
fn a_small_write_copies_nothing_and_many_are_joined_again() {
    let world = World::new(8, Faults::none());
    world.block_on(async {
        let content = content(&world, &Mem::store());
        let home = Extents::new(content.clone(), 256 * BLOCK, LAYOUTS[1]);
        let mut model = unlike(1, 256);
        let mut root = fold(&home, &None, &[bytes(0, model.clone())]).await;
        let first = tree::range(&content, &root, 0..u64::MAX).await.unwrap().len();
        let written = content.stats().bytes_in;
        root = fold(&home, &root, &[bytes(100 * BLOCK, unlike(2, 1))]).await;
        let data = content.stats().bytes_in - written;
        // The chunk of the page, and the nodes of the tree above it.
        assert!(data < 5 * BLOCK, "{data} bytes for a page");
        model[100 * BLOCK as usize..101 * BLOCK as usize].copy_from_slice(&unlike(2, 1));
        let (mut most, mut random) = (0, rekindle_base::random::Random::new(3));
        for round in 10..400 {
            let page = random.below(256);
            let new = unlike(round, 1);
            model[(page * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&new);
            root = fold(&home, &root, &[bytes(page * BLOCK, new)]).await;
            most = most.max(tree::range(&content, &root, 0..u64::MAX).await.unwrap().len());
        }
        assert!(first < 40 && most < 256 * 3 / 4, "{first} runs, {most} at most");
        let mut all = vec![0; model.len()];
        home.read(&root, 0, &mut all, true).await.unwrap();
        assert!(all == model);
    });
}
