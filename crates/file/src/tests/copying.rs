//! Copies by reference.

use super::*;

/// Copies all of a file, and returns with how many calls.
async fn copy_all(files: &Files, from: Ino, to: Ino) -> usize {
    let (mut at, mut calls) = (0, 0);
    loop {
        calls += 1;
        match files.copy(CALLER, (from, at), (to, at), 1 << 40).await.unwrap() {
            0 => return calls,
            copied => at += copied,
        }
    }
}

#[test]
fn a_copy_of_what_the_root_has_reads_and_writes_no_bytes() {
    with_files(async |bed, files| {
        let file = make(files, ROOT, "file", FileType::Regular).await;
        let mut dice = Random::new(1);
        for n in 0..20 {
            files.write(CALLER, file, n << 20, &dice.bytes(1 << 20)).await.unwrap();
        }
        files.write(CALLER, file, 20 << 20, b"the end").await.unwrap();
        drain(files).await;
        let one = make(files, ROOT, "one", FileType::Regular).await;
        let count = || {
            let stats = bed.content.stats();
            stats.chunks_written + stats.chunks_deduplicated
        };
        let before = count();
        assert_eq!(copy_all(files, file, one).await, 2, "one record, and the end is seen");
        // A copy of a copy that no root has, and one of what has changed since.
        let two = make(files, ROOT, "two", FileType::Regular).await;
        assert_eq!(copy_all(files, one, two).await, 2);
        files.write(CALLER, file, 5000, b"later").await.unwrap();
        files.write(CALLER, one, 9 << 20, b"of one").await.unwrap();
        let three = make(files, ROOT, "three", FileType::Regular).await;
        let calls = copy_all(files, one, three).await;
        assert!((3..9).contains(&calls), "{calls}: bytes where there are changes only");
        let wanted = async |of: Ino| {
            let mut all = Vec::new();
            for n in 0..21 {
                all.extend_from_slice(&files.read(of, n << 20, 1 << 20).await.unwrap());
            }
            all
        };
        let original = wanted(two).await;
        let mut changed = original.clone();
        changed[9 << 20..(9 << 20) + 6].copy_from_slice(b"of one");
        assert_eq!((original.len(), &original[20 << 20..]), ((20 << 20) + 7, &b"the end"[..]));
        assert!(wanted(one).await == changed && wanted(three).await == changed);
        // The first file may go: nothing but the names of its chunks was copied.
        files.unlink(CALLER, ROOT, b"file").await.unwrap();
        drain(files).await;
        let written = count() - before;
        assert!(written < 200, "{written} chunks for three copies of 20 MiB");
        assert!(wanted(two).await == original && wanted(one).await == changed);
        assert!(wanted(three).await == changed);
        assert_eq!(files.space().await.unwrap().bytes_used, 3 * ((20 << 20) + 4096));
    });
}

#[test]
fn no_file_has_bytes_at_offsets_beyond_all() {
    with_files(async |_, files| {
        let file = make(files, ROOT, "file", FileType::Regular).await;
        files.write(CALLER, file, 0, &[1; 5000]).await.unwrap();
        for drained in [false, true] {
            for offset in [u64::MAX, u64::MAX - 50, FILE_BYTES_MAX, FILE_BYTES_MAX - 1] {
                assert!(files.read(file, offset, 100).await.unwrap().is_empty(), "{drained}");
                let hole = files.seek(file, offset, Seek::Hole).await;
                assert_eq!(errno(hole), Some(Errno::NXIO));
                let fbig = Some(Errno::FBIG);
                assert_eq!(errno(files.write(CALLER, file, offset, &[1; 2]).await), fbig);
                let punch = files.allocate(CALLER, file, Allocate::Punch, offset, 100).await;
                assert_eq!(errno(punch), fbig);
            }
            drain(files).await;
        }
    });
}

#[test]
fn what_was_cut_off_a_copy_does_not_come_back() {
    with_files(async |_, files| {
        let file = make(files, ROOT, "file", FileType::Regular).await;
        files.write(CALLER, file, 0, &[1; 16384]).await.unwrap();
        drain(files).await;
        let copy = make(files, ROOT, "copy", FileType::Regular).await;
        copy_all(files, file, copy).await;
        for size in [5000, 16384] {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            files.set_attr(CALLER, copy, &set).await.unwrap();
        }
        for drained in [false, true] {
            let bytes = files.read(copy, 0, 20_000).await.unwrap();
            assert_eq!(bytes.len(), 16384, "{drained}");
            assert!(bytes[..5000].iter().all(|byte| *byte == 1), "{drained}");
            assert!(bytes[5000..].iter().all(|byte| *byte == 0), "{drained}");
            drain(files).await;
        }
    });
}

#[test]
fn a_copy_of_a_copy_does_not_need_the_first_file() {
    let (world, mem) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let (store, faults) = fault::wrap(&env, mem, Plan::default());
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = &bed.files(Ack::Flash).await;
        let file = make(files, ROOT, "file", FileType::Regular).await;
        files.write(CALLER, file, 0, &[7; 8192]).await.unwrap();
        drain(files).await;
        let one = make(files, ROOT, "one", FileType::Regular).await;
        let two = make(files, ROOT, "two", FileType::Regular).await;
        copy_all(files, file, one).await;
        files.unlink(CALLER, ROOT, b"file").await.unwrap();
        // A commit has that, and is on its way while the second copy is made.
        faults.set("latency=2s".parse().unwrap());
        let copied = async {
            env.sleep(std::time::Duration::from_secs(1)).await;
            copy_all(files, one, two).await;
        };
        let drained = files.handle().staged().drain();
        futures_util::future::join(drained, copied).await.0.unwrap();
        for _ in 0..2 {
            for copy in [one, two] {
                assert_eq!(files.read(copy, 0, 9000).await.unwrap(), &[7; 8192][..]);
            }
            drain(files).await;
        }
    });
}

#[test]
fn holes_of_a_copy_are_those_of_the_first_file() {
    with_files(async |_, files| {
        let file = make(files, ROOT, "file", FileType::Regular).await;
        files.write(CALLER, file, 0, &[1; 4096]).await.unwrap();
        files.write(CALLER, file, 1 << 20, &[1; 4096]).await.unwrap();
        drain(files).await;
        let copy = make(files, ROOT, "copy", FileType::Regular).await;
        files.write(CALLER, copy, 0, &[1; 8192]).await.unwrap();
        for drained in [false, true] {
            copy_all(files, file, copy).await;
            let seek = async |at, what| files.seek(copy, at, what).await.unwrap();
            assert_eq!(seek(0, Seek::Hole).await, 4096, "{drained}");
            assert_eq!(seek(5000, Seek::Data).await, 1 << 20, "{drained}");
            assert_eq!(seek((1 << 20) + 9, Seek::Hole).await, (1 << 20) + 4096, "{drained}");
            drain(files).await;
        }
    });
}

#[test]
fn what_cannot_be_copied_is_refused_and_a_copy_ends_with_the_file() {
    with_files(async |bed, files| {
        let file = make(files, ROOT, "file", FileType::Regular).await;
        let to = make(files, ROOT, "to", FileType::Regular).await;
        let link = make(files, ROOT, "pipe", FileType::Fifo).await;
        files.write(CALLER, file, 0, &[1; 10_000]).await.unwrap();
        let copy = async |from, to, length| files.copy(CALLER, from, to, length).await;
        assert_eq!(errno(copy((file, 0), (file, 4096), 8192).await), Some(Errno::INVAL));
        assert_eq!(errno(copy((ROOT, 0), (to, 0), 1).await), Some(Errno::ISDIR));
        assert_eq!(errno(copy((file, 0), (ROOT, 0), 1).await), Some(Errno::ISDIR));
        assert_eq!(errno(copy((link, 0), (to, 0), 1).await), Some(Errno::INVAL));
        assert_eq!(errno(copy((77, 0), (to, 0), 1).await), Some(Errno::STALE));
        let far = (to, FILE_BYTES_MAX - 4096);
        for drained in [false, true] {
            assert_eq!(errno(copy((file, 0), far, 8192).await), Some(Errno::FBIG), "{drained}");
            assert_eq!(copy((file, 10_000), (to, 0), 1).await.unwrap(), 0);
            assert_eq!(copy((file, u64::MAX - 5), (to, 0), u64::MAX).await.unwrap(), 0);
            assert_eq!(copy((file, 0), (to, 0), 0).await.unwrap(), 0);
            drain(files).await;
        }
        // What is in a snapshot is read, since the snapshot may go.
        bed.volumes.take_snapshot("fs", "s").await.unwrap();
        drain(files).await;
        let dir = files.lookup(ROOT, b".snapshots").await.unwrap().ino;
        let root = files.lookup(dir, b"s").await.unwrap().ino;
        let old = files.lookup(root, b"file").await.unwrap().ino;
        assert_eq!(copy((old, 0), (to, 0), 1 << 30).await.unwrap(), 10_000);
        bed.volumes.remove_snapshot("fs", "s").await.unwrap();
        assert_eq!(files.read(to, 0, 1 << 20).await.unwrap(), &[1; 10_000][..]);
        assert_eq!(errno(copy((file, 0), (old, 0), 1).await), Some(Errno::ROFS));
    });
}
