//! Tests of the parent module.

use super::*;
use crate::compression::Compressor;
use crate::format::parity::HEAD_BYTES;
use crate::format::{footer, pack};
use crate::name::Namer;
use crate::pack::scan::list;
use crate::pack::writer::{Pool, Sealed, Writer};
use crate::testing::random;
use crate::{Class, Compression};
use proptest::prelude::*;

const ID: PackId = PackId([2; 16]);

fn namer() -> Namer {
    Namer::new(&[1; 32])
}

fn sealed(shape: &str, bodies: &[Vec<u8>]) -> Sealed {
    let namer = namer();
    let mut compressor = Compressor::new(Compression::None);
    let mut writer = Writer::new(ID, Class::Data, Vec::new());
    for body in bodies {
        writer.append_chunk(namer.name(Class::Data, 0, body), body, &mut compressor);
    }
    writer.seal(Some(shape.parse().unwrap()), &Pool::new(1))
}

/// Returns an object of so many bytes and their section.
fn bare(shape: &str, covered: usize) -> (Layout, Vec<u8>) {
    let mut object = random(covered as u64, covered).to_vec();
    append(ID, shape.parse().unwrap(), &mut object);
    let layout = find(Some(ID), &object).expect("just written");
    assert_eq!((layout.covered, layout.end()), (covered, object.len()));
    (layout, object)
}

fn flip(object: &mut [u8], cell: std::ops::Range<usize>) {
    object[cell.start] ^= 1;
}

/// All subsets of `0..all` with `some` elements.
fn subsets(all: usize, some: usize) -> Vec<Vec<usize>> {
    let wanted = |bits: &u32| bits.count_ones() as usize == some;
    let members = |bits: u32| (0..all).filter(|at| bits >> at & 1 == 1).collect();
    (0..1u32 << all).filter(wanted).map(members).collect()
}

#[test]
fn every_loss_that_parity_makes_up_for_is_rebuilt_and_no_other() {
    for shape in ["2+1", "3+2", "5+3", "4+4"] {
        let (layout, whole) = bare(shape, 5 * 4096 * 2 + 77);
        for some in 0..=layout.parity + 1 {
            for lost in subsets(layout.shards(), some) {
                for stripe in [0, layout.stripes() - 1] {
                    let cells = lost.iter().map(|shard| layout.cell(*shard, stripe));
                    let cells: Vec<_> = cells.filter(|cell| !cell.is_empty()).collect();
                    let mut object = whole.clone();
                    cells.iter().for_each(|cell| flip(&mut object, cell.clone()));
                    let healed = heal(&object, &layout);
                    assert_eq!(healed.damaged, cells.len() as u64);
                    if cells.len() <= layout.parity {
                        assert_eq!(healed.hopeless, 0, "{shape} {lost:?}");
                        assert!(healed.covered == whole[..layout.covered], "{shape} {lost:?}");
                    } else {
                        assert_eq!(healed.hopeless, 1, "{shape} {lost:?}");
                        assert!(healed.covered == object[..layout.covered], "{shape} {lost:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_stretch_as_long_as_a_shard_may_be_lost_in_one_piece() {
    let (layout, whole) = bare("16+1", 1_000_000);
    let length = layout.shard_bytes() - layout.cell;
    for begin in [0, 1, 4095, 100_000, 500_001, layout.covered - length, layout.covered] {
        for fill in [0, 0xff] {
            let mut object = whole.clone();
            object[begin..begin + length].fill(fill);
            let healed = heal(&object, &layout);
            assert_eq!((healed.hopeless, healed.damaged > 200 / 16), (0, true), "{begin}");
            assert!(healed.covered == whole[..layout.covered], "{begin}");
        }
    }
}

#[test]
fn damage_of_the_section_hides_nothing_from_what_is_left_of_it() {
    let (layout, whole) = bare("4+2", 200_000);
    // Damage: one part wholly (head, shard, checksums, head), and a cell of data in each stripe.
    let part = (layout.end() - layout.covered) / 2;
    for begin in [layout.covered, layout.covered + part] {
        let mut object = whole.clone();
        object[begin..begin + part].fill(0);
        for stripe in 0..layout.stripes() {
            flip(&mut object, layout.cell(stripe % 4, stripe));
        }
        assert_eq!(find(Some(ID), &object), Some(layout));
        assert!(heal(&object, &layout).covered == whole[..layout.covered]);
    }
    // A footer behind the section, whole or not, is no hindrance; nor is a part that is cut off.
    let mut object = whole.clone();
    footer::append(&[], &mut object);
    assert_eq!(find(Some(ID), &object), Some(layout));
    let last = object.len() - 1;
    object[last] ^= 1;
    assert_eq!(find(Some(ID), &object), Some(layout));
    let cut = &whole[..layout.covered + part + 1];
    assert_eq!(find(Some(ID), cut), Some(layout));
    assert!(heal(cut, &layout).covered == whole[..layout.covered]);
}

#[test]
fn the_parity_of_a_section_is_what_its_page_says() {
    let multiply = |mut a: u8, mut b: u8| {
        let mut product = 0;
        while b != 0 {
            if b & 1 == 1 {
                product ^= a;
            }
            a = a << 1 ^ if a & 0x80 == 0 { 0 } else { 0x1d };
            b >>= 1;
        }
        product
    };
    let inverse = |a: u8| (1..=255).find(|b| multiply(a, *b) == 1).expect("a field");
    for shape in ["2+1", "16+1", "7+3", "64+8"] {
        let (layout, object) = bare(shape, 30_011);
        for stripe in 0..layout.stripes() {
            for row in layout.data..layout.shards() {
                let mut expected = vec![0; layout.cell];
                for shard in 0..layout.data {
                    let coefficient = inverse((row ^ shard) as u8);
                    let cell = &object[layout.cell(shard, stripe)];
                    for (sum, byte) in expected.iter_mut().zip(cell) {
                        *sum ^= multiply(coefficient, *byte);
                    }
                }
                assert!(object[layout.cell(row, stripe)] == expected, "{shape} {row} {stripe}");
            }
        }
    }
}

#[test]
fn a_pack_with_parity_is_the_one_without_and_a_section_before_the_footer() {
    let bodies: Vec<Vec<u8>> = (0..40).map(|seed| random(seed, 3000).to_vec()).collect();
    let pack = sealed("8+2", &bodies);
    let layout = find(Some(ID), &pack.object).unwrap();
    let last = pack.entries[39];
    assert_eq!(layout.covered, (last.offset + last.stored) as usize);
    assert_eq!(footer::decode(&pack.object).unwrap(), pack.entries);
    let footer = footer::length_from_tail(&pack.object).unwrap();
    assert_eq!(layout.end() + footer, pack.object.len());
    // The section of another pack is not taken.
    assert_eq!(find(Some(PackId([3; 16])), &pack.object), None);
}

#[test]
fn a_scan_does_not_take_parity_for_blobs() {
    // The middle blob lies in the last of three shards, whose factor is one; in the other shards
    // there are zeros.
    let pack = sealed("3+1", &[vec![0; 28_000], vec![5; 10], vec![0; 8000]]);
    let layout = find(Some(ID), &pack.object).unwrap();
    let middle = pack.entries[1];
    let blob = &pack.object[middle.offset as usize..(middle.offset + middle.stored) as usize];
    let is_copy = pack.object[layout.covered..].windows(blob.len()).any(|window| window == blob);
    assert!(is_copy, "else this shows nothing");
    let mut object = pack.object.to_vec();
    let last = object.len() - 1;
    object[last] ^= 1;
    assert_eq!(list(&namer(), ID, &object), pack.entries);
    object[pack::BYTES] ^= 1;
    assert_eq!(list(&namer(), ID, &object), pack.entries[1..]);
}

#[test]
fn the_image_of_a_pack_with_parity_stays_as_it_is() {
    let pack = sealed("2+1", &[b"one".to_vec(), b"three".to_vec()]);
    crate::format::check_golden("pack-parity.bin", &pack.object);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn scattered_damage_is_rebuilt_as_far_as_parity_goes(
        data in 2usize..20, parity in 1usize..5, covered in 32usize..200_000,
        hits in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..12),
    ) {
        let (layout, whole) = bare(&format!("{data}+{}", parity.min(data)), covered);
        let mut object = whole.clone();
        for (at, xor) in &hits {
            let at = at.index(object.len());
            object[at] ^= xor;
        }
        let Some(found) = find(Some(ID), &object) else {
            // Both heads of every part are hit.
            prop_assert!(hits.len() >= 2 * layout.parity);
            return Ok(());
        };
        prop_assert_eq!(found, layout);
        let healed = heal(&object, &layout);
        for stripe in 0..layout.stripes() {
            let changed = |shard: &usize| {
                let cell = layout.cell(*shard, stripe);
                object[cell.clone()] != whole[cell]
            };
            let checksum_hit = |shard: &usize| (0..layout.parity).all(|part| {
                let checksum = layout.checksum(part, *shard, stripe);
                object[checksum.clone()] != whole[checksum]
            });
            let lost = (0..layout.shards()).filter(|shard| changed(shard) || checksum_hit(shard)).count();
            if lost <= layout.parity {
                for shard in 0..layout.data {
                    let cell = layout.cell(shard, stripe);
                    prop_assert!(healed.covered[cell.clone()] == whole[cell]);
                }
            }
        }
    }

    #[test]
    fn hostile_sections_give_an_answer(
        mut bytes in proptest::collection::vec(any::<u8>(), 200..3000),
        data in 1usize..200, parity in 1usize..50, cell in 1usize..20, covered in 32usize..3000, last in any::<bool>(),
    ) {
        let layout = Layout { data, parity, cell: cell * 64, covered };
        let at = if last { layout.end() - HEAD_BYTES } else { covered };
        if let Some(place) = bytes.get_mut(at..at + HEAD_BYTES) {
            place.copy_from_slice(&layout.head(ID, if last { parity - 1 } else { 0 }));
        }
        if let Some(layout) = find(None, &bytes) {
            let healed = heal(&bytes, &layout);
            prop_assert_eq!(healed.covered.len(), layout.covered);
        }
        let _ = list(&namer(), ID, &bytes);
    }
}
