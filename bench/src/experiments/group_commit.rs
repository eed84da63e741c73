//! The rival of group commit: a bare log thread. Writers hand it 4 KiB each through a channel. The
//! thread takes all that has arrived, writes it with one synced write into a preallocated file, and
//! answers each writer. It has no network, no checksums, no index and none of Rekindle's code.

use crate::machine;
use crate::rounds::Bench;
use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// A write that a writer hands over.
struct Request {
    payload: Box<[u8; BLOCK]>,
    reply: mpsc::SyncSender<Box<[u8; BLOCK]>>,
}

/// Measures the writes a second of that many writers on the client's cores, with the log thread on
/// the server's.
pub fn writes_per_second(bench: &Bench, file: &Path, writers: usize) -> Result<f64> {
    let bytes = std::fs::metadata(file)?.len();
    let flags = rustix::fs::OFlags::DSYNC.bits().cast_signed();
    let file = File::options().write(true).custom_flags(flags).open(file)?;
    let (sender, receiver) = mpsc::channel::<Request>();
    let cores = bench.layout.server.clone();
    let log = std::thread::spawn(move || -> Result<()> {
        machine::pin_this_thread(&cores)?;
        write_log(&file, bytes, &receiver)
    });
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut rate = 0.0;
    std::thread::scope(|scope| {
        for _ in 0..writers {
            let sender = sender.clone();
            scope.spawn(|| hand_over(bench, sender, &done, &stop));
        }
        // The first half second is for pinning and warming up.
        std::thread::sleep(Duration::from_millis(500));
        let (begin, before) = (Instant::now(), done.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_secs(bench.seconds));
        rate = (done.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
    });
    drop(sender);
    log.join().expect("no panic")?;
    Ok(rate)
}

fn hand_over(bench: &Bench, sender: mpsc::Sender<Request>, done: &AtomicU64, stop: &AtomicBool) {
    if machine::pin_this_thread(&bench.layout.client).is_err() {
        return;
    }
    let (reply, replies) = mpsc::sync_channel(1);
    let mut payload = Box::new([7; BLOCK]);
    while !stop.load(Ordering::Relaxed) {
        if sender.send(Request { payload, reply: reply.clone() }).is_err() {
            return;
        }
        let Ok(returned) = replies.recv() else { return };
        payload = returned;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

fn write_log(file: &File, bytes: u64, requests: &mpsc::Receiver<Request>) -> Result<()> {
    let mut offset = 0;
    let mut buffer = Vec::new();
    let mut taken = Vec::new();
    while let Ok(first) = requests.recv() {
        taken.push(first);
        taken.extend(requests.try_iter());
        buffer.clear();
        taken.iter().for_each(|request| buffer.extend_from_slice(&request.payload[..]));
        if offset + buffer.len() as u64 > bytes {
            offset = 0;
        }
        file.write_all_at(&buffer, offset)?;
        offset += buffer.len() as u64;
        for request in taken.drain(..) {
            // A writer that has stopped wants no answer.
            let _ = request.reply.send(request.payload);
        }
    }
    Ok(())
}
