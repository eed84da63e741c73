//! Files with few bytes, which lie in their rows.

use super::repairing::{root_of, stored};
use super::*;
use crate::limits::ROW_BYTES_MAX;
use crate::state::{Body, ORPHANS};
use crate::table;

/// The bytes that lie in a file's row; `None`: it has extents, or nothing.
async fn in_row(bed: &Bed, ino: Ino) -> Option<Vec<u8>> {
    match stored(bed, ino).await.body {
        Body::Row(bytes) => Some(bytes.to_vec()),
        Body::Tree(_) => None,
    }
}

async fn truncate(files: &Files, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    files.set_attr(CALLER, ino, &set).await.unwrap();
}

#[test]
fn few_bytes_take_no_chunk_and_many_take_one() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = &Bed::start(&env, &store, 1).await;
        let files = &bed.files(Ack::Flash).await;
        let file = make(files, ROOT, "file", FileType::Regular).await;
        let write = async |offset, data: &[u8]| {
            files.write(CALLER, file, offset, data).await.unwrap();
            drain(files).await;
        };
        let data_packs = async || store.list("packs/data/", None).await.unwrap().len();
        write(100, b"few").await;
        let few = [&[0; 100][..], b"few"].concat();
        assert_eq!((in_row(bed, file).await, data_packs().await), (Some(few.clone()), 0));
        assert_eq!(files.read(file, 0, 999).await.unwrap(), few);
        // A version that does not look for bytes in rows must not open the volume.
        let own = table::get(&bed.content, &root_of(bed).await, ORPHANS).await.unwrap().unwrap();
        assert_eq!(own.bytes[..2], [3, 0]);
        // Zeros at the end are not kept, but belong to the file.
        truncate(files, file, 1 << 20).await;
        write(200, &[0; 50]).await;
        assert_eq!(in_row(bed, file).await, Some(few.clone()));
        let read = files.read(file, 90, 5000).await.unwrap();
        assert!(read[..13] == few[90..] && read.len() == 5000 && read[13..] == [0; 4987]);
        let found = [Seek::Data, Seek::Hole].map(|what| files.seek(file, 10, what));
        let [data, hole] = found;
        assert_eq!((data.await.unwrap(), hole.await.unwrap()), (10, 4096));
        assert!(files.seek(file, 4096, Seek::Data).await.is_err(), "no data");
        // One byte too many.
        write(ROW_BYTES_MAX as u64, b"x").await;
        assert_eq!((in_row(bed, file).await, data_packs().await), (None, 1));
        let read = files.read(file, 0, 2000).await.unwrap();
        assert!(read[..103] == few && read[ROW_BYTES_MAX] == b'x');
        // Fewer bytes stay where they are until they are all written.
        truncate(files, file, 50).await;
        write(10, b"short").await;
        assert_eq!(in_row(bed, file).await, None);
        write(0, &[7; 60]).await;
        assert_eq!(in_row(bed, file).await, Some(vec![7; 60]));
        truncate(files, file, 20).await;
        drain(files).await;
        assert_eq!(in_row(bed, file).await, Some(vec![7; 20]));
        write(0, &[0; 20]).await;
        assert_eq!(
            (in_row(bed, file).await, stored(bed, file).await.body),
            (None, Body::Tree(None))
        );
        assert_eq!(files.read(file, 0, 99).await.unwrap(), [0; 20][..]);
    });
}

#[test]
fn a_copy_of_few_bytes_has_them_too() {
    with_files(async |bed, files| {
        let few = make(files, ROOT, "few", FileType::Regular).await;
        files.write(CALLER, few, 0, &[5; 300]).await.unwrap();
        let many = make(files, ROOT, "many", FileType::Regular).await;
        files.write(CALLER, many, 0, &[6; 9000]).await.unwrap();
        let copy = make(files, ROOT, "copy", FileType::Regular).await;
        drain(files).await;
        files.copy(CALLER, (few, 0), (copy, 0), 1 << 30).await.unwrap();
        files.copy(CALLER, (few, 0), (many, 4096), 1 << 30).await.unwrap();
        // The copies are of what the root has.
        let expected = [&[6; 4096][..], &[5; 300], &[6; 9000 - 4396]].concat();
        for is_committed in [false, true] {
            assert_eq!(files.read(copy, 0, 999).await.unwrap(), [5; 300][..], "{is_committed}");
            assert!(files.read(many, 0, 9999).await.unwrap() == expected, "{is_committed}");
            drain(files).await;
        }
        assert_eq!(in_row(bed, copy).await, Some(vec![5; 300]));
        files.unlink(CALLER, ROOT, b"few").await.unwrap();
        drain(files).await;
        assert_eq!(files.read(copy, 0, 999).await.unwrap(), [5; 300][..]);
    });
}

/// Small files under all that changes their bytes, against plain bytes.
#[test]
fn any_changes_of_few_bytes_are_as_those_of_plain_ones() {
    for seed in 0..20 {
        with_files(async |bed, files| {
            let mut dice = Random::new(seed);
            let mut all: Vec<(Ino, Vec<u8>)> = Vec::new();
            for n in 0..4 {
                let ino = make(files, ROOT, &n.to_string(), FileType::Regular).await;
                all.push((ino, Vec::new()));
            }
            for _ in 0..120 {
                let which = dice.below(4) as usize;
                let (ino, mut bytes) = all[which].clone();
                let span = [300, 1200, 6000][dice.below(3) as usize];
                let at = dice.below(span);
                match dice.below(8) {
                    0..4 => {
                        let length = 1 + dice.below(span / 2) as usize;
                        let data = match dice.below(3) {
                            0 => vec![0; length],
                            _ => dice.bytes(length),
                        };
                        files.write(CALLER, ino, at, &data).await.unwrap();
                        let end = at as usize + data.len();
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[at as usize..end].copy_from_slice(&data);
                    }
                    4 => {
                        truncate(files, ino, at).await;
                        bytes.resize(at as usize, 0);
                    }
                    5 => {
                        let length = 1 + dice.below(span);
                        files.allocate(CALLER, ino, Allocate::Punch, at, length).await.unwrap();
                        let within = |byte: u64| (byte as usize).min(bytes.len());
                        let range = within(at)..within(at + length);
                        bytes[range].fill(0);
                    }
                    6 => {
                        let (other, source) = all[(which + 1) % 4].clone();
                        let copied =
                            files.copy(CALLER, (other, 0), (ino, 0), 1 << 20).await.unwrap();
                        let copied = copied as usize;
                        bytes.resize(bytes.len().max(copied), 0);
                        bytes[..copied].copy_from_slice(&source[..copied]);
                    }
                    _ => drain(files).await,
                }
                all[which].1 = bytes;
                for (ino, bytes) in &all {
                    assert!(files.read(*ino, 0, 20_000).await.unwrap() == *bytes, "seed {seed}");
                }
            }
            drain(files).await;
            let mut rows = 0;
            for (ino, bytes) in &all {
                assert!(files.read(*ino, 0, 20_000).await.unwrap() == *bytes, "seed {seed}");
                rows += usize::from(in_row(bed, *ino).await.is_some());
            }
            println!("seed {seed}: {rows} in rows");
        });
    }
}
