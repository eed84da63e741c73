//! A check names the inodes that damage is of.

use super::repairing::{damage, page, root_of, stored};
use super::*;
use rekindle_content::sweep::Budget;
use rekindle_content::tree;
use rekindle_content::verify::{Extent, verify_extents};
use rekindle_volume::Kind;

/// What a check says of all damage.
async fn said(bed: &Bed) -> Vec<String> {
    let vault = bed.volumes.show("fs").await.unwrap().vault;
    let roots = [(vault.root, Extent::All)];
    let mut tell = |_| ();
    let report = verify_extents(&bed.content, &roots, Budget::Unlimited, &mut tell).await.unwrap();
    let mut said = Vec::new();
    for one in report.damages {
        let place = File.describe_chunk(&bed.content, &vault, &one.keys, one.pointer).await;
        said.push(place.unwrap());
    }
    said.sort();
    said
}

#[test]
fn damage_of_each_sort_is_told_with_the_inode_that_it_is_of() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let (files, dir) = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let mut inos = Vec::new();
        let mut dice = Random::new(1);
        for n in 0..400 {
            let ino = make(&files, ROOT, &format!("file {n}"), FileType::Regular).await;
            let bytes: Vec<u8> = (0..3000).map(|_| dice.next_u64() as u8).collect();
            files.write(CALLER, ino, 0, &bytes).await.unwrap();
            inos.push(ino);
        }
        let dir = make(&files, ROOT, "dir", FileType::Directory).await;
        for n in 0..1000 {
            make(&files, dir, &format!("a longer name of a file {n}"), FileType::Symlink).await;
        }
        drain(&files).await;
        assert!(said(&bed).await.is_empty());
        for ino in [0, 34, 77, 399].map(|at| inos[at]) {
            let content = stored(&bed, ino).await.body.tree();
            let runs = tree::range(&bed.content, &content, 0..u64::MAX).await.unwrap();
            damage(&store, &runs[0].1).await;
        }
        // A page of names.
        let names = stored(&bed, dir).await.body.tree();
        damage(&store, &page(&bed, &names, u64::MAX).await).await;
        (inos, dir)
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let chosen = [files[0], files[34], files[77], files[399], dir];
        let mut expected: Vec<String> =
            chosen.iter().map(|ino| format!("part of inode {ino}")).collect();
        expected.sort();
        assert_eq!(said(&bed).await, expected);
        // A page of inodes.
        let root = root_of(&bed).await;
        damage(&store, &page(&bed, &root, files[200]).await).await;
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 3).await;
        let found = said(&bed).await;
        let of_page = |line: &String| {
            let (from, to) = line.strip_prefix("the inodes ")?.split_once(" to ")?;
            Some(from.parse::<u64>().ok()?..=to.parse::<u64>().ok()?)
        };
        let pages: Vec<_> = found.iter().filter_map(of_page).collect();
        assert!(pages.len() == 1 && pages[0].contains(&files[200]), "{found:?}");
    });
}
