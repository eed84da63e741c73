//! Packs as they are written, read back whole and damaged.

use super::*;
use crate::compression::Compressor;
use crate::pack::blobs::Blobs;
use crate::pack::scan::{Scanned, list, scan};
use crate::pack::writer::{Pool, Sealed, Writer};
use crate::testing::text;
use crate::{Compression, Part};
use proptest::prelude::*;

fn namer() -> Namer {
    Namer::new(&[1; 32])
}

/// A pack of chunks, and behind them a bundle.
fn sealed(bodies: &[Vec<u8>], together: &[Bytes], compression: Compression) -> Sealed {
    let (namer, mut compressor) = (namer(), Compressor::new(compression));
    let mut writer = Writer::new(PackId([2; 16]), Class::Data, Vec::new());
    for body in bodies {
        writer.append_chunk(namer.name(Class::Data, 0, body), body, &mut compressor);
    }
    let name = |body: &Bytes| (namer.name(Class::Data, 0, body), body.len());
    let chunks: Vec<_> = together.iter().map(name).collect();
    let mut blobs = Blobs::default();
    if !chunks.is_empty() {
        blobs.push_together(&chunks, &together.concat(), &mut compressor);
    }
    blobs.iter().for_each(|blob| writer.append(blob, |_| {}));
    writer.seal(None, &Pool::new(1))
}

fn bodies() -> Vec<Vec<u8>> {
    (0..5u8).map(|i| vec![i; 1000 * usize::from(i)]).collect()
}

fn together() -> Vec<Bytes> {
    (1..6).map(|i| text(i, 1000 * i as usize)).collect()
}

fn whole() -> Sealed {
    sealed(&bodies(), &together(), Compression::Zstd)
}

fn all() -> impl Iterator<Item = Bytes> {
    bodies().into_iter().map(Bytes::from).chain(together())
}

#[test]
fn a_pack_reads_back_and_its_footer_can_be_rebuilt() {
    let (namer, other) = (namer(), Namer::new(&[2; 32]));
    let pack = whole();
    assert_eq!(footer::decode(&pack.object).unwrap(), pack.entries);
    assert_eq!(list(&namer, pack.id, &pack.object), pack.entries);
    assert_eq!(scan(Some(PackId([4; 16])), &pack.object), []);
    assert_eq!(pack.entries.len(), 10);
    let mut opener = Opener::new(&namer);
    for (entry, body) in pack.entries.iter().zip(all()) {
        let begin = entry.offset as usize;
        let stored = pack.object.slice(begin..begin + entry.stored as usize);
        let at = pointer(pack.id, entry);
        assert_eq!(opener.open(&at, &stored).unwrap().bytes, body);
        if at.part.is_whole() {
            assert_eq!(open_whole(&namer, &at, &stored).unwrap().bytes, body);
        } else {
            let bodies = open_bundle(&at, &stored).unwrap();
            assert_eq!(take_chunk(&namer, &at, &bodies).unwrap().bytes, body);
            assert!(take_chunk(&other, &at, &bodies).is_err());
            let beyond = Pointer { length: 20_000, ..at };
            assert!(take_chunk(&namer, &beyond, &bodies).is_err());
        }
    }
    assert!(opener.opened() < 2 * all().map(|body| body.len()).sum::<usize>(), "decompressed once");
    for blob in pack.entries.chunk_by(footer::Entry::is_beside) {
        let begin = blob[0].offset as usize;
        let stored = &pack.object[begin..begin + blob[0].stored as usize];
        assert!(check_blob(&namer, pack.id, blob, stored).is_ok());
        assert!(check_blob(&other, pack.id, blob, stored).is_err());
        if blob.len() > 1 {
            for left_out in 0..blob.len() {
                let mut part = blob.to_vec();
                part.remove(left_out);
                assert!(check_blob(&namer, pack.id, &part, stored).is_err(), "{left_out}");
            }
        }
    }
    for at in [pack.entries[1].offset as usize, pack.entries[1].offset as usize + 10] {
        let mut damaged = pack.object.to_vec();
        damaged[at] ^= 1;
        let rest: Vec<_> = pack.entries.iter().filter(|e| e.name != pack.entries[1].name).collect();
        let found = list(&namer, pack.id, &damaged);
        assert_eq!(found.iter().collect::<Vec<_>>(), rest, "one damaged blob costs one chunk");
    }
}

#[test]
fn a_bundle_is_named_anew_by_a_scan_and_left_out_when_it_is_damaged() {
    let (namer, pack) = (namer(), whole());
    let (own, bundle) = pack.entries.split_at(5);
    let begin = bundle[0].offset as usize;
    let scanned = scan(None, &pack.object);
    assert!(matches!(&scanned[5], Scanned::Bundle(at, header)
        if *at as usize == begin && header.lengths == [1000, 2000, 3000, 4000, 5000]));
    for at in begin..begin + bundle[0].stored as usize {
        let mut damaged = pack.object.to_vec();
        damaged[at] ^= 1;
        assert_eq!(list(&namer, pack.id, &damaged), own, "{at}");
    }
    // Names depend on the key.
    let names = list(&Namer::new(&[2; 32]), pack.id, &pack.object);
    assert!(names[5..].iter().zip(bundle).all(|(found, entry)| found.name != entry.name));
}

#[test]
fn what_does_not_compress_together_has_blobs_of_its_own() {
    let random: Vec<Bytes> = (0..3).map(|seed| crate::testing::random(seed, 5000)).collect();
    for (bodies, compression) in [
        (&random, Compression::Zstd),
        (&random, Compression::Lz4),
        (&together(), Compression::None),
    ] {
        let pack = sealed(&[], bodies, compression);
        assert!(pack.entries.iter().all(|entry| entry.part.is_whole()));
        let raw: usize = bodies.iter().map(Bytes::len).sum();
        assert!(pack.object.len() > raw && pack.object.len() < raw + 1000);
    }
    // So little is left that chunks of a bundle would share a position.
    let zeros = vec![Bytes::from(vec![0; 500_000]); 2];
    let pack = sealed(&[], &zeros, Compression::Zstd);
    assert!(pack.entries.iter().all(|entry| entry.part == Part::WHOLE && entry.stored < 200));
}

#[test]
fn the_images_of_packs_stay_as_they_are() {
    let bodies = [&b"one"[..], b"three"].map(<[u8]>::to_vec);
    let pack = sealed(&bodies, &[], Compression::None);
    crate::format::check_golden("pack.bin", &pack.object);
    // zstd may choose other bytes one day: the image is read, and made only once.
    let together: Vec<Bytes> = (1..4).map(|i| text(i, 300)).collect();
    let entries = sealed(&bodies, &together, Compression::Zstd).entries;
    let name = "pack-2.bin";
    if std::env::var("REKINDLE_GOLDEN").as_deref() == Ok("write") {
        let pack = sealed(&bodies, &together, Compression::Zstd);
        crate::format::check_golden(name, &pack.object);
    }
    let golden = Bytes::from_static(include_bytes!("../../../golden/pack-2.bin"));
    let listed = footer::decode(&golden).unwrap();
    assert_eq!(list(&namer(), PackId([2; 16]), &golden), listed);
    let shape = |entries: &[footer::Entry]| -> Vec<_> {
        entries.iter().map(|e| (e.name, e.length, e.part.begin())).collect()
    };
    assert_eq!(shape(&listed), shape(&entries));
    let (namer, bodies) = (namer(), bodies.map(Bytes::from));
    let mut opener = Opener::new(&namer);
    for (entry, body) in listed.iter().zip(bodies.iter().chain(&together)) {
        let at = pointer(PackId([2; 16]), entry);
        let stored = &golden[at.offset as usize..(at.offset + at.stored) as usize];
        assert_eq!(opener.open(&at, stored).unwrap().bytes, body);
    }
}

proptest! {
    #[test]
    fn one_flipped_bit_never_gives_wrong_content(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (namer, pack) = (namer(), whole());
        let mut damaged = pack.object.to_vec();
        let at = at.index(damaged.len());
        damaged[at] ^= 1 << bit;
        let damaged = Bytes::from(damaged);
        let mut opener = Opener::new(&namer);
        for (entry, body) in pack.entries.iter().zip(all()) {
            let begin = entry.offset as usize;
            let stored = damaged.slice(begin..begin + entry.stored as usize);
            if let Ok(read) = opener.open(&pointer(pack.id, entry), &stored) {
                prop_assert_eq!(&read.bytes[..], &body[..]);
            }
        }
    }

    #[test]
    fn any_bytes_are_scanned(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        let _ = scan(None, &bytes);
        let _ = list(&namer(), PackId([2; 16]), &bytes);
    }
}
