//! The actors of a life: clients, each on its own region of one volume, and a sweep beside them.

use crate::boot::{Served, kind_of};
use crate::dice::Dice;
use crate::end::Begun;
use crate::heard;
use crate::region::{Operation, SharedRegion};
use crate::trouble::Trouble;
use parking_lot::Mutex;
use rekindle_base::units::KIB;
use rekindle_base::{Kind, SegmentId};
use rekindle_block::Device;
use rekindle_env::{BoxFuture, Env};
use rekindle_front::http::Api;
use rekindle_staging::Written;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a client's region: several blocks, so that clients share none but changes share some.
pub const REGION_BYTES: u64 = 160 * KIB;
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

/// What all actors of a life share.
pub struct Table {
    regions: Vec<SharedRegion>,
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
    fn told(what: &str) -> impl FnOnce(rekindle_volume::Error) -> Self {
        move |error| Broken::Told(error.kind(), format!("{what}: {error}"))
    }
}

impl Table {
    /// Requests of a client in a whole life.
    pub const REQUESTS: u64 = 16;

    /// Creates the table of a life with these regions.
    #[must_use]
    pub fn new(env: Env, regions: Vec<SharedRegion>, begun: Begun, trouble: Trouble) -> Arc<Self> {
        let busy = AtomicU64::new(regions.len() as u64);
        Arc::new(Self {
            regions,
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

    /// Returns the number of clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.regions.len()
    }

    /// Runs a client from its first to its last request.
    pub async fn client(
        self: Arc<Self>,
        client: usize,
        (served, device): (Served, Device),
        mut dice: Dice,
    ) -> Result<(), String> {
        for _ in 0..Self::REQUESTS {
            self.begun.fetch_add(1, Ordering::Relaxed);
            match self.request(client, (&served, &device), &mut dice).await {
                Ok(()) => {}
                // The client has been told the error, and does not know the fate of its last
                // change.
                Err(Broken::Told(kind, _)) if self.trouble.ends(kind) => {
                    heard::note("a client was refused");
                    self.refused.store(true, Ordering::Relaxed);
                    break;
                }
                Err(Broken::Told(_, why) | Broken::Promise(why)) => {
                    return Err(format!("client {client}: {why}"));
                }
            }
            self.look(&device, &served);
        }
        self.busy.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    async fn request(
        &self,
        client: usize,
        (served, device): (&Served, &Device),
        dice: &mut Dice,
    ) -> Result<(), Broken> {
        let region = &self.regions[client];
        let start = dice.below(REGION_BYTES / 512) * 512;
        let longest = if dice.below(10) == 0 { 150 * KIB } else { 12 * KIB };
        let length = (512 * (1 + dice.below(longest / 512))).min(REGION_BYTES - start);
        let at = client as u64 * REGION_BYTES + start;
        match dice.below(12) {
            0 => {
                // The flush covers every change that is acknowledged by now, to any client.
                let marks: Vec<_> =
                    self.regions.iter().map(|region| region.lock().mark()).collect();
                let flushed = self.patiently(|| Box::pin(device.flush())).await;
                flushed.map_err(Broken::told("flush"))?;
                for (region, mark) in self.regions.iter().zip(marks) {
                    region.lock().flushed(mark);
                }
                Ok(())
            }
            1 => {
                let read = || -> BoxFuture<'_, _> {
                    Box::pin(async move {
                        let mut found = vec![0; length as usize];
                        device.read(at, &mut found).await.map(|()| found)
                    })
                };
                let found = self.patiently(read).await;
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
                    device,
                    Operation { start: start as usize, bytes },
                    |_| device.clear(at, length, trim, durable).map(|written| (written, durable)),
                )
                .await
            }
            4..=6 => {
                let block = rekindle_base::limits::BLOCK_BYTES_DEFAULT;
                let start = start / block * block;
                let pattern = 1 + dice.below(PATTERNS);
                let bytes = (0..block).map(|n| ((n * n * pattern) >> 4) as u8 | 1).collect();
                let at = client as u64 * REGION_BYTES + start;
                let durable = dice.below(4) == 0;
                self.change(
                    (region, served),
                    device,
                    Operation { start: start as usize, bytes },
                    |bytes| device.write(at, bytes, durable).map(|written| (written, durable)),
                )
                .await
            }
            _ => {
                let fill = dice.next();
                let byte = |n: u64| (fill.wrapping_add(n * n) >> 3) as u8 | 1;
                let bytes = (0..length).map(byte).collect();
                let durable = dice.below(4) == 0;
                self.change(
                    (region, served),
                    device,
                    Operation { start: start as usize, bytes },
                    |bytes| device.write(at, bytes, durable).map(|written| (written, durable)),
                )
                .await
            }
        }
    }

    /// Repeats a request as long as the trouble of this life explains the refusal.
    async fn patiently<'a, T>(
        &self,
        ask: impl Fn() -> BoxFuture<'a, Result<T, rekindle_volume::Error>>,
    ) -> Result<T, rekindle_volume::Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask().await {
                // A volume that has gone out of service stays so: more tries do not help.
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
        device: &Device,
        operation: Operation,
        submit: impl FnOnce(&[u8]) -> Result<(Written, bool), rekindle_volume::Error>,
    ) -> Result<(), Broken> {
        region.lock().submit(&operation);
        let before = device.backlog().serial;
        let (written, durable) = submit(&operation.bytes).map_err(Broken::told("a change"))?;
        let serial = device.backlog().serial;
        if serial > before {
            region.lock().order(serial);
        }
        match written {
            Written::Acked => {}
            Written::NeedsSync(ticket) => {
                device.sync(ticket).await.map_err(Broken::told("sync"))?;
            }
            Written::Pending(later) => {
                heard::note("acknowledged later");
                let ended = self.attend(served, device, later).await?;
                let ended = ended.map_err(rekindle_volume::Error::from);
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
        device: &Device,
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
            let (backlog, seen) = (device.backlog(), served.log.view());
            let why = format!("a write waits, and the health is {health:?}: {backlog:?}, {seen:?}");
            return Err(Broken::Promise(why));
        }
    }

    /// Counts the rare states that the node is in just now.
    fn look(&self, device: &Device, served: &Served) {
        let view = device.handle().staged().view();
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
    pub async fn sweeps(self: Arc<Self>, served: Served, mut dice: Dice) -> Result<(), String> {
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
