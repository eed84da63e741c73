//! A small blocking NBD client, and a writer that checks the server's promises.

use anyhow::{Context, Result, bail};
use rekindle_base::random::Random;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes of the blocks that the checking writer writes.
pub const BLOCK: usize = 4096;

/// A connection to an export.
pub struct NbdClient {
    stream: UnixStream,
    pub size: u64,
}

/// A reply: the cookie of the request, and its error (0 is none).
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
}

impl NbdClient {
    /// Connects to an export by the option GO.
    pub fn connect(socket: &Path, export: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).context("connect")?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            bail!("not an NBD server");
        }
        stream.write_all(&3u32.to_be_bytes())?;
        let mut go = b"IHAVEOPT".to_vec();
        go.extend(7u32.to_be_bytes());
        go.extend((export.len() as u32 + 6).to_be_bytes());
        go.extend((export.len() as u32).to_be_bytes());
        go.extend(export.as_bytes());
        go.extend([0, 0]);
        stream.write_all(&go)?;
        let mut size = 0;
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header)?;
            let kind = u32::from_be_bytes(header[12..16].try_into()?);
            let mut data = vec![0; u32::from_be_bytes(header[16..20].try_into()?) as usize];
            stream.read_exact(&mut data)?;
            match kind {
                1 => return Ok(Self { stream, size }),
                3 if data[..2] == [0, 0] => size = u64::from_be_bytes(data[2..10].try_into()?),
                3 => {}
                _ => bail!("the server refuses {export}: {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    /// Sends a request without waiting.
    pub fn send(
        &mut self,
        command: u16,
        cookie: u64,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Result<()> {
        self.send_with(0, command, cookie, offset, length, payload)
    }

    /// Sends a request with flags ([`FUA`]).
    pub fn send_with(
        &mut self,
        flags: u16,
        command: u16,
        cookie: u64,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(28 + payload.len());
        bytes.extend(0x2560_9513_u32.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(payload);
        self.stream.write_all(&bytes)?;
        Ok(())
    }

    /// Waits for the next reply (simple replies only).
    pub fn reply(&mut self) -> Result<Reply> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        if header[..4] != 0x6744_6698_u32.to_be_bytes() {
            bail!("not a simple reply: {header:02x?}");
        }
        let error = u32::from_be_bytes(header[4..8].try_into()?);
        Ok(Reply { cookie: u64::from_be_bytes(header[8..16].try_into()?), error })
    }

    /// Writes, and waits for the reply.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.send(1, offset, offset, data.len() as u32, data)?;
        self.expect_success()
    }

    /// Reads, and waits for the reply.
    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.send(0, offset, offset, length as u32, &[])?;
        self.expect_success()?;
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Flushes, and waits for the reply.
    pub fn flush(&mut self) -> Result<()> {
        self.send(3, 0, 0, 0, &[])?;
        self.expect_success()
    }

    /// Trims, and waits for the reply.
    pub fn trim(&mut self, offset: u64, length: u32) -> Result<()> {
        self.send(4, 0, offset, length, &[])?;
        self.expect_success()
    }

    /// Returns the stream, for tests of bad clients.
    pub fn raw(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    fn expect_success(&mut self) -> Result<()> {
        let reply = self.reply()?;
        if reply.error != 0 {
            bail!("the server answers error {}", reply.error);
        }
        Ok(())
    }
}

/// The flag of a write whose reply says that it is durable.
pub const FUA: u16 = 1;

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
                if client.send_with(flags, 1, number, at, BLOCK as u32, &bytes).is_err() {
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
