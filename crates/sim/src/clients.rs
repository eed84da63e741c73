//! The actors of a life: clients, each on its own region of a volume, and a sweep beside them.

use crate::boot::{Served, kind_of};
use crate::end::Begun;
use crate::region::{Operation, SharedRegion};
use crate::subject::{Attached, REGION_BYTES, Subject, What};
use crate::trouble::Trouble;
use crate::{heard, map, records};
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_base::units::KIB;
use rekindle_base::{Kind, SegmentId};
use rekindle_block::Device;
use rekindle_env::{BoxFuture, Env};
use rekindle_front::http::Api;
use rekindle_staging::{Staged, Written};
use rekindle_volume::Error;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Number of different contents of whole blocks. They are few, so that contents repeat, also while
/// a sweep is about to delete the pack that has them.
const PATTERNS: u64 = 6;

/// Sweeps of a life that follow upon one another with a short pause.
const SWEEPS_QUICK: u64 = 100;
/// How long a write may wait before the node's health must give the reason.
const WAITS_UNSAID: Duration = Duration::from_secs(5);
/// How long a write may still take when the wait was over just now: it needs no more than the disk.
const WAIT_ENDS: Duration = Duration::from_secs(1);
/// The troubles that are such reasons.
const WAITS: [&str; 6] = [
    "clients-wait",
    "log-failed",
    "log-full",
    "volume-late",
    "volume-not-destaged",
    "volume-stalled",
];
/// Times that a client repeats a request that is refused as damaged.
const TRIES_MAX: u64 = 20;

/// The state that all actors of a life share.
pub struct Table {
    subjects: Vec<Subject>,
    begun: Begun,
    /// Clients that have not ended.
    busy: AtomicU64,
    env: Env,
    trouble: Trouble,
    /// Whether a client has given up.
    refused: AtomicBool,
    /// The segment that each file of the log held last.
    files: Mutex<BTreeMap<u32, SegmentId>>,
}

/// Reason for which a client does not go on.
enum Broken {
    /// The client was told an error.
    Told(Kind, String),
    /// A promise to the client does not hold.
    Promise(String),
}

impl Broken {
    fn told(what: &str) -> impl FnOnce(Error) -> Self {
        move |error| Broken::Told(error.kind(), format!("{what}: {error}"))
    }
}

impl Table {
    /// Requests of a client in a whole life.
    pub const REQUESTS: u64 = 16;

    /// Creates the table of a life with these volumes.
    #[must_use]
    pub fn new(env: Env, subjects: Vec<Subject>, begun: Begun, trouble: Trouble) -> Arc<Self> {
        let clients: usize = subjects.iter().map(|subject| subject.regions.len()).sum();
        let busy = AtomicU64::new(clients as u64);
        Arc::new(Self {
            subjects,
            begun,
            busy,
            env,
            trouble,
            refused: AtomicBool::new(false),
            files: Mutex::default(),
        })
    }

    /// Returns the trouble of this life.
    #[must_use]
    pub fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    /// Whether a client has given up.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether a client has not ended.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Returns the volumes.
    #[must_use]
    pub fn subjects(&self) -> &[Subject] {
        &self.subjects
    }

    /// Whether a map is among the volumes.
    #[must_use]
    pub fn has_map(&self) -> bool {
        self.subjects.iter().any(|subject| subject.what == What::Map)
    }

    /// Runs a client of a volume from its first to its last request.
    pub async fn client(
        self: Arc<Self>,
        (at, client): (usize, usize),
        (served, volume): (Served, Attached),
        mut dice: Random,
    ) -> Result<(), String> {
        let Subject { what, regions } = &self.subjects[at];
        for _ in 0..Self::REQUESTS {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let asked = match &volume {
                Attached::Disk(device) => {
                    self.request((regions, client), (&served, device), &mut dice).await
                }
                Attached::Map(_) => {
                    self.request_of_map((regions, client), (&served, &volume), &mut dice).await
                }
            };
            match asked {
                Ok(()) => {}
                // Its next client finds the map in service again.
                Err(Broken::Told(Kind::Unavailable, _)) if volume.has_begun_again() => {
                    self.refused.store(true, Ordering::Relaxed);
                    break;
                }
                // The client has been told the error, and does not know the fate of its last
                // change.
                Err(Broken::Told(kind, _)) if self.trouble.ends(kind) => {
                    heard::note("a client was refused");
                    self.refused.store(true, Ordering::Relaxed);
                    break;
                }
                Err(Broken::Told(_, why) | Broken::Promise(why)) => {
                    return Err(format!("client {client} of the {}: {why}", what.name()));
                }
            }
            self.look(volume.staged(), &served);
        }
        self.busy.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    async fn request(
        &self,
        (regions, client): (&[SharedRegion], usize),
        (served, device): (&Served, &Device),
        dice: &mut Random,
    ) -> Result<(), Broken> {
        let region = &regions[client];
        let staged = device.handle().staged();
        let start = dice.below(REGION_BYTES / 512) * 512;
        let longest = if dice.below(10) == 0 { 150 * KIB } else { 12 * KIB };
        let length = (512 * (1 + dice.below(longest / 512))).min(REGION_BYTES - start);
        let at = client as u64 * REGION_BYTES + start;
        match dice.below(12) {
            0 => self.flush(regions, staged).await,
            1 => {
                let read = || -> BoxFuture<'_, _> {
                    Box::pin(async move {
                        let mut found = vec![0; length as usize];
                        device.read(at, &mut found).await.map(|()| found)
                    })
                };
                let found = self.patiently(staged, read).await;
                let found = found.map_err(Broken::told("read"))?;
                let region = region.lock();
                let expected = &region.expected()[start as usize..(start + length) as usize];
                if found == expected {
                    return Ok(());
                }
                Err(Broken::Promise(format!("it does not read at {start} what it wrote")))
            }
            2..=3 => {
                let bytes = vec![0; length as usize];
                let (trim, durable) = (dice.below(2) == 0, dice.below(4) == 0);
                self.change(
                    (region, served),
                    staged,
                    Operation { start: start as usize, bytes },
                    |_| device.clear(at, length, trim, durable).map(|written| (written, durable)),
                )
                .await
            }
            4..=6 => {
                let block = crate::oracle::BLOCK as u64;
                let start = start / block * block;
                let pattern = 1 + dice.below(PATTERNS);
                let bytes = (0..block).map(|n| ((n * n * pattern) >> 4) as u8 | 1).collect();
                let at = client as u64 * REGION_BYTES + start;
                let durable = dice.below(4) == 0;
                self.change(
                    (region, served),
                    staged,
                    Operation { start: start as usize, bytes },
                    |bytes| device.write(at, bytes, durable).map(|written| (written, durable)),
                )
                .await
            }
            _ => {
                let fill = dice.next_u64();
                let byte = |n: u64| (fill.wrapping_add(n * n) >> 3) as u8 | 1;
                let bytes = (0..length).map(byte).collect();
                let durable = dice.below(4) == 0;
                self.change(
                    (region, served),
                    staged,
                    Operation { start: start as usize, bytes },
                    |bytes| device.write(at, bytes, durable).map(|written| (written, durable)),
                )
                .await
            }
        }
    }

    async fn request_of_map(
        &self,
        (regions, client): (&[SharedRegion], usize),
        (served, volume): (&Served, &Attached),
        dice: &mut Random,
    ) -> Result<(), Broken> {
        let (region, staged) = (&regions[client], volume.staged());
        match dice.below(12) {
            0 => self.flush(regions, staged).await,
            1..=2 => {
                let found = self.patiently(staged, || Box::pin(volume.read(client))).await;
                if found.map_err(Broken::told("read"))? == region.lock().expected() {
                    return Ok(());
                }
                Err(Broken::Promise("it does not read what it wrote".to_owned()))
            }
            _ => {
                let (ops, bytes) = records::draw(region.lock().expected(), client, dice);
                let durable = dice.below(4) == 0;
                if ops.len() > 1 {
                    heard::note("map: groups");
                }
                let submit = |_: &[u8]| Ok((map::submit(staged, &ops, durable), durable));
                self.change((region, served), staged, Operation { start: 0, bytes }, submit).await
            }
        }
    }

    /// Flushes a volume, which covers every change that is acknowledged by now, to any client.
    async fn flush(&self, regions: &[SharedRegion], staged: &Staged) -> Result<(), Broken> {
        let marks: Vec<_> = regions.iter().map(|region| region.lock().mark()).collect();
        let flush = || -> BoxFuture<'_, Result<(), Error>> {
            Box::pin(async { Ok(staged.flush().await?) })
        };
        self.patiently(staged, flush).await.map_err(Broken::told("flush"))?;
        for (region, mark) in regions.iter().zip(marks) {
            region.lock().flushed(mark);
        }
        Ok(())
    }

    /// Repeats a request as long as the trouble of this life explains the refusal.
    async fn patiently<'a, T>(
        &self,
        staged: &Staged,
        ask: impl Fn() -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask().await {
                // A volume that has gone out of service stays so: more tries do not help.
                Err(error) if staged.serves().is_err() => return Err(error),
                Err(error) if !error.kind().is_retryable() && tries > TRIES_MAX => {
                    return Err(error);
                }
                Err(error) if self.trouble.explains(error.kind()) => {
                    heard::note("refused for a while");
                    self.env.sleep(Duration::from_millis(50)).await;
                }
                answer => return answer,
            }
        }
    }

    /// Makes a change, from its submission to its acknowledgement.
    async fn change(
        &self,
        (region, served): (&SharedRegion, &Served),
        staged: &Staged,
        operation: Operation,
        submit: impl FnOnce(&[u8]) -> Result<(Written, bool), Error>,
    ) -> Result<(), Broken> {
        region.lock().submit(&operation);
        let before = staged.backlog().serial;
        let (written, durable) = submit(&operation.bytes).map_err(Broken::told("a change"))?;
        let serial = staged.backlog().serial;
        if serial > before {
            region.lock().order(serial);
        }
        match written {
            Written::Acked => {}
            Written::NeedsSync(ticket) => {
                let synced = staged.sync(ticket).await.map_err(Error::from);
                synced.map_err(Broken::told("sync"))?;
            }
            Written::Pending(later) => {
                heard::note("acknowledged later");
                let ended = self.attend(served, staged, later).await?;
                let ended = ended.map_err(Error::from);
                ended.map_err(Broken::told("a delayed change"))?;
            }
        }
        region.lock().acknowledge(durable, served.log.view().head.segment);
        Ok(())
    }

    /// Waits for a change, and checks that the node's health gives the reason for a long wait.
    async fn attend<T>(
        &self,
        served: &Served,
        staged: &Staged,
        mut later: BoxFuture<'static, T>,
    ) -> Result<T, Broken> {
        loop {
            if let Ok(ended) = self.env.timeout(WAITS_UNSAID, &mut later).await {
                return Ok(ended);
            }
            let health = served.service.health();
            if health.troubles.iter().any(|trouble| WAITS.contains(&trouble.what.as_str())) {
                heard::note("a write waits, and it is said");
                continue;
            }
            // The reason may have ended a moment ago.
            if let Ok(ended) = self.env.timeout(WAIT_ENDS, &mut later).await {
                return Ok(ended);
            }
            let (backlog, seen) = (staged.backlog(), served.log.view());
            let why = format!("a write waits, and the health is {health:?}: {backlog:?}, {seen:?}");
            return Err(Broken::Promise(why));
        }
    }

    /// Counts the rare states that the node is in just now.
    fn look(&self, staged: &Staged, served: &Served) {
        let view = staged.view();
        if view.unindexed > 0 {
            heard::note("listing while writing");
        }
        if view.backlog.delay_ms > 0 {
            heard::note("flow delay");
        }
        if view.backlog.stalled.as_ref().is_some_and(|why| why.starts_with("the log is full")) {
            heard::note("log full");
        }
        let mut files = self.files.lock();
        for segment in served.log.view().segments {
            let Some(file) = segment.file else { continue };
            match files.insert(file, segment.segment) {
                Some(before) if before != segment.segment => heard::note("file reuse"),
                None if files.len() > 1 => heard::note("rollover"),
                _ => {}
            }
        }
    }

    /// Sweeps as long as there are clients.
    pub async fn sweeps(self: Arc<Self>, served: Served, mut dice: Random) -> Result<(), String> {
        let mut sweeps = 0;
        while self.is_busy() {
            match served.sweep().await {
                Ok(_) => {}
                Err(problem) if self.trouble.explains(kind_of(&problem)) => {
                    heard::note("sweep failed");
                }
                Err(problem) => return Err(format!("sweep: {}", problem.message)),
            }
            sweeps += 1;
            // A client may wait for long: at the quick rate, the sweeps of that time would take
            // most of the run.
            let unit = if sweeps < SWEEPS_QUICK { 1 } else { 100 };
            self.env.sleep(Duration::from_millis(unit * (1 + dice.below(20)))).await;
        }
        Ok(())
    }
}
