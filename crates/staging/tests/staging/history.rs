//! The submitted changes in serial order, and the acknowledged ones among them: the judge of a
//! recovery.

use crate::bed::done;
use parking_lot::Mutex;
use rekindle_env::Env;
use rekindle_staging::{Error, Staged};
use std::sync::Arc;

#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// The range reads as this serial's stamp.
    Write { position: u64, span: u64 },
    /// The range reads as zeros.
    Clear { position: u64, span: u64 },
}

#[derive(Default)]
pub struct History {
    /// By serial, from 1.
    pub ops: Vec<Op>,
    /// Highest serial that was acknowledged.
    pub acknowledged: u64,
    /// Power was cut since a recovery was last checked.
    pub power_was_cut: bool,
    /// Bytes submitted in this life.
    pub bytes: u64,
    /// Highest serial known to be durable by FLUSH or FUA.
    pub flushed: u64,
}

pub type Shared = Arc<Mutex<History>>;

/// The byte at position `at` of a write with this serial.
fn stamp(serial: u64, at: u64) -> u8 {
    let mixed =
        (serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xd6e8_feb8_6659_fd93)) >> 32;
    // Never zero, so that it cannot be taken for a hole.
    (mixed % 255) as u8 + 1
}

pub fn payload(serial: u64, position: u64, span: u64) -> Vec<u8> {
    (position..position + span).map(|at| stamp(serial, at)).collect()
}

impl History {
    /// The volume after the first `serial` changes.
    pub fn state(&self, serial: u64, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; size as usize];
        for (index, op) in self.ops[..serial as usize].iter().enumerate() {
            match *op {
                Op::Write { position, span } => bytes
                    [position as usize..(position + span) as usize]
                    .copy_from_slice(&payload(index as u64 + 1, position, span)),
                Op::Clear { position, span } => {
                    bytes[position as usize..(position + span) as usize].fill(0)
                }
            }
        }
        bytes
    }

    /// Continues from the state that a recovery has shown.
    pub fn restart_at(&mut self, serial: u64) {
        self.ops.truncate(serial as usize);
        self.bytes = 0;
        self.power_was_cut = false;
        self.acknowledged = serial;
        self.flushed = self.flushed.min(serial);
    }
}

/// Submits one random change and waits for it; notes both events.
pub async fn change(
    env: &Env,
    volume: &Arc<Staged>,
    history: &Shared,
    size: u64,
) -> Result<(), Error> {
    let random = env.random_u64();
    let durable = random.is_multiple_of(7);
    let unit = 512;
    let position = (random >> 8) % (size / unit) * unit;
    let blocks = match (random >> 40) % 4 {
        0 => 1,
        1 => 8,
        2 => 1 + (random >> 44) % 40,
        _ => 3,
    };
    let span = (blocks * unit).min(size - position);
    let (written, serial) = {
        // No other task runs between these calls: there is one thread.
        let mut history = history.lock();
        history.bytes += span + 64;
        let serial = volume.backlog().serial + 1;
        assert_eq!(serial, history.ops.len() as u64 + 1, "serials have no gaps");
        let clear = (random >> 3).is_multiple_of(8);
        let written = match clear {
            true => volume.clear(position, span, random & 2 == 0, durable),
            false => volume.write(position, &payload(serial, position, span), durable),
        };
        if volume.backlog().serial == serial {
            history.ops.push(match clear {
                true => Op::Clear { position, span },
                false => Op::Write { position, span },
            });
            (written, Some(serial))
        } else {
            (written, None)
        }
    };
    done(volume, written).await?;
    let mut history = history.lock();
    let serial = serial.expect("no change takes the slow way in this test");
    history.acknowledged = history.acknowledged.max(serial);
    if durable {
        history.flushed = history.flushed.max(serial);
    }
    Ok(())
}
