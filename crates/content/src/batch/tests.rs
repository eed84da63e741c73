//! Writing and reading back, duplicates, failing and damaged stores; and a measurement of the
//! ingest rate.

mod shared;

use crate::testing::{Broken, config, random, run, stretch};
use crate::{Class, Compression, Config, Content, Error, Pointer, Stretch};
use bytes::Bytes;
use rekindle_base::Kind;
use rekindle_datastore::backend::mem::Mem;
use std::sync::Arc;
use std::time::Duration;

async fn write_all(content: &Content, seeds: std::ops::Range<u64>, length: usize) -> Vec<Pointer> {
    let mut batch = content.batch();
    let mut pointers = Vec::new();
    for seed in seeds {
        pointers.push(batch.write(Class::Data, random(seed, length), &[]).await.unwrap());
    }
    batch.flush().await.unwrap();
    batch.committed();
    pointers
}

#[test]
fn what_is_written_reads_back_with_any_compression_from_anywhere() {
    run(async |env| {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let store = Mem::store();
            let content =
                Content::open(env.clone(), store.clone(), Config { compression, ..config() });
            let mut batch = content.batch();
            let mut written = Vec::new();
            for seed in 0..300u64 {
                let length = usize::try_from(seed * 37 % 20_000).unwrap();
                let data = if seed % 2 == 0 {
                    random(seed, length)
                } else {
                    vec![seed as u8; length].into()
                };
                written.push((batch.write(Class::Data, data.clone(), &[]).await.unwrap(), data));
            }
            batch.flush().await.unwrap();
            assert!(content.stats().packs_written > 3);
            let cold = Content::open(env.clone(), store, config());
            for (pointer, data) in &written {
                assert_eq!(content.read(pointer, Class::Data).await.unwrap(), data);
                assert_eq!(cold.read_now(pointer), None);
                assert_eq!(cold.read_uncached(pointer, Class::Data).await.unwrap(), data);
                assert_eq!(cold.read_now(pointer), None);
                assert_eq!(cold.read(pointer, Class::Data).await.unwrap(), data);
                assert_eq!(cold.read_now(pointer).as_ref(), Some(data));
            }
        }
    });
}

#[test]
fn the_same_bytes_are_stored_once() {
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let first = write_all(&content, 0..100, 5000).await;
        let stored = content.stats().bytes_stored;
        assert_eq!(write_all(&content, 0..100, 5000).await, first);
        assert_eq!(content.stats().bytes_stored, stored);
        assert_eq!(content.stats().chunks_deduplicated, 100);
        // Within one batch too; and data is never taken for metadata.
        let mut batch = content.batch();
        let one = batch.write(Class::Data, random(1000, 500), &[]).await.unwrap();
        assert_eq!(batch.write(Class::Data, random(1000, 500), &[]).await.unwrap(), one);
        let metadata = batch.write(Class::Metadata, random(1000, 500), &[]).await.unwrap();
        assert_ne!(metadata.name, one.name);
        assert_ne!(metadata.pack, one.pack);
        let parent = batch.write(Class::Metadata, random(1000, 500), &[one]).await.unwrap();
        assert_ne!(metadata.name, parent.name);
        assert!(batch.write(Class::Data, Bytes::new(), &[one]).await.is_err());
        assert!(batch.write(Class::Data, vec![0; (8 << 20) + 1].into(), &[]).await.is_err());
    });
}

/// Chunks of many lengths, noise and text; some of them twice, next to one another or far apart.
fn mixed(count: u64) -> Vec<Bytes> {
    let chunk = |at: u64| {
        let seed = if at % 5 == 4 { at / 2 } else { at };
        let length = usize::try_from(seed * 7919 % 90_000).unwrap();
        match seed % 3 {
            0 => random(seed, length),
            _ => vec![seed as u8; length].into(),
        }
    };
    (0..count).map(chunk).collect()
}

/// Stretches of one to four chunks; every other one lies apart.
fn apart(chunks: &[Bytes]) -> Vec<Stretch> {
    let (mut stretches, mut rest) = (Vec::new(), chunks);
    while !rest.is_empty() {
        let (few, behind) = rest.split_at(rest.len().min(stretches.len() % 4 + 1));
        stretches.push(Stretch { is_apart: stretches.len() % 2 == 0, ..stretch(few) });
        rest = behind;
    }
    stretches
}

#[test]
fn many_chunks_at_once_are_written_as_one_by_one() {
    run(async |env| {
        for (is_anew, calls) in
            [(false, vec![300]), (true, vec![300]), (false, vec![1, 7, 92, 200])]
        {
            let stores = [Mem::store(), Mem::store()];
            // No pack is full before the end: which duplicates are found depends on no upload.
            let config = Config { pack_bytes: 1 << 30, ..config() };
            let open = |store| Content::open(env.clone(), store, config.clone());
            let contents = stores.clone().map(open);
            let mut pointers = [Vec::new(), Vec::new()];
            // The second batch finds what the first one has written.
            for count in [150, 300] {
                let mut batches = contents.each_ref().map(Content::batch);
                if is_anew {
                    batches.iter_mut().for_each(|batch| batch.set_anew());
                }
                let mut chunks = mixed(count).into_iter();
                for few in &calls {
                    let few: Vec<_> = chunks.by_ref().take(*few).collect();
                    for data in few.clone() {
                        pointers[0].push(batches[0].write(Class::Data, data, &[]).await.unwrap());
                    }
                    pointers[1].extend(batches[1].write_many(&apart(&few)).await.unwrap());
                }
                for mut batch in batches {
                    batch.flush().await.unwrap();
                    batch.committed();
                }
            }
            let of = |pointers: &[Pointer]| -> Vec<_> {
                pointers.iter().map(|at| (at.name, at.length)).collect()
            };
            let differ = of(&pointers[0]).into_iter().zip(of(&pointers[1])).find(|(a, b)| a != b);
            assert_eq!(differ, None);
            let counted = contents.each_ref().map(|content| {
                let stats = content.stats();
                (stats.chunks_deduplicated, stats.bytes_deduplicated)
            });
            assert_eq!(counted[0], counted[1]);
            let cold = open(stores[1].clone());
            for (data, pointer) in mixed(150).into_iter().chain(mixed(300)).zip(&pointers[1]) {
                assert_eq!(cold.read(pointer, Class::Data).await.unwrap(), data);
            }
            let mut batch = contents[1].batch();
            assert!(batch.write_many(&apart(&[vec![0; (8 << 20) + 1].into()])).await.is_err());
        }
    });
}

#[test]
fn other_threads_may_go_first_before_each_chunk_is_named_and_before_it_is_cached() {
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let mut batch = content.batch();
        // So few bytes are not worth a task: this thread does all.
        let chunks: Vec<_> = (0..20).map(|seed| random(seed, 1000)).collect();
        let before = rekindle_env::ways_given();
        batch.write_many(&apart(&chunks)).await.unwrap();
        assert!(rekindle_env::ways_given() - before >= 2 * 20);
    });
}

#[test]
fn who_mistrusts_the_store_finds_no_duplicates_there() {
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let first = write_all(&content, 0..1, 5000).await;
        let mut batch = content.batch();
        batch.set_anew();
        let anew = batch.write(Class::Data, random(1000, 500), &[]).await.unwrap();
        assert_eq!(batch.write(Class::Data, random(1000, 500), &[]).await.unwrap(), anew);
        batch.flush().await.unwrap();
        let mut batch = content.batch();
        batch.set_anew();
        let again = batch.write(Class::Data, random(1000, 500), &[]).await.unwrap();
        assert_eq!(again.name, anew.name);
        assert_ne!(again.pack, anew.pack);
        drop(batch);
        assert_eq!(write_all(&content, 0..1, 5000).await, first, "others do");
    });
}

/// 80 % of a stream are duplicates of chunks that were written long ago, most of them out of RAM.
#[test]
fn duplicates_of_old_packs_are_found_through_hooks() {
    run(async |env| {
        let config = Config {
            index_bytes: 256 << 10,
            pack_bytes: 1 << 20,
            compression: Compression::None,
            ..config()
        };
        let content = Content::open(env, Mem::store(), config);
        write_all(&content, 0..20_000, 1000).await;
        assert!(content.stats().index_bytes <= 256 << 10, "{}", content.stats().index_bytes);
        let before = content.stats();
        let mut batch = content.batch();
        for seed in 0..10_000u64 {
            // Runs of old chunks, with a new one in between.
            let seed = if seed % 5 == 0 { 1_000_000 + seed } else { 5000 + seed };
            batch.write(Class::Data, random(seed, 1000), &[]).await.unwrap();
        }
        batch.flush().await.unwrap();
        let found = content.stats().chunks_deduplicated - before.chunks_deduplicated;
        assert!(found >= 8000 * 97 / 100, "{found} of 8000 duplicates were found");
    });
}

#[test]
fn a_failed_upload_is_reported_and_flush_may_be_called_again() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let content = Content::open(env, store.clone(), config());
        let mut batch = content.batch();
        let first = batch.write(Class::Data, random(1, 5000), &[]).await.unwrap();
        store.refuse_writes(true);
        assert_eq!(batch.flush().await.unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(batch.flush().await.unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(batch.write(Class::Data, random(1, 5000), &[]).await.unwrap(), first);
        store.refuse_writes(false);
        batch.flush().await.unwrap();
        let cold = Content::open(content.inner.env.clone(), store.clone(), config());
        assert_eq!(cold.read(&first, Class::Data).await.unwrap(), random(1, 5000));
        // With the store away, writing comes to a stop with an error before RAM is full.
        store.refuse_writes(true);
        let mut refused = None;
        for seed in 100..1000 {
            if let Err(error) = batch.write(Class::Data, random(seed, 50_000), &[]).await {
                refused = Some(seed);
                assert_eq!(error.kind(), Kind::Unavailable);
                break;
            }
        }
        assert!(refused.unwrap() < 150);
    });
}

#[test]
fn damage_is_noticed_and_named() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let content = Content::open(env.clone(), store.clone(), config());
        let pointers = write_all(&content, 0..10, 5000).await;
        let key = crate::pack::key(pointers[0].pack);
        store.flip(&key, u64::from(pointers[3].offset) + 1000);
        let cold = Content::open(env, store.clone(), config());
        for (index, pointer) in pointers.iter().enumerate() {
            match cold.read(pointer, Class::Data).await {
                Ok(data) => assert_eq!((index == 3, data), (false, random(index as u64, 5000))),
                Err(Error::Damaged { pack, offset, .. }) => {
                    assert_eq!((index, pack, offset), (3, pointer.pack, pointer.offset));
                }
                Err(other) => panic!("{other}"),
            }
        }
        store.lose(&key);
        let gone = cold.read_uncached(&pointers[3], Class::Data).await.unwrap_err();
        assert!(matches!(gone, Error::Gone { .. }), "{gone}");
    });
}

#[test]
fn reads_at_the_same_time_make_one_request_and_prefetch_joins_neighbours() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let content = Content::open(env.clone(), store.clone(), config());
        let pointers = write_all(&content, 0..20, 5000).await;
        let cold = Content::open(env.clone(), store.clone(), config());
        let before = store.reads();
        let reads = (0..50).map(|_| cold.read(&pointers[5], Class::Data));
        for result in futures_util::future::join_all(reads).await {
            assert_eq!(result.unwrap(), random(5, 5000));
        }
        assert_eq!(store.reads() - before, 1);
        cold.prefetch(&pointers, Class::Data);
        for _ in 0..2000 {
            if pointers.iter().all(|pointer| cold.read_now(pointer).is_some()) {
                break;
            }
            env.sleep(std::time::Duration::from_millis(1)).await;
        }
        for (seed, pointer) in (0..).zip(&pointers) {
            assert_eq!(cold.read_now(pointer), Some(random(seed, 5000)));
        }
        assert!(store.reads() - before <= 3, "{}", store.reads() - before);
    });
}

#[test]
fn futures_may_go_to_other_threads() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let mut batch = is_send(content.batch());
        let pointer = is_send(batch.write(Class::Data, random(1, 10), &[])).await.unwrap();
        is_send(batch.flush()).await.unwrap();
        is_send(content.read(&pointer, Class::Data)).await.unwrap();
        let root = is_send(crate::tree::update(&content, &mut batch, &None, &[(1, Some(pointer))]))
            .await
            .unwrap();
        is_send(crate::tree::range(&content, &root, 0..9)).await.unwrap();
        is_send(crate::tree::get(&content, &root, 9)).await.unwrap();
    });
}

#[test]
fn a_warm_up_finds_the_duplicates_of_an_earlier_life() {
    run(async |env| {
        let store = Mem::store();
        let content = Content::open(env.clone(), store.clone(), config());
        write_all(&content, 0..500, 3000).await;
        let cold = Content::open(env.clone(), store.clone(), config());
        let warm_up = cold.warm_index().await.unwrap();
        assert!(warm_up.packs > 3 && warm_up.footers == warm_up.packs, "{warm_up:?}");
        write_all(&cold, 0..500, 3000).await;
        assert_eq!(cold.stats().chunks_deduplicated, 500);
        // With little room the newest come first.
        let small = Config { index_bytes: 40 << 10, ..config() };
        let cold = Content::open(env, store, small);
        let warm_up = cold.warm_index().await.unwrap();
        assert!((1..warm_up.packs).contains(&warm_up.footers), "{warm_up:?}");
        assert!(cold.stats().index_bytes <= 40 << 10);
        write_all(&cold, 480..500, 3000).await;
        assert_eq!(cold.stats().chunks_deduplicated, 20);
    });
}

/// Not a test: `cargo test --release -p rekindle-content ingest_rate -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn ingest_rate() {
    run(async |env| {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            for percent in [0, 80] {
                for chunk_bytes in [16 << 10, 64 << 10] {
                    for parity in ["off", "16+1", "8+2"] {
                        measure_ingest(&env, compression, parity, percent, chunk_bytes).await;
                    }
                }
            }
        }
        let content =
            Content::open(env.clone(), Mem::store(), Config { cache_bytes: 64 << 20, ..config() });
        let pointers = write_all(&content, 0..1000, 4096).await;
        let begin = cpu_time();
        for i in 0..1_000_000usize {
            std::hint::black_box(content.read_now(&pointers[i * 7919 % 1000]));
        }
        println!("a hit of the cache: {:?}", (cpu_time() - begin) / 1_000_000);
        let mut batch = content.batch();
        let changes: Vec<_> = (0..100_000u64).map(|key| (key, Some(pointers[0]))).collect();
        let root = crate::tree::update(&content, &mut batch, &None, &changes).await.unwrap();
        let begin = cpu_time();
        for i in 0..1_000_000u64 {
            std::hint::black_box(crate::tree::floor_now(&content, &root, i * 7919 % 100_000));
        }
        println!("a lookup in a tree of 100,000 keys: {:?}", (cpu_time() - begin) / 1_000_000);
    });
}

/// Returns the CPU time of the calling thread, so that other work on the machine does not count.
fn cpu_time() -> Duration {
    // A pseudo file of the kernel: the environment has no such clock, and a measurement is no
    // product.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Returns chunks of which a quarter is random, so that compression has something to do.
fn chunks(seed: u64, chunk_bytes: usize, percent: u64) -> Vec<Bytes> {
    let count = (128 << 20) / chunk_bytes as u64;
    let mut unique: Vec<Bytes> = Vec::new();
    for i in 0..count {
        // Duplicates are of chunks that have left the processor's caches.
        let old = usize::try_from(i * 7919 % i.max(1)).unwrap();
        if i % 100 < percent && i > 200 {
            unique.push(unique[old].clone());
        } else {
            let mut data = vec![7; chunk_bytes];
            data.as_chunks_mut::<64>()
                .0
                .iter_mut()
                .zip(random(seed << 32 | i, chunk_bytes / 4).chunks(16))
                .for_each(|(to, from)| {
                    to[..16].copy_from_slice(from);
                });
            unique.push(data.into());
        }
    }
    unique
}

async fn measure_ingest(
    env: &rekindle_env::Env,
    compression: Compression,
    parity: &str,
    percent: u64,
    chunk_bytes: usize,
) {
    let mut best = [Duration::MAX; 2];
    let sink = Arc::new(crate::testing::Sink);
    let config = Config {
        compression,
        parity: parity.parse().ok(),
        pack_bytes: 16 << 20,
        cache_bytes: 64 << 20,
        index_bytes: 40 << 20,
        ..config()
    };
    let content = Content::open(env.clone(), sink, config);
    let mut bytes = 0;
    for round in 0..6 {
        let stream = chunks(round, chunk_bytes, percent);
        bytes = stream.iter().map(Bytes::len).sum::<usize>();
        let begin = cpu_time();
        let mut pipeline = crate::pipeline::Pipeline::new(&[7; 32], compression);
        stream.iter().for_each(|chunk| pipeline.chunk(chunk));
        best[0] = best[0].min(cpu_time() - begin);
        let begin = cpu_time();
        let mut batch = content.batch();
        for chunk in &stream {
            batch.write(Class::Data, chunk.clone(), &[]).await.unwrap();
        }
        batch.flush().await.unwrap();
        best[1] = best[1].min(cpu_time() - begin);
    }
    let rate = best.map(|time| bytes as f64 / time.as_secs_f64() / (1u64 << 30) as f64);
    let share = rate[1] / rate[0];
    println!(
        "{compression:?}, parity {parity}, {chunk_bytes}, {percent} % duplicates: pipeline {:.2}, batch {:.2} GiB/s: \
         {share:.3}; {} bytes stored",
        rate[0],
        rate[1],
        content.stats().bytes_stored
    );
}

async fn write_one(content: &Content, seed: u64) -> Pointer {
    write_all(content, seed..seed + 1, 5000).await[0]
}

#[test]
fn bytes_written_anew_are_not_led_to_a_place_from_which_a_read_failed() {
    run(async |env| {
        type Break = fn(&Broken, &Pointer);
        let flip: Break = |store, at| {
            store.flip(&crate::pack::key(at.pack), u64::from(at.offset) + 1000);
        };
        let lose: Break = |store, at| store.hide(Some(&crate::pack::key(at.pack)));
        let refuse: Break = |store, _| store.refuse_reads(true);
        for fault in [flip, lose, refuse] {
            let store = Arc::new(Broken::new());
            let content =
                Content::open(env.clone(), store.clone(), Config { cache_bytes: 0, ..config() });
            let first = write_one(&content, 1).await;
            let other = write_one(&content, 2).await;
            fault(&store, &first);
            content.read_uncached(&first, Class::Data).await.unwrap_err();
            store.refuse_reads(false);
            // A sweep's set comes and goes; a doubt that a read has raised stays.
            content.inner.index.condemn([other.pack]);
            content.inner.index.condemn([]);
            let anew = write_one(&content, 1).await;
            assert_ne!(anew, first, "written anew");
            content.read_uncached(&anew, Class::Data).await.unwrap();
            assert_eq!(write_one(&content, 1).await, anew, "and once, not each time");
            // A place that a read proves sound gives duplicates again.
            store.unflip();
            store.hide(None);
            content.inner.index.forget_wholly(&[anew.pack]);
            assert_ne!(write_one(&content, 1).await, first);
            content.read_uncached(&first, Class::Data).await.unwrap();
            let again = write_one(&content, 1).await;
            assert!(again == first || again.pack != anew.pack);
        }
    });
}
