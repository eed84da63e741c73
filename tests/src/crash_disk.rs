//! A disk with a volatile write cache that can lose power: an NBD server in this process.
//!
//! Writes stay in memory until a flush (or carry FUA). A power cut keeps each un-flushed 512-byte
//! sector with a given chance, in the newest or an older un-flushed version, and loses the rest.

use anyhow::Result;
use rekindle_base::random::Random;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const SECTOR: u64 = 512;

/// Sectors that a power cut met.
#[derive(Debug, Clone, Copy, Default)]
pub struct Torn {
    /// Sectors that were not flushed.
    pub unflushed: usize,
    /// Number of these that survived.
    pub kept: usize,
}

struct State {
    file: std::fs::File,
    /// Sector number to its un-flushed versions, oldest first.
    pending: BTreeMap<u64, Vec<Vec<u8>>>,
    power: bool,
    /// The power fails as soon as a write is not flushed.
    armed: bool,
    connections: Vec<UnixStream>,
}

/// A disk with a write cache, served over NBD.
pub struct CrashDisk {
    pub socket: PathBuf,
    size: u64,
    state: Arc<Mutex<State>>,
}

impl CrashDisk {
    /// Creates a disk of `size` bytes, with its files in `folder`.
    pub fn new(folder: &Path, size: u64) -> Result<Self> {
        let file = std::fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(folder.join("disk.img"))?;
        file.set_len(size)?;
        let socket = folder.join("disk.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let state = Arc::new(Mutex::new(State {
            file,
            pending: BTreeMap::new(),
            power: true,
            armed: false,
            connections: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                if !state.lock().expect("no panic under the lock").power {
                    continue;
                }
                if let Ok(clone) = stream.try_clone() {
                    state.lock().expect("no panic under the lock").connections.push(clone);
                }
                std::thread::spawn(move || serve(stream, size, &state));
            }
        });
        Ok(Self { socket, size, state })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Lets the power fail in the middle of the next write: after its data came and before its
    /// flush does.
    pub fn fail_at_next_write(&self) {
        self.state.lock().expect("no panic under the lock").armed = true;
    }

    /// Returns whether the disk has power.
    #[must_use]
    pub fn has_power(&self) -> bool {
        self.state.lock().expect("no panic under the lock").power
    }

    /// Cuts the power: un-flushed sectors survive with a chance of `percent`.
    pub fn cut(&self, percent: u64, random: &mut Random) -> Result<Torn> {
        let mut state = self.state.lock().expect("no panic under the lock");
        let pending = std::mem::take(&mut state.pending);
        let mut torn = Torn { unflushed: pending.len(), ..Torn::default() };
        for (sector, versions) in pending {
            if random.below(100) < percent {
                let version = random.below(versions.len() as u64) as usize;
                torn.kept += 1;
                state.file.write_all_at(&versions[version], sector * SECTOR)?;
            }
        }
        state.power_off();
        Ok(torn)
    }

    /// Turns the power on again.
    pub fn power_on(&self) {
        self.state.lock().expect("no panic under the lock").power = true;
    }
}

impl State {
    fn power_off(&mut self) {
        self.power = false;
        self.armed = false;
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(out, offset)?;
        let end = offset + out.len() as u64;
        for (&sector, versions) in self.pending.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            let at = sector * SECTOR;
            let (low, high) = (at.max(offset), (at + SECTOR).min(end));
            if let Some(newest) = versions.last() {
                out[(low - offset) as usize..(high - offset) as usize]
                    .copy_from_slice(&newest[(low - at) as usize..(high - at) as usize]);
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> std::io::Result<()> {
        let first = offset / SECTOR;
        let last = (offset + data.len() as u64).div_ceil(SECTOR);
        let mut whole = vec![0; ((last - first) * SECTOR) as usize];
        self.read(first * SECTOR, &mut whole)?;
        let start = (offset - first * SECTOR) as usize;
        whole[start..start + data.len()].copy_from_slice(data);
        if durable {
            for sector in first..last {
                self.pending.remove(&sector);
            }
            return self.file.write_all_at(&whole, first * SECTOR);
        }
        for (sector, bytes) in (first..last).zip(whole.chunks(SECTOR as usize)) {
            self.pending.entry(sector).or_default().push(bytes.to_vec());
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        for (sector, versions) in std::mem::take(&mut self.pending) {
            if let Some(newest) = versions.last() {
                self.file.write_all_at(newest, sector * SECTOR)?;
            }
        }
        Ok(())
    }
}

/// Serves one connection. Fixed newstyle with simple replies is all that nbdfuse needs.
fn serve(mut stream: UnixStream, size: u64, state: &Mutex<State>) {
    let _ = handshake(&mut stream, size).and_then(|()| {
        while requests(&mut stream, size, state)? {}
        Ok(())
    });
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

const FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256;

fn handshake(stream: &mut UnixStream, size: u64) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    let mut client = [0; 4];
    stream.read_exact(&mut client)?;
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header)?;
        let option = u32::from_be_bytes(header[8..12].try_into().expect("4 bytes"));
        let length = u32::from_be_bytes(header[12..16].try_into().expect("4 bytes"));
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        let mut reply = |kind: u32, data: &[u8]| -> std::io::Result<()> {
            let mut bytes = 0x3_e889_0455_65a9_u64.to_be_bytes().to_vec();
            bytes.extend(option.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            bytes.extend((data.len() as u32).to_be_bytes());
            bytes.extend(data);
            stream.write_all(&bytes)
        };
        match option {
            1 => {
                stream.write_all(&size.to_be_bytes())?;
                return stream.write_all(&FLAGS.to_be_bytes());
            }
            6 | 7 => {
                let mut info = vec![0, 0];
                info.extend(size.to_be_bytes());
                info.extend(FLAGS.to_be_bytes());
                reply(3, &info)?;
                reply(1, &[])?;
                if option == 7 {
                    return Ok(());
                }
            }
            2 => return Err(std::io::ErrorKind::ConnectionAborted.into()),
            _ => reply(0x8000_0001, &[])?,
        }
    }
}

fn requests(stream: &mut UnixStream, size: u64, state: &Mutex<State>) -> std::io::Result<bool> {
    let mut header = [0; 28];
    stream.read_exact(&mut header)?;
    let field = |range: std::ops::Range<usize>| {
        header[range].iter().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
    };
    let (flags, command, offset, length) = (field(4..6), field(6..8), field(16..24), field(24..28));
    let mut data = vec![0; if command == 1 { length as usize } else { 0 }];
    stream.read_exact(&mut data)?;
    let mut answer = Vec::new();
    let mut error = 0u32;
    {
        let mut state = state.lock().expect("no panic under the lock");
        if !state.power {
            return Ok(false);
        }
        let durable = flags & 1 != 0;
        let fits = offset.checked_add(length).is_some_and(|end| end <= size);
        match command {
            2 => return Ok(false),
            3 => state.flush()?,
            4 => {}
            _ if !fits => error = 22,
            0 => {
                answer = vec![0; length as usize];
                state.read(offset, &mut answer)?;
            }
            1 => state.write(offset, &data, durable)?,
            6 => state.write(offset, &vec![0; length as usize], durable)?,
            _ => error = 22,
        }
        if state.armed && !state.pending.is_empty() {
            state.power_off();
            return Ok(false);
        }
    }
    let mut reply = 0x6744_6698_u32.to_be_bytes().to_vec();
    reply.extend(error.to_be_bytes());
    reply.extend(&header[8..16]);
    reply.extend(answer);
    stream.write_all(&reply)?;
    Ok(true)
}
