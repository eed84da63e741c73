//! `rekindle drill attach`: brings every volume into service and reads it here and there, as after a restart of
//! everything that has clients.

use crate::arguments::{Attach, Common};
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::nbd::{Export, Verb};
use crate::supervise::endpoints;
use crate::{folder, output};
use base::Kind;
use env::Address;
use front::http::api::{BootReport, Volume};
use serde::Serialize;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const READ_BYTES: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize)]
struct Report {
    volumes: usize,
    reads: u64,
    /// Until every volume had answered its reads, from the beginning of the drill.
    took_ms: f64,
    /// The last start of the daemon before: from the birth of its process until it listened.
    start_ms: Option<f64>,
}

/// Runs the command.
#[expect(clippy::disallowed_methods, reason = "the drill has no Env")]
pub fn run(common: &Common, attach: &Attach) -> Outcome<u8> {
    let client = Client::new(folder::of_client(common.dir.as_deref())?)?;
    let address = endpoints::nbd(client.dir())?;
    let mut volumes: Vec<Volume> = client.get("/api/v1/volumes")?;
    volumes.sort_by(|one, other| one.name.cmp(&other.name));
    volumes.truncate(attach.first.unwrap_or(usize::MAX));
    let begin = Instant::now();
    let left = Mutex::new(volumes.iter());
    let next = || left.lock().map_or(None, |mut left| left.next());
    let one = || -> Outcome {
        while let Some(volume) = next() {
            read(&address, volume, attach.reads).map_err(|error| {
                Failure::new(format!("the volume '{}' does not answer", volume.name)).because(error)
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..attach.connections).map(|_| scope.spawn(one)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a reader broke").kind(Kind::Io)))
        })
    })?;
    let took = begin.elapsed();
    let boot: BootReport = client.get("/api/v1/boot")?;
    let report = Report {
        volumes: volumes.len(),
        reads: volumes.len() as u64 * attach.reads,
        took_ms: took.as_secs_f64() * 1e3,
        start_ms: boot.listening_us.map(|time| time as f64 / 1e3),
    };
    if common.json {
        output::line(&serde_json::to_string(&report).unwrap_or_default());
    } else {
        output::pairs(&[
            ("volumes", report.volumes.to_string()),
            ("reads", report.reads.to_string()),
            ("took", format!("{:.1} ms", report.took_ms)),
        ]);
    }
    Ok(0)
}

/// Opens one volume, and reads blocks spread evenly over it.
fn read(address: &Address, volume: &Volume, reads: u64) -> std::io::Result<()> {
    let mut export = Export::connect(address, &volume.name, PATIENCE)?;
    let places = export.size / u64::from(READ_BYTES);
    for number in 0..reads.min(places) {
        let place = places * number / reads;
        export.request(Verb::Read, number, place * u64::from(READ_BYTES), READ_BYTES, &[]);
        export.send()?;
        let mut data = vec![0; READ_BYTES as usize];
        let reply = export.reply()?;
        if reply.error != 0 {
            return Err(std::io::Error::from_raw_os_error(i32::try_from(reply.error).unwrap_or(5)));
        }
        export.data(&mut data)?;
    }
    Ok(())
}
