//! A writer that checks the server's promises.

use anyhow::{Result, bail};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use rekindle_nbd_client::wire::{FUA, command};

/// Bytes of the blocks that the checking writer writes.
pub const BLOCK: usize = 4096;

/// Mark in place of a block: the write was lost in a crash before it was acknowledged.
const LOST: u64 = u64::MAX;

/// The writes that were sent, and which of them were acknowledged: a crash is judged by these. The
/// simulation, which knows the serials, judges whether the surviving changes are a prefix.
#[derive(Default)]
pub struct Promises {
    /// Block of the n-th write (numbered from 1).
    sent: Vec<u64>,
    acknowledged: Vec<bool>,
    blocks: u64,
}

impl Promises {
    /// Creates the promises of a volume whose first `blocks` blocks are used.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self { sent: Vec::new(), acknowledged: Vec::new(), blocks }
    }

    /// Counts the acknowledged writes.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.sent
            .iter()
            .zip(&self.acknowledged)
            .filter(|(block, done)| **done && **block != LOST)
            .count()
    }

    /// Counts the writes that were sent.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Drops the promises for all writes after the n-th: each may be there or not.
    pub fn release_after(&mut self, number: usize) {
        self.acknowledged[number..].fill(false);
    }

    /// Writes random blocks at `depth` until `stop` says so or the connection breaks. A server
    /// error is a failure. No two writes in flight are to the same block, since NBD promises no
    /// order of these.
    pub fn write_until(
        &mut self,
        client: &mut NbdClient,
        depth: usize,
        random: &mut Random,
        mut stop: impl FnMut(usize) -> bool,
    ) -> Result<()> {
        let mut in_flight: Vec<u64> = Vec::new();
        loop {
            let stopping = stop(self.sent.len());
            while !stopping && in_flight.len() < depth {
                let block = random.below(self.blocks);
                if in_flight.contains(&block) {
                    continue;
                }
                self.sent.push(block);
                self.acknowledged.push(false);
                let number = self.sent.len() as u64;
                let bytes = payload(number, block);
                // Every fourth write is durable by itself; the others are synced in groups.
                let flags = if number.is_multiple_of(4) { FUA } else { 0 };
                let at = block * BLOCK as u64;
                client.request(command::WRITE, flags, number, at, BLOCK as u32, &bytes);
                if client.send().is_err() {
                    return Ok(());
                }
                in_flight.push(block);
            }
            if in_flight.is_empty() {
                return Ok(());
            }
            let Ok(reply) = client.reply() else { return Ok(()) };
            if reply.error != 0 {
                bail!("write {} failed with error {}", reply.cookie, reply.error);
            }
            let index = reply.cookie as usize - 1;
            self.acknowledged[index] = true;
            in_flight.retain(|&block| block != self.sent[index]);
        }
    }

    /// Checks after a crash that each block shows its last acknowledged write, or a later one that
    /// was in flight. Takes the blocks as the new truth. Returns how many writes in flight were
    /// lost.
    pub fn check(&mut self, client: &mut NbdClient) -> Result<usize> {
        let mut promised = vec![0u64; self.blocks as usize];
        let done = |index: &usize| self.acknowledged[*index] && self.sent[*index] != LOST;
        for index in (0..self.sent.len()).filter(done) {
            let block = self.sent[index];
            promised[block as usize] = index as u64 + 1;
        }
        let chunk = 64;
        for first in (0..self.blocks).step_by(chunk) {
            let count = chunk.min((self.blocks - first) as usize);
            let data = client.read(first * BLOCK as u64, count * BLOCK)?;
            for (index, bytes) in data.chunks(BLOCK).enumerate() {
                let block = first + index as u64;
                let visible = self.identify(bytes, block)?;
                let promised = promised[block as usize];
                if visible < promised {
                    bail!(
                        "block {block} shows write {visible}; write {promised} there was acknowledged"
                    );
                }
                if visible > promised {
                    self.acknowledged[visible as usize - 1] = true;
                }
            }
        }
        let lost = self.acknowledged.iter().filter(|&&done| !done).count();
        // A lost write's number is not used again: its bytes must never turn up later.
        for (index, done) in self.acknowledged.iter_mut().enumerate() {
            if !*done {
                *done = true;
                self.sent[index] = LOST;
            }
        }
        Ok(lost)
    }

    fn identify(&self, bytes: &[u8], block: u64) -> Result<u64> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(0);
        }
        let number = u64::from_le_bytes(bytes[..8].try_into()?);
        let known = number > 0 && self.sent.get(number as usize - 1) == Some(&block);
        if !known || bytes != payload(number, block) {
            bail!("block {block} holds bytes that nobody wrote: {:02x?}", &bytes[..32]);
        }
        Ok(number)
    }
}

/// Builds the bytes of the n-th write, to this block.
fn payload(number: u64, block: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(block.to_le_bytes());
    bytes.extend(Random::new(number ^ block << 40).bytes(BLOCK - 16));
    bytes
}
