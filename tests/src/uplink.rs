//! A narrow, long and lossy way to an S3 server: a proxy that counts what goes up.

use anyhow::Result;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for which the way may have been idle and is used all the same.
const CATCHES_UP: Duration = Duration::from_millis(200);

/// The properties of a way.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// Bytes a second, of all connections together.
    pub rate: u64,
    /// The time that a request is under way.
    pub latency: Duration,
    /// One request of so many is refused, and so is the first upload of a pack. 0: none.
    pub refuses_one_of: u64,
    /// The connection breaks amid a request with more bytes than so many.
    pub breaks_after: usize,
}

/// The requests that have gone up.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    /// Bytes of all requests.
    pub bytes: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Uploads of each pack: begun, and gone up as a whole.
    pub packs: BTreeMap<String, (u32, u32)>,
}

/// The proxy, for as long as the process lives.
pub struct Uplink {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    way: Way,
    server: String,
    /// The moment from which the way is free.
    free: Mutex<Instant>,
    sent: Mutex<Sent>,
}

impl Uplink {
    /// Opens a way to the server at this address.
    pub fn open(server: &str, way: Way) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        // What the kernel holds for this proxy has not gone up.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 32 << 10)?;
        let address = listener.local_addr()?.to_string();
        let (free, sent) = (Mutex::new(Instant::now()), Mutex::default());
        let shared = Arc::new(Shared { way, server: server.to_owned(), free, sent });
        let uplink = Self { address, shared: shared.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = shared.clone();
                // A connection ends when either end hangs up.
                std::thread::spawn(move || shared.carry(client));
            }
        });
        Ok(uplink)
    }

    /// Returns the address of the proxy.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns what has gone up until now.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.shared.sent.lock().expect("no thread panics").clone()
    }
}

impl Shared {
    /// Carries requests up, one after the other, and answers down at once.
    fn carry(&self, mut client: TcpStream) -> Result<()> {
        let mut server = TcpStream::connect(&self.server)?;
        let (mut answers, mut down) = (server.try_clone()?, client.try_clone()?);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut down);
            let _ = down.shutdown(std::net::Shutdown::Both);
        });
        let (mut seen, mut piece) = (Vec::new(), [0; 8 << 10]);
        loop {
            let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else {
                let length = self.take(&mut client, &mut piece)?;
                if length == 0 {
                    server.shutdown(std::net::Shutdown::Write)?;
                    return Ok(());
                }
                seen.extend_from_slice(&piece[..length]);
                continue;
            };
            let head = String::from_utf8_lossy(&seen[..end]).into_owned();
            let length = header(&head, "content-length").and_then(|length| length.parse().ok());
            let mut left = (end + 4 + length.unwrap_or(0)).saturating_sub(seen.len());
            std::thread::sleep(self.way.latency);
            let pack = pack(&head);
            if self.refuses(pack.as_deref()) {
                let body = "<Error><Code>SlowDown</Code><Message>Slow down.</Message></Error>";
                write!(
                    client,
                    "HTTP/1.1 503 Slow Down\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                )?;
                // The answer arrives before the end of the connection does.
                std::thread::sleep(self.way.latency);
                client.shutdown(std::net::Shutdown::Both)?;
                return Ok(());
            }
            server.write_all(&seen)?;
            seen.clear();
            let whole = left;
            while left > 0 {
                let most = left.min(piece.len());
                let length = self.take(&mut client, &mut piece[..most])?;
                anyhow::ensure!(length > 0, "the client has hung up");
                server.write_all(&piece[..length])?;
                left -= length;
                if left > 0 && whole - left > self.way.breaks_after {
                    server.shutdown(std::net::Shutdown::Both)?;
                    client.shutdown(std::net::Shutdown::Both)?;
                    return Ok(());
                }
            }
            if let Some(pack) = pack {
                let mut sent = self.sent.lock().expect("no thread panics");
                sent.packs.entry(pack).or_default().1 += 1;
            }
        }
    }

    /// Takes bytes of a client, and as much time as the way needs for them.
    fn take(&self, client: &mut TcpStream, piece: &mut [u8]) -> Result<usize> {
        let length = client.read(piece)?;
        let time = Duration::from_micros(length as u64 * 1_000_000 / self.way.rate);
        let there = {
            let mut free = self.free.lock().expect("no thread panics");
            // A sleep that was too long under load is caught up, within bounds.
            *free = (*free).max(Instant::now() - CATCHES_UP) + time;
            *free
        };
        std::thread::sleep(there.saturating_duration_since(Instant::now()));
        self.sent.lock().expect("no thread panics").bytes += length as u64;
        Ok(length)
    }

    /// Counts a request, and decides whether it is refused.
    fn refuses(&self, pack: Option<&str>) -> bool {
        let mut sent = self.sent.lock().expect("no thread panics");
        let often = self.way.refuses_one_of;
        let first = often > 0 && pack.is_some() && sent.packs.is_empty();
        sent.requests += 1;
        if let Some(pack) = pack {
            sent.packs.entry(pack.to_owned()).or_default().0 += 1;
        }
        let refuses = first || (often > 0 && sent.requests.is_multiple_of(often));
        sent.refused += u64::from(refuses);
        refuses
    }
}

/// Returns the key of the pack that a request uploads.
fn pack(head: &str) -> Option<String> {
    let path = head.strip_prefix("PUT ")?.split(' ').next()?;
    // The markers of the folders begin with a dot.
    let is_pack = path.contains("/packs/") && !path.contains("/.");
    is_pack.then(|| path.to_owned())
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.trim())
}
