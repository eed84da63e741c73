//! Who acts in a life: clients, each on its own region of one volume, and a sweep beside them.

use crate::boot::Node;
use crate::dice::Dice;
use crate::end::Begun;
use crate::heard;
use crate::region::{Operation, SharedRegion};
use base::SegmentId;
use base::units::KIB;
use block::Device;
use content::sweep::{Budget, Options, Roots, Sweeper};
use content::tree::Root;
use env::{BoxFuture, Env};
use log::Log;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use volume::{Volumes, Written};

/// Bytes of a client's region: several blocks, so that clients share none but changes share some.
pub const REGION_BYTES: u64 = 160 * KIB;
/// Different contents of whole blocks. So few, that what was written comes again: also while a sweep is about to delete
/// the pack that has it.
const PATTERNS: u64 = 6;

/// What all actors of a life share.
pub struct Table {
    regions: Vec<SharedRegion>,
    begun: Begun,
    /// Clients that have not ended.
    busy: AtomicU64,
    /// Which segment a file of the log held last.
    files: Mutex<BTreeMap<u32, SegmentId>>,
}

impl Table {
    /// Requests of a client in a whole life.
    pub const REQUESTS: u64 = 16;

    /// One for a life with these regions.
    #[must_use]
    pub fn new(regions: Vec<SharedRegion>, begun: Begun) -> Arc<Self> {
        let busy = AtomicU64::new(regions.len() as u64);
        Arc::new(Self { regions, begun, busy, files: Mutex::default() })
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
            let done = self.request(client, &device, &mut dice).await;
            done.map_err(|why| format!("client {client}: {why}"))?;
            self.look(&device, &log);
        }
        self.busy.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    async fn request(&self, client: usize, device: &Device, dice: &mut Dice) -> Result<(), String> {
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
                device.flush().await.map_err(|error| format!("flush: {error}"))?;
                for (region, mark) in self.regions.iter().zip(marks) {
                    region.lock().flushed(mark);
                }
                Ok(())
            }
            1 => {
                let mut found = vec![0; length as usize];
                device.read(at, &mut found).await.map_err(|error| format!("read: {error}"))?;
                let region = region.lock();
                let expected = &region.expected()[start as usize..(start + length) as usize];
                if found == expected {
                    return Ok(());
                }
                Err(format!("it does not read at {start} what it wrote"))
            }
            2..=3 => {
                let bytes = vec![0; length as usize];
                let (trim, durable) = (dice.below(2) == 0, dice.below(4) == 0);
                self.change(region, device, Operation { start: start as usize, bytes }, |_| {
                    device.clear(at, length, trim, durable).map(|written| (written, durable))
                })
                .await
            }
            4..=6 => {
                let block = base::limits::BLOCK_BYTES_DEFAULT;
                let start = start / block * block;
                let pattern = 1 + dice.below(PATTERNS);
                let bytes = (0..block).map(|n| ((n * n * pattern) >> 4) as u8 | 1).collect();
                let at = client as u64 * REGION_BYTES + start;
                let durable = dice.below(4) == 0;
                self.change(region, device, Operation { start: start as usize, bytes }, |bytes| {
                    device.write(at, bytes, durable).map(|written| (written, durable))
                })
                .await
            }
            _ => {
                let fill = dice.next();
                let byte = |n: u64| (fill.wrapping_add(n * n) >> 3) as u8 | 1;
                let bytes = (0..length).map(byte).collect();
                let durable = dice.below(4) == 0;
                self.change(region, device, Operation { start: start as usize, bytes }, |bytes| {
                    device.write(at, bytes, durable).map(|written| (written, durable))
                })
                .await
            }
        }
    }

    /// A change from its submission to its acknowledgement.
    async fn change(
        &self,
        region: &SharedRegion,
        device: &Device,
        operation: Operation,
        submit: impl FnOnce(&[u8]) -> Result<(Written, bool), block::Error>,
    ) -> Result<(), String> {
        region.lock().submit(&operation);
        let before = device.backlog().serial;
        let (written, durable) =
            submit(&operation.bytes).map_err(|error| format!("a change: {error}"))?;
        let serial = device.backlog().serial;
        if serial > before {
            region.lock().order(serial);
        }
        match written {
            Written::Done => {}
            Written::Staged(ticket) => {
                device.sync(ticket).await.map_err(|error| format!("sync: {error}"))?;
            }
            Written::Later(later) => {
                heard::note("acknowledged later");
                later.await.map_err(|error| format!("a delayed change: {error}"))?;
            }
        }
        region.lock().acknowledge(durable);
        Ok(())
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
        while self.busy.load(Ordering::Relaxed) > 0 {
            match sweeper.run().await {
                Ok(status) => {
                    heard::note_many("condemned", status.packs_condemned);
                    heard::note_many("rescue", status.packs_rescued);
                    heard::note_many("compaction", status.packs_compacted);
                    heard::note_many("deleted", status.packs_deleted);
                }
                Err(error) if error.kind().is_retryable() => heard::note("sweep failed"),
                Err(error) => return Err(format!("sweep: {error}")),
            }
            env.sleep(Duration::from_millis(1 + dice.below(20))).await;
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
