//! The index: whole, thinned, condemned; and its price in RAM.

use super::*;

fn name(i: u64) -> Name {
    *blake3::hash(&i.to_le_bytes()).as_bytes()
}

fn pack(i: u64) -> PackId {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&i.to_be_bytes());
    PackId(id)
}

fn entries(names: std::ops::Range<u64>) -> Vec<Entry> {
    let entry = |(index, i)| Entry {
        offset: 32 + index * 100,
        stored: 100,
        length: 200,
        part: crate::Part::WHOLE,
        name: name(i),
    };
    (0u32..).zip(names).map(entry).collect()
}

#[test]
fn a_small_store_is_known_whole() {
    let index = Index::new(8 << 20);
    for i in 0..20 {
        index.add(pack(i), 1 << 20, &entries(i * 500..i * 500 + 500));
    }
    for i in 0..10_000 {
        assert!(
            matches!(index.lookup(&name(i)), IndexAnswer::Place(found) if found.pack == pack(i / 500))
        );
    }
    assert!(matches!(index.lookup(&name(10_001)), IndexAnswer::Nothing));
}

#[test]
fn what_has_left_ram_is_found_again_through_hooks() {
    let index = Index::new(1 << 20);
    for i in 0..400 {
        index.add(pack(i), 777, &entries(i * 500..i * 500 + 500));
        assert!(index.bytes() <= 1 << 20, "{}", index.bytes());
    }
    assert!(index.state.lock().hooks.thinning() > 1);
    for i in 0..400 {
        let is_hook = |found| matches!(found, IndexAnswer::Footer(found, 777) if found == pack(i));
        let hooks = (0..500).filter(|j| is_hook(index.lookup(&name(i * 500 + j))));
        assert!(
            index.state.lock().recent.contains(&pack(i)) || hooks.count() > 10,
            "pack {i} has no hook"
        );
    }
}

#[test]
fn condemned_packs_are_not_answered_for_and_deleted_ones_are_forgotten() {
    let index = Index::new(8 << 20);
    index.add(pack(1), 1, &entries(0..100));
    index.add(pack(2), 1, &entries(100..200));
    index.condemn([pack(1)]);
    assert!((0..100).all(|i| matches!(index.lookup(&name(i)), IndexAnswer::Nothing)));
    index.add(pack(1), 1, &entries(0..100));
    assert!(
        (0..100).all(|i| matches!(index.lookup(&name(i)), IndexAnswer::Nothing)),
        "not even when its footer is loaded"
    );
    index.condemn([]);
    assert!(
        (0..100).all(|i| matches!(index.lookup(&name(i)), IndexAnswer::Footer(..))),
        "absolved"
    );
    index.forget(&[pack(1)]);
    assert!((0..100).all(|i| matches!(index.lookup(&name(i)), IndexAnswer::Nothing)));
    index.add(pack(3), 1, &entries(0..100));
    assert!((0..200).all(
        |i| matches!(index.lookup(&name(i)), IndexAnswer::Place(found) if found.pack == pack(3 - i / 100))
    ));
}

#[test]
fn a_doubt_about_one_chunk_of_a_bundle_is_none_about_its_neighbours() {
    let index = Index::new(8 << 20);
    let part = |begin| crate::Part::new(begin, 1000, 500).unwrap();
    let bundle: Vec<Entry> = entries(0..2)
        .into_iter()
        .zip([0, 400])
        .map(|(entry, begin)| Entry { offset: 32, stored: 500, part: part(begin), ..entry })
        .collect();
    index.add(pack(1), 600, &bundle);
    let places = [0, 1].map(|i| index.lookup_recent(&name(i)).unwrap());
    index.doubt(&places[0]);
    assert_eq!([0, 1].map(|i| index.lookup_recent(&name(i))), [None, Some(places[1])]);
    // A read of the neighbour proves nothing about the chunk.
    index.believe(&places[1]);
    assert_eq!(index.lookup_recent(&name(0)), None);
    index.believe(&places[0]);
    assert_eq!(index.lookup_recent(&name(0)), Some(places[0]));
}

#[test]
fn the_budget_holds_however_many_packs_there_are_and_the_oldest_are_forgotten() {
    const BUDGET: usize = 1 << 20;
    let index = Index::new(BUDGET as u64);
    let packs = 4 * BUDGET as u64 / ROW_BYTES as u64;
    for i in 0..packs {
        index.add(pack(i), 777, &entries(i * 3..i * 3 + 3));
        assert!(index.bytes() <= BUDGET as u64, "{} bytes after {i} packs", index.bytes());
    }
    let state = index.state.lock();
    assert!(state.rows.len() * ROW_BYTES > BUDGET / 8, "{} rows", state.rows.len());
    assert!(!state.rows.contains_key(&pack(0)) && state.rows.contains_key(&pack(packs - 1)));
    drop(state);
    let footer = entries(0..(BUDGET / 2 / recent::ENTRY_BYTES) as u64);
    index.add(pack(packs), 777, &footer);
    assert!(index.bytes() <= BUDGET as u64, "one long footer");
    assert!(matches!(index.lookup(&name(0)), IndexAnswer::Nothing));
}

#[test]
fn a_tebibyte_of_64_kib_chunks_costs_40_mib() {
    // Not 16 million hashes: rows, a full hook table, the thinning and the footers are computed.
    let packs = (1u64 << 40) / (32 << 20);
    let chunks = (1u64 << 40) / (64 << 10);
    let budget = 40usize << 20;
    let rows = usize::try_from(packs).unwrap() * ROW_BYTES;
    let hooks = budget / 2;
    let kept = hooks / 12 * 5 / 6;
    let thinning = (usize::try_from(chunks).unwrap() / kept + 1).next_power_of_two();
    assert!(thinning <= 64, "a hook for at least 1 in 64 names: {thinning}");
    let footers = (budget - rows - hooks) / (recent::ENTRY_BYTES * 512);
    assert!(footers >= 300, "and {footers} footers in RAM");
}
