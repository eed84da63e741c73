//! Tests of the whole log: by hand, and by crashing it at random.

mod absent;
mod along;
mod crash;
mod cut;
mod damage;
mod door;
mod exhausted;
mod forged;
mod golden;
mod groups;
mod known_end;
mod plain;
mod release;
mod replica;
mod rollover;
mod unreadable;

use crate::{Append, Change, Config, Error, Log, Opened, Place, Position, Refused};
use rekindle_base::{Generation, Incarnation, NodeId, Serial, VolumeId};
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_warm::Arena;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const NODE: NodeId = NodeId([9; 16]);
pub(super) const SEGMENT: u32 = 32 << 10;
pub(super) const FOLDER: &str = "/flash";
pub(super) const ARENA: &str = "/memory/warm";

pub(super) fn world(seed: u64) -> World {
    World::new(seed, Faults::none())
}

pub(super) fn config(segments: u64) -> Config {
    Config {
        folder: PathBuf::from(FOLDER),
        node: NODE,
        flash_bytes: segments * u64::from(SEGMENT),
        flush_interval: Duration::from_millis(20),
    }
}

pub(super) async fn open_with(
    env: &Env,
    slots: usize,
    segments: u64,
) -> Result<(Log, Opened), Error> {
    let arena = Arena::open_sized(env, Path::new(ARENA), NODE, slots, SEGMENT)
        .expect("memory for the arena");
    Log::open(env, arena, config(segments), Incarnation(1)).await
}

pub(super) async fn open(env: &Env) -> (Log, Opened) {
    open_with(env, 4, 8).await.expect("the log opens")
}

pub(super) fn volume(number: u8) -> VolumeId {
    VolumeId([number; 16])
}

/// Bytes that identify their change.
pub(super) fn payload(volume: VolumeId, serial: u64, length: usize) -> Vec<u8> {
    let start = serial.to_le_bytes()[0].wrapping_mul(31) ^ serial.to_le_bytes()[1] ^ volume.0[0];
    let mut byte = start;
    let next = |_| {
        byte = byte.wrapping_mul(5).wrapping_add(7);
        byte
    };
    (0..length).map(next).collect()
}

pub(super) fn change(volume: VolumeId, serial: u64, payload: &[u8]) -> Append<'_> {
    let kind = match (payload.is_empty(), serial % 2) {
        (false, _) => Change::Write,
        (true, 0) => Change::Zero,
        (true, _) => Change::Trim,
    };
    Append {
        volume,
        generation: Generation(1),
        serial: Serial(serial),
        change: kind,
        joined: false,
        position: serial * 512,
        span: payload.len().max(1) as u64,
        payload,
    }
}

pub(super) async fn append(
    log: &Log,
    volume: VolumeId,
    serial: u64,
    length: usize,
) -> Result<(Position, Place), Error> {
    let bytes = payload(volume, serial, length);
    loop {
        match log.append(&[change(volume, serial, &bytes)]) {
            Ok((position, mut places)) => return Ok((position, places.remove(0))),
            Err(Refused::HeadFull) => log.roll(length).await?,
            Err(Refused::Malformed(why)) => panic!("{why}"),
        }
    }
}

/// The serials recovered of a volume, each verified against what was written.
pub(super) async fn recovered(log: &Log, volume: VolumeId) -> Vec<u64> {
    let mut serials = Vec::new();
    for one in log.unfinished(volume).await.expect("nothing is lost") {
        check(volume, one.serial.0, &one.place).await;
        assert_eq!(one.position, one.serial.0 * 512);
        serials.push(one.serial.0);
    }
    serials
}

pub(super) async fn check(volume: VolumeId, serial: u64, place: &Place) {
    let expected = payload(volume, serial, place.length() as usize);
    let mut bytes = vec![0; expected.len()];
    place.read(0, &mut bytes).await.expect("the payload is whole");
    assert_eq!(bytes, expected, "payload of {serial}");
}
