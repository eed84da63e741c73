//! Requests in flight, an oracle of what was acknowledged, and the reading back.
#![expect(
    clippy::disallowed_methods,
    reason = "the drill measures real time from outside the daemon"
)]

use super::block::{self, BYTES, BlockFound};
use crate::client::Interrupts;
use crate::nbd;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_env::Address;
use rekindle_nbd_client::NbdClient;
use rekindle_nbd_client::wire::command;
use rekindle_terminal::failure::{Failure, Outcome};
use serde::Serialize;
use std::io;
use std::time::{Duration, Instant};

/// Time without an acknowledgement after which the daemon is taken as gone for good.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(200);
/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(2);
/// Findings that are reported one by one.
const FINDINGS_KEPT: usize = 20;

/// A request in flight, the only one of its place.
#[derive(Debug, Clone, Copy)]
struct Flight {
    block: u64,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// The write of this place with this number.
    Write(u64),
    Read,
}

/// The result of the reading back.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verdict {
    /// Places read.
    pub checked: u64,
    /// Places whose last acknowledged write is missing.
    pub lost: u64,
    pub findings: Vec<String>,
}

impl Verdict {
    fn add(&mut self, block: u64, finding: &str) {
        self.lost += 1;
        if self.findings.len() < FINDINGS_KEPT {
            self.findings.push(format!("block {block}: {finding}"));
        }
    }
}

/// The composition of a load.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// Requests in flight.
    pub depth: u16,
    /// Percentage of the requests that are reads.
    pub reads_percent: u8,
}

/// A client that writes, reads and remembers.
pub struct Load {
    address: Address,
    volume: String,
    run: u64,
    noise: Random,
    reads_percent: u64,
    export: Option<NbdClient>,
    flights: Vec<Option<Flight>>,
    /// Count of the writes that were sent, by place.
    sent: Vec<u64>,
    /// Number of the last acknowledged write, by place.
    acknowledged: Vec<u64>,
    /// Writes acknowledged, and reads answered.
    pub writes: u64,
    pub reads: u64,
    /// Wrong contents that reads have found.
    wrong: Verdict,
    last: Instant,
    /// How often the connection has ended.
    pub connections_lost: u64,
    /// Longest time without an answer since [`Load::mark`].
    pub longest_gap: Duration,
}

impl Load {
    pub fn new(address: Address, volume: String, bytes: u64, mix: Mix, seed: u64) -> Self {
        let blocks = usize::try_from(bytes / BYTES as u64).unwrap_or(0);
        Self {
            address,
            volume,
            run: seed,
            noise: Random::new(seed),
            reads_percent: u64::from(mix.reads_percent),
            export: None,
            flights: vec![None; usize::from(mix.depth)],
            sent: vec![0; blocks],
            acknowledged: vec![0; blocks],
            writes: 0,
            reads: 0,
            wrong: Verdict::default(),
            last: Instant::now(),
            connections_lost: 0,
            longest_gap: Duration::ZERO,
        }
    }

    /// Forgets the longest gap.
    pub fn mark(&mut self) {
        self.longest_gap = Duration::ZERO;
    }

    /// Works for a time, whatever happens to the daemon; ends earlier when the user breaks the
    /// drill off.
    pub fn work_for(&mut self, time: Duration, interrupts: &mut Interrupts<'_>) -> Outcome {
        self.last = Instant::now();
        let (end, mut look) = (self.last + time, self.last);
        while Instant::now() < end {
            if Instant::now() >= look {
                look = Instant::now() + LOOK;
                if interrupts.interrupted() {
                    return Err(Failure::new("the drill was broken off").kind(Kind::Unavailable));
                }
            }
            let turn = self.turn(true);
            self.survive(turn)?;
        }
        Ok(())
    }

    /// Waits for the answers to the requests in flight.
    pub fn settle(&mut self) -> Outcome {
        while self.flights.iter().any(Option::is_some) {
            let turn = self.turn(false);
            self.survive(turn)?;
        }
        Ok(())
    }

    /// Fills up the flights, takes one answer.
    fn turn(&mut self, more: bool) -> io::Result<()> {
        let blocks = self.sent.len() as u64;
        let export = match &mut self.export {
            Some(export) => export,
            None => {
                let export = nbd::open(&self.address, &self.volume, PATIENCE)?;
                let export = self.export.insert(export);
                // These may have arrived or not: the same bytes to the same place do no harm.
                for (cookie, flight) in self.flights.iter().enumerate() {
                    if let Some(flight) = flight {
                        prepare(export, self.run, cookie, *flight);
                    }
                }
                export
            }
        };
        for cookie in 0..self.flights.len() {
            if !more || self.flights[cookie].is_some() {
                continue;
            }
            let block = self.noise.next_u64() % blocks;
            // One request in flight per place, so that the order of its versions is known.
            if self.flights.iter().flatten().any(|flight| flight.block == block) {
                continue;
            }
            let place = usize::try_from(block).unwrap_or(0);
            let what = if self.noise.next_u64() % 100 < self.reads_percent {
                What::Read
            } else {
                self.sent[place] += 1;
                What::Write(self.sent[place])
            };
            let flight = Flight { block, what };
            self.flights[cookie] = Some(flight);
            prepare(export, self.run, cookie, flight);
        }
        export.send()?;
        let reply = export.reply()?;
        let slot =
            usize::try_from(reply.cookie).ok().and_then(|cookie| self.flights.get_mut(cookie));
        let Some(flight) = slot.and_then(Option::take) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "an answer to nothing that was asked",
            ));
        };
        if reply.error != 0 {
            return Err(io::Error::from_raw_os_error(i32::try_from(reply.error).unwrap_or(5)));
        }
        let place = usize::try_from(flight.block).unwrap_or(0);
        match flight.what {
            What::Write(sequence) => {
                self.acknowledged[place] = sequence;
                self.writes += 1;
            }
            What::Read => {
                let mut bytes = [0; BYTES];
                export.data(&mut bytes)?;
                self.reads += 1;
                let found = block::judge(self.run, flight.block, &bytes);
                if let Some(finding) = judge(&found, self.acknowledged[place], self.sent[place]) {
                    self.wrong.add(flight.block, &finding);
                }
            }
        }
        let now = Instant::now();
        self.longest_gap = self.longest_gap.max(now - self.last);
        self.last = now;
        Ok(())
    }

    /// Forgives a lost connection, which the drill is about. An error reply is a failure, and so is
    /// a daemon that stays away.
    fn survive(&mut self, turn: io::Result<()>) -> Outcome {
        let Err(error) = turn else { return Ok(()) };
        self.connections_lost += u64::from(self.export.take().is_some());
        if error.raw_os_error().is_some_and(|code| code == 5 || code == 28) {
            return Err(Failure::new("a request failed: a client would have seen an I/O error")
                .because(error)
                .next("`rekindle status` says why")
                .kind(Kind::Io));
        }
        if self.last.elapsed() > PATIENCE || error.kind() == io::ErrorKind::InvalidData {
            return Err(Failure::new(format!(
                "the daemon did not come back within {} s",
                PATIENCE.as_secs()
            ))
            .because(error)
            .next("is `rekindle up` still running? It is what starts the worker again")
            .kind(Kind::Unavailable));
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// Reads back every place that was ever written. The verdict includes the findings of earlier
    /// reads.
    pub fn verify(&mut self) -> Outcome<Verdict> {
        let mut verdict = std::mem::take(&mut self.wrong);
        let failed =
            |error: io::Error| Failure::new("cannot read back what was written").because(error);
        let mut export = nbd::open(&self.address, &self.volume, PATIENCE).map_err(failed)?;
        let mut bytes = [0; BYTES];
        for place in 0..self.sent.len() {
            if self.sent[place] == 0 {
                continue;
            }
            let block = place as u64;
            export.request(command::READ, 0, block, block * BYTES as u64, BYTES as u32, &[]);
            export.send().map_err(failed)?;
            let reply = export.reply().map_err(failed)?;
            verdict.checked += 1;
            let found = if reply.error == 0 {
                export.data(&mut bytes).map_err(failed)?;
                block::judge(self.run, block, &bytes)
            } else {
                BlockFound::Strange(format!("reading fails with errno {}", reply.error))
            };
            if let Some(finding) = judge(&found, self.acknowledged[place], self.sent[place]) {
                verdict.add(block, &finding);
            }
        }
        Ok(verdict)
    }

    /// Flushes: every acknowledged write is on flash when this returns.
    pub fn flush(&mut self) -> Outcome {
        let failed = |error: io::Error| Failure::new("cannot flush").because(error);
        let mut export = nbd::open(&self.address, &self.volume, PATIENCE).map_err(failed)?;
        export.request(command::FLUSH, 0, 0, 0, 0, &[]);
        export.send().map_err(failed)?;
        match export.reply().map_err(failed)?.error {
            0 => Ok(()),
            error => Err(Failure::new(format!("a flush fails with errno {error}"))),
        }
    }
}

fn prepare(export: &mut NbdClient, run: u64, cookie: usize, flight: Flight) {
    let (cookie, offset) = (cookie as u64, flight.block * BYTES as u64);
    match flight.what {
        What::Write(sequence) => {
            let mut bytes = [0; BYTES];
            block::make(run, flight.block, sequence, &mut bytes);
            export.request(command::WRITE, 0, cookie, offset, BYTES as u32, &bytes);
        }
        What::Read => export.request(command::READ, 0, cookie, offset, BYTES as u32, &[]),
    }
}

/// Returns the fault of a place, if it has one: it must hold its last acknowledged write, or a
/// later one that was sent.
fn judge(found: &BlockFound, acknowledged: u64, sent: u64) -> Option<String> {
    match found {
        BlockFound::Sequence(sequence) if (acknowledged..=sent).contains(sequence) => None,
        BlockFound::Nothing if acknowledged == 0 => None,
        BlockFound::Sequence(sequence) => {
            Some(format!("write {sequence} is there, write {acknowledged} was acknowledged"))
        }
        BlockFound::Nothing => {
            Some(format!("nothing is there, write {acknowledged} was acknowledged"))
        }
        BlockFound::Strange(why) => Some(why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_acknowledged_can_be_lost() {
        assert_eq!(judge(&BlockFound::Sequence(3), 3, 4), None);
        assert_eq!(
            judge(&BlockFound::Sequence(4), 3, 4),
            None,
            "sent and not acknowledged may be there"
        );
        assert!(judge(&BlockFound::Sequence(2), 3, 4).is_some());
        assert!(judge(&BlockFound::Sequence(5), 3, 4).is_some(), "never sent");
        assert_eq!(judge(&BlockFound::Nothing, 0, 1), None);
        assert!(judge(&BlockFound::Nothing, 1, 1).is_some());
        assert!(judge(&BlockFound::Strange("torn".into()), 0, 1).is_some());
    }
}
