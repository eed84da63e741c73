//! Every fuzz target on golden images with random damage: a short run of `cargo x fuzz`.

use rekindle_base::random::Random;
use rekindle_fuzz as targets;
use std::path::Path;

const ROUNDS: u64 = 20_000;

/// Golden images of all crates: where mutation starts.
#[expect(clippy::disallowed_methods, reason = "a test reads golden images")]
fn seeds() -> Vec<Vec<u8>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut seeds = vec![
        Vec::new(),
        b"20G".to_vec(),
        b"s3://bucket/prefix".to_vec(),
        b"latency=10ms,fail=20%".to_vec(),
    ];
    seeds.push([&b"IHAVEOPT\0\0\0\x07\0\0\0\x0a"[..], b"\0\0\0\x04disk\0\0"].concat());
    seeds.push([&0x2560_9513_u32.to_be_bytes()[..], &[0; 24]].concat());
    let (rename, named) = (45, b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0a\0b\0");
    seeds.push([&[rename], &named[..]].concat());
    // A handle, a name, and what CREATE, SYMLINK, WRITE and RENAME have behind them.
    let handle = [&[0, 0, 0, 36][..], &[0; 36]].concat();
    let name = &b"\0\0\0\x01a\0\0\0"[..];
    for (procedure, rest) in [
        (8, [name, &[0; 28]].concat()),
        (10, [name, &[0; 24], name].concat()),
        (7, [&[0; 8][..], &[0, 0, 0, 1, 0, 0, 0, 2], name].concat()),
        (14, [name, &handle, name].concat()),
        (11, [name, &[0, 0, 0, 4], &[0; 32]].concat()),
        (17, vec![0; 24]),
    ] {
        seeds.push([&[procedure][..], &handle, &rest].concat());
    }
    seeds.push(b"\x81\0\0\0\x04/one".to_vec());
    // OPEN, LOCK, WRITE, SETATTR, CREATE, READDIR and TEST_STATEID of version 4.1.
    for (op, words) in [
        (18, &[0, 3, 0, 0, 0, 1, 0x6100_0000, 1, 0, 2, 0, 2, 4, 0o644, 0, 1, 0x6100_0000][..]),
        (12, &[2, 0, 0, 0, 0, 10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x6100_0000]),
        (38, &[0, 0, 0, 0, 0, 0, 2, 4, 1]),
        (34, &[0, 0, 0, 0, 2, 16, 1 << 4, 12, 0, 9, 0o644]),
        (6, &[2, 1, 0x6100_0000, 2, 0, 2, 4, 0o755]),
        (26, &[0, 0, 0, 0, 4096, 4096, 1, 2]),
        (55, &[1, 0, 0, 0, 0]),
    ] {
        let words = words.iter().flat_map(|word: &u32| word.to_be_bytes());
        seeds.push([op].into_iter().chain(words).collect());
    }
    // An access control list of version 4.1: the owner, a user, a group that is denied something.
    let owner = &b"OWNER@\0\0"[..];
    let mut list = vec![0, 0, 0, 3];
    for (words, who) in [
        ([0, 0, 7, 6], owner),
        ([1, 0xb, 1, 2], &b"77\0\0"[..]),
        ([0, 0x4b, 0x21, 4], &b"1001"[..]),
    ] {
        list.extend(words.iter().flat_map(|word: &u32| word.to_be_bytes()));
        list.extend_from_slice(who);
    }
    seeds.push(list);
    for folder in std::fs::read_dir(crates).expect("the crates").flatten() {
        for file in std::fs::read_dir(folder.path().join("golden")).into_iter().flatten().flatten()
        {
            let mut bytes = std::fs::read(file.path()).expect("a golden image");
            bytes.truncate(64 << 10);
            seeds.push(bytes);
        }
    }
    seeds
}

fn damage(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.below(6) {
        match random.below(5) {
            0 if !bytes.is_empty() => {
                let at = random.index(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            1 if !bytes.is_empty() => {
                let at = random.index(bytes.len());
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.index(5)];
            }
            2 => bytes.truncate(random.index(bytes.len() + 1)),
            3 => bytes.extend((0..random.below(80)).map(|_| random.next_u64() as u8)),
            _ if bytes.len() >= 8 => {
                let at = random.index(bytes.len() - 7);
                let value = [0, u64::MAX, u64::from(u32::MAX), 1 << 31][random.index(4)];
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            _ => {}
        }
    }
    bytes
}

#[test]
fn no_parser_panics_on_damaged_bytes() {
    let all: &[fn(&[u8])] = &[
        targets::nbd_handshake,
        targets::nbd_request,
        targets::fuse_request,
        targets::nfs_call,
        targets::nfs4_compound,
        targets::pack,
        targets::blob_and_node,
        targets::moved_note,
        targets::pointer_text,
        targets::record,
        targets::segment,
        targets::peer,
        targets::copies,
        targets::warm_arena,
        targets::words,
    ];
    let seeds = seeds();
    let mut random = Random::new(0x5eed);
    for _ in 0..ROUNDS {
        let seed = &seeds[random.index(seeds.len())];
        let bytes = damage(seed, &mut random);
        for target in all {
            target(&bytes);
        }
    }
}
