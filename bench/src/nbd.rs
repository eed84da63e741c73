//! A small NBD client that records the time of each reply.

use anyhow::{Context, Result, bail};
use rekindle_base::random::Random;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a request.
pub const BLOCK: usize = 4096;

/// A connection to an export.
pub struct Client {
    stream: UnixStream,
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
    /// Connects to an export by the option GO.
    pub fn connect(socket: &Path, export: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).context("connect")?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let greeted = Instant::now();
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            bail!("not an NBD server");
        }
        stream.write_all(&3u32.to_be_bytes())?;
        let length = u32::try_from(export.len())?;
        let mut go = b"IHAVEOPT".to_vec();
        go.extend(7u32.to_be_bytes());
        go.extend((length + 6).to_be_bytes());
        go.extend(length.to_be_bytes());
        go.extend(export.as_bytes());
        go.extend([0, 0]);
        stream.write_all(&go)?;
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header)?;
            let kind = u32::from_be_bytes(header[12..16].try_into()?);
            let mut data = vec![0; u32::from_be_bytes(header[16..20].try_into()?) as usize];
            stream.read_exact(&mut data)?;
            match kind {
                1 => return Ok(Self { stream, greeted, opened: Instant::now() }),
                3 => {}
                _ => bail!("the server refuses '{export}': {}", String::from_utf8_lossy(&data)),
            }
        }
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
        let mut request = Vec::new();
        encode(&mut request, 0, 0, offset);
        self.stream.write_all(&request)?;
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        slot_of(&header)?;
        let mut data = vec![0; BLOCK];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Writes the same block at each of these places, some at a time.
    pub fn write_each(&mut self, offsets: &[u64], block: &[u8; BLOCK]) -> Result<()> {
        const AT_A_TIME: usize = 64;
        let mut requests = Vec::new();
        for part in offsets.chunks(AT_A_TIME) {
            requests.clear();
            for &offset in part {
                encode(&mut requests, 1, 0, offset);
                requests.extend(block);
            }
            self.stream.write_all(&requests)?;
            for _ in part {
                let mut header = [0; 16];
                self.stream.read_exact(&mut header)?;
                slot_of(&header)?;
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
                encode(&mut requests, 1, slot as u64, random.below(blocks) * BLOCK as u64);
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
            self.stream.write_all(&requests)?;
            let count = self.stream.read(&mut buffer)?;
            anyhow::ensure!(count > 0, "the server hung up");
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

fn encode(into: &mut Vec<u8>, command: u16, cookie: u64, offset: u64) {
    into.extend(0x2560_9513_u32.to_be_bytes());
    into.extend(0u16.to_be_bytes());
    into.extend(command.to_be_bytes());
    into.extend(cookie.to_be_bytes());
    into.extend(offset.to_be_bytes());
    into.extend((BLOCK as u32).to_be_bytes());
}

fn slot_of(header: &[u8; 16]) -> Result<usize> {
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if word(0) != 0x6744_6698 {
        bail!("not a simple reply: {header:02x?}");
    }
    if word(4) != 0 {
        bail!("the server answers error {}", word(4));
    }
    Ok(word(12) as usize)
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
