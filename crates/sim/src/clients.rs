//! Who acts in a life: clients, each on its own region of one volume, and a sweep beside them.

use crate::boot::Node;
use crate::dice::Dice;
use crate::end::Begun;
use crate::heard;
use crate::region::{Operation, SharedRegion};
use crate::trouble::Trouble;
use base::units::KIB;
use base::{Kind, SegmentId};
use block::Device;
use content::sweep::{Budget, Options, Roots, Sweeper};
use content::tree::Root;
use env::{BoxFuture, Env};
use log::Log;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use volume::{Volumes, Written};

/// Bytes of a client's region: several blocks, so that clients share none but changes share some.
pub const REGION_BYTES: u64 = 160 * KIB;
/// Different contents of whole blocks. So few, that what was written comes again: also while a sweep is about to delete
/// the pack that has it.
const PATTERNS: u64 = 6;

/// Sweeps of a life that follow at once upon one another.
const SWEEPS_QUICK: u64 = 100;
/// How long a write may wait before that is said.
const WAITS_UNSAID: Duration = Duration::from_secs(5);
/// Times that somebody asks for what is refused as damaged.
const TRIES_MAX: u64 = 20;

/// What all actors of a life share.
pub struct Table {
    regions: Vec<SharedRegion>,
    begun: Begun,
    /// Clients that have not ended.
    busy: AtomicU64,
    env: Env,
    /// Writes are acknowledged before the store has them.
    waits_for_flash: bool,
    trouble: Trouble,
    /// A client has given up.
    refused: AtomicBool,
    /// Which segment a file of the log held last.
    files: Mutex<BTreeMap<u32, SegmentId>>,
}

/// Why a client does not go on.
enum Broken {
    /// It was told an error.
    Told(Kind, String),
    /// What it was promised does not hold.
    Promise(String),
}

impl Broken {
    fn told(what: &str) -> impl FnOnce(block::Error) -> Self {
        move |error| Broken::Told(error.kind(), format!("{what}: {error}"))
    }
}

impl Table {
    /// Requests of a client in a whole life.
    pub const REQUESTS: u64 = 16;

    /// One for a life with these regions.
    #[must_use]
    pub fn new(
        env: Env,
        regions: Vec<SharedRegion>,
        begun: Begun,
        (waits_for_flash, trouble): (bool, Trouble),
    ) -> Arc<Self> {
        let busy = AtomicU64::new(regions.len() as u64);
        Arc::new(Self {
            regions,
            begun,
            busy,
            env,
            waits_for_flash,
            trouble,
            refused: AtomicBool::new(false),
            files: Mutex::default(),
        })
    }

    /// What goes wrong in this life.
    #[must_use]
    pub fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    /// Whether a client has given up.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many clients there are.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.regions.len()
    }

    /// A client from its first to its last request.
    pub async fn client(
        self: Arc<Self>,
        client: usize,
        device: Device,
        log: Log,
        mut dice: Dice,
    ) -> Result<(), String> {
        for _ in 0..Self::REQUESTS {
            self.begun.fetch_add(1, Ordering::Relaxed);
            match self.request(client, (&device, &log), &mut dice).await {
                Ok(()) => {}
                // It has been told, and does not know what became of its last change.
                Err(Broken::Told(kind, _)) if self.trouble.ends(kind) => {
                    heard::note("a client was refused");
                    self.refused.store(true, Ordering::Relaxed);
                    break;
                }
                Err(Broken::Told(_, why) | Broken::Promise(why)) => {
                    return Err(format!("client {client}: {why}"));
                }
            }
            self.look(&device, &log);
        }
        self.busy.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    async fn request(
        &self,
        client: usize,
        (device, log): (&Device, &Log),
        dice: &mut Dice,
    ) -> Result<(), Broken> {
        let region = &self.regions[client];
        let start = dice.below(REGION_BYTES / 512) * 512;
        let longest = if dice.below(10) == 0 { 150 * KIB } else { 12 * KIB };
        let length = (512 * (1 + dice.below(longest / 512))).min(REGION_BYTES - start);
        let at = client as u64 * REGION_BYTES + start;
        match dice.below(12) {
            0 => {
                // What is acknowledged by now, to whomever.
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
                    (region, log),
                    device,
                    Operation { start: start as usize, bytes },
                    |_| device.clear(at, length, trim, durable).map(|written| (written, durable)),
                )
                .await
            }
            4..=6 => {
                let block = base::limits::BLOCK_BYTES_DEFAULT;
                let start = start / block * block;
                let pattern = 1 + dice.below(PATTERNS);
                let bytes = (0..block).map(|n| ((n * n * pattern) >> 4) as u8 | 1).collect();
                let at = client as u64 * REGION_BYTES + start;
                let durable = dice.below(4) == 0;
                self.change(
                    (region, log),
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
                    (region, log),
                    device,
                    Operation { start: start as usize, bytes },
                    |bytes| device.write(at, bytes, durable).map(|written| (written, durable)),
                )
                .await
            }
        }
    }

    /// Asks again, as long as the trouble of this life explains why it was refused.
    async fn patiently<'a, T>(
        &self,
        ask: impl Fn() -> BoxFuture<'a, Result<T, block::Error>>,
    ) -> Result<T, block::Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask().await {
                // A volume that has gone out of service says so for good.
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

    /// A change from its submission to its acknowledgement.
    async fn change(
        &self,
        (region, log): (&SharedRegion, &Log),
        device: &Device,
        operation: Operation,
        submit: impl FnOnce(&[u8]) -> Result<(Written, bool), block::Error>,
    ) -> Result<(), Broken> {
        region.lock().submit(&operation);
        let before = device.backlog().serial;
        let (written, durable) = submit(&operation.bytes).map_err(Broken::told("a change"))?;
        let serial = device.backlog().serial;
        if serial > before {
            region.lock().order(serial);
        }
        match written {
            Written::Done => {}
            Written::Staged(ticket) => {
                device.sync(ticket).await.map_err(Broken::told("sync"))?;
            }
            Written::Later(later) => {
                heard::note("acknowledged later");
                let ended = self.attend(device, log, later).await?.map_err(block::Error::from);
                ended.map_err(Broken::told("a delayed change"))?;
            }
        }
        region.lock().acknowledge(durable, log.view().head.segment);
        Ok(())
    }

    /// Waits for a change, and sees to it that somebody who asks is told why it waits: from these the node's health is judged.
    async fn attend<T>(
        &self,
        device: &Device,
        log: &Log,
        mut later: BoxFuture<'static, T>,
    ) -> Result<T, Broken> {
        loop {
            if let Ok(ended) = self.env.timeout(WAITS_UNSAID, &mut later).await {
                return Ok(ended);
            }
            let backlog = device.backlog();
            let is_said = backlog.stalled.is_some()
                || backlog.destage_error.is_some()
                || backlog.late
                || log.failure().is_some();
            // Those that wait for the store itself are told by a look at that, which is the node's.
            if is_said {
                heard::note("a write waits, and it is said");
            } else if self.waits_for_flash {
                let (seen, usage) = (log.view(), log.usage());
                let why = format!(
                    "a write waits, and health would say well: {backlog:?}, {seen:?}, {usage:?}"
                );
                return Err(Broken::Promise(why));
            }
        }
    }

    /// Counts what goes on in the node just now.
    fn look(&self, device: &Device, log: &Log) {
        let view = device.handle().staged().view();
        if view.unlisted > 0 {
            heard::note("listing while writing");
        }
        if view.backlog.delay_ms > 0 {
            heard::note("flow delay");
        }
        if view.backlog.stalled.as_ref().is_some_and(|why| why.starts_with("the log is full")) {
            heard::note("log full");
        }
        let mut files = self.files.lock();
        for segment in log.view().segments {
            let Some(file) = segment.file else { continue };
            match files.insert(file, segment.segment) {
                Some(before) if before != segment.segment => heard::note("file reuse"),
                None if files.len() > 1 => heard::note("rollover"),
                _ => {}
            }
        }
    }

    /// Sweeps, as long as there are clients.
    pub async fn sweeps(
        self: Arc<Self>,
        env: Env,
        node: Arc<Node>,
        mut dice: Dice,
    ) -> Result<(), String> {
        let roots = Arc::new(StoredRoots(node.volumes.clone()));
        let grace = Duration::from_millis([0, 5, 50][dice.below(3) as usize]);
        let options = Options { budget: Budget::Unlimited, grace, ..Options::default() };
        let sweeper = Sweeper::new(node.content.clone(), node.writer.clone(), roots);
        let sweeper = sweeper.with_options(options);
        let mut sweeps = 0;
        while self.busy.load(Ordering::Relaxed) > 0 {
            match sweeper.run().await {
                Ok(status) => {
                    heard::note_many("condemned", status.packs_condemned);
                    heard::note_many("rescue", status.packs_rescued);
                    heard::note_many("compaction", status.packs_compacted);
                    heard::note_many("deleted", status.packs_deleted);
                }
                Err(error) if self.trouble.explains(error.kind()) => heard::note("sweep failed"),
                Err(error) => return Err(format!("sweep: {error}")),
            }
            sweeps += 1;
            // Where a client waits for long, as many sweeps as in a second would take most of the run.
            let unit = if sweeps < SWEEPS_QUICK { 1 } else { 100 };
            env.sleep(Duration::from_millis(unit * (1 + dice.below(20)))).await;
        }
        Ok(())
    }
}

/// All roots there are.
struct StoredRoots(Volumes);

impl Roots for StoredRoots {
    fn roots(&self) -> BoxFuture<'_, Result<Vec<Root>, content::Error>> {
        Box::pin(async move {
            let unreadable = |error: volume::Error| content::Error::Stopped(error.to_string());
            self.0.roots().await.map_err(unreadable)
        })
    }
}
