//! An NBD client that records the time of each reply.

use anyhow::{Context, Result, ensure};
use rekindle_base::random::Random;
use rekindle_nbd_client::wire::{self, Body, Head, command};
use rekindle_nbd_client::{Handshake, NbdClient};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a request.
pub const BLOCK: usize = 4096;
/// Longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to an export.
pub struct Client {
    nbd: NbdClient,
    /// Time of the server's greeting.
    pub greeted: Instant,
    /// Time at which the server said that the export is open.
    pub opened: Instant,
}

/// A reply.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    /// Time since the begin of the load.
    pub at: Duration,
    pub latency: Duration,
}

/// End of a load.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    Passed(Duration),
    Sent(usize),
}

impl Client {
    /// Connects to an export.
    pub fn connect(socket: &Path, export: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("connect")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let handshake = Handshake::new(stream)?;
        let greeted = Instant::now();
        let nbd = handshake.go(export)?;
        Ok(Self { nbd, greeted, opened: Instant::now() })
    }

    /// Connects again and again until a server answers.
    pub fn connect_soon(socket: &Path, export: &str, patience: Duration) -> Result<Self> {
        let begin = Instant::now();
        loop {
            match Self::connect(socket, export) {
                Ok(client) => return Ok(client),
                Err(error) if begin.elapsed() > patience => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// Reads one block.
    pub fn read(&mut self, offset: u64) -> Result<Vec<u8>> {
        Ok(self.nbd.read(offset, BLOCK)?)
    }

    /// Writes the same block at each of these places, some at a time.
    pub fn write_each(&mut self, offsets: &[u64], block: &[u8; BLOCK]) -> Result<()> {
        const AT_A_TIME: usize = 64;
        for part in offsets.chunks(AT_A_TIME) {
            for &offset in part {
                self.nbd.request(command::WRITE, 0, 0, offset, BLOCK as u32, block);
            }
            self.nbd.send()?;
            for _ in part {
                let error = self.nbd.reply()?.error;
                ensure!(error == 0, "the server answers error {error}");
            }
        }
        Ok(())
    }

    /// Fills the export from begin to end with noise, no two blocks of which are alike.
    pub fn fill(&mut self, bytes: u64, seed: u64) -> Result<()> {
        const PIECE: usize = 256 << 10;
        const AT_A_TIME: usize = 8;
        let mut random = Random::new(seed);
        let offsets: Vec<u64> = (0..bytes).step_by(PIECE).collect();
        for part in offsets.chunks(AT_A_TIME) {
            for &offset in part {
                let noise = random.bytes(PIECE.min((bytes - offset) as usize));
                let length = noise.len() as u32;
                self.nbd.request(command::WRITE, 0, 0, offset, length, &noise);
            }
            self.nbd.send()?;
            for _ in part {
                let error = self.nbd.reply()?.error;
                ensure!(error == 0, "the server answers error {error}");
            }
        }
        Ok(())
    }

    /// Writes blocks at random places, `depth` at a time, and returns the time of each reply.
    pub fn write_randomly(
        &mut self,
        depth: usize,
        blocks: u64,
        seed: u64,
        until: Until,
    ) -> Result<Vec<Reply>> {
        let mut random = Random::new(seed);
        let noise = random.bytes(1 << 20);
        let begin = Instant::now();
        let mut sent_at = vec![begin; depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let mut replies = Vec::new();
        let mut sent = 0;
        let mut requests = Vec::new();
        let mut received = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let goes_on = |sent: usize| match until {
                Until::Passed(time) => begin.elapsed() < time,
                Until::Sent(count) => sent < count,
            };
            requests.clear();
            while goes_on(sent)
                && let Some(slot) = free.pop()
            {
                let at = random.below(blocks) * BLOCK as u64;
                requests.extend(wire::header(command::WRITE, 0, slot as u64, at, BLOCK as u32));
                // Blocks are numbered, so that no two are alike.
                let from = random.below((noise.len() - BLOCK) as u64) as usize;
                requests.extend((seed ^ sent as u64).to_le_bytes());
                requests.extend(&noise[from..from + BLOCK - 8]);
                sent_at[slot] = Instant::now();
                sent += 1;
            }
            if free.len() == depth {
                return Ok(replies);
            }
            self.nbd.raw().write_all(&requests)?;
            let count = self.nbd.raw().read(&mut buffer)?;
            ensure!(count > 0, "the server hung up");
            received.extend_from_slice(&buffer[..count]);
            let now = Instant::now();
            let (whole, rest) = received.as_chunks::<16>();
            for header in whole {
                let slot = slot_of(header)?;
                let sent_at = *sent_at.get(slot).context("a reply to nothing")?;
                replies.push(Reply { at: now - begin, latency: now - sent_at });
                free.push(slot);
            }
            received = rest.to_vec();
        }
    }
}

/// Decodes the reply to a write, which must have succeeded; returns its cookie.
fn slot_of(header: &[u8; 16]) -> Result<usize> {
    match wire::reply_head(header) {
        Some(Head { cookie, body: Body::Simple { error: 0 } }) => Ok(cookie as usize),
        other => anyhow::bail!("the server answers {other:?}"),
    }
}

/// Returns the latency below which `percent` of the replies stay.
pub fn percentile<'a>(replies: impl IntoIterator<Item = &'a Reply>, percent: f64) -> Duration {
    let mut latencies: Vec<Duration> = replies.into_iter().map(|reply| reply.latency).collect();
    latencies.sort_unstable();
    let at = (latencies.len() as f64 * percent / 100.0) as usize;
    latencies.get(at.min(latencies.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_from_the_fastest() {
        let replies: Vec<Reply> = (1..=100)
            .map(|ms| Reply { at: Duration::ZERO, latency: Duration::from_millis(ms) })
            .collect();
        assert_eq!(percentile(&replies, 50.0), Duration::from_millis(51));
        assert_eq!(percentile(&replies, 99.0), Duration::from_millis(100));
        assert_eq!(percentile(&replies, 100.0), Duration::from_millis(100));
        assert_eq!(percentile(&[], 99.0), Duration::ZERO);
    }
}
