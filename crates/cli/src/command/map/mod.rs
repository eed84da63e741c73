//! `rekindle map`: a volume as a disk of this machine, through the kernel's own NBD client.
//!
//! The kernel keeps requests while no connection lives, for as long as it was told to ("dead
//! connection timeout"), and takes a new connection in place of a dead one. So a process has to
//! stay that makes new connections: this command.
#![expect(clippy::disallowed_methods, reason = "this command has no Env")]

mod netlink;

use crate::arguments::{Common, Map};
use crate::folder;
use crate::nbd;
use netlink::{Device, Netlink};
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_env::Address;
use rekindle_nbd_client::NbdClient;
use rekindle_supervise::endpoints;
use rekindle_supervise::signals::StopSignals;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Longest time for a handshake of the server.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at the connections, and between two attempts to make a new one.
const LOOK_PAUSE: Duration = Duration::from_millis(25);
/// Time for the kernel to notice that a socket of its own is dead, before it is asked again.
const TAKE_PAUSE: Duration = Duration::from_millis(5);

/// Runs the command until a signal ends it.
pub fn run(common: &Common, map: &Map) -> Outcome {
    let address = address(common, map)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        let mut mapping = Mapping::new(map, address)?;
        mapping.announce(common, &map.name);
        let mapped = loop {
            tokio::select! {
                _ = stop.next() => break Ok(()),
                kept = mapping.keep() => if let Err(failure) = kept { break Err(failure) },
            }
        };
        let taken = mapping.netlink.disconnect(mapping.index);
        mapped?;
        taken.map_err(|error| {
            Failure::new("the kernel does not take the device away").because(error)
        })
    })
}

fn address(common: &Common, map: &Map) -> Outcome<Address> {
    if let Some(Some(address)) = &map.nbd {
        return Ok(address.clone());
    }
    endpoints::nbd(&folder::of_client(common.dir.as_deref())?)
}

/// A device, and the connections that keep it alive.
struct Mapping {
    netlink: Netlink,
    address: Address,
    name: String,
    index: u32,
    /// Bytes.
    size: u64,
    /// The kernel's sockets, watched for their end.
    sockets: Vec<OwnedFd>,
}

impl Mapping {
    fn new(map: &Map, address: Address) -> Outcome<Self> {
        let mut netlink = Netlink::open().map_err(|error| {
            let failure = Failure::new("this kernel's NBD client cannot be reached");
            match error.kind() {
                std::io::ErrorKind::NotFound => failure.next("as root: modprobe nbd"),
                _ => failure.because(error),
            }
        })?;
        let mut sockets = Vec::new();
        let (mut size, mut flags) = (0, 0);
        for _ in 0..map.connections {
            let export = connect(&address, &map.name)?;
            (size, flags) = (export.size, export.flags);
            sockets.push(for_the_kernel(export)?);
        }
        let device = Device {
            index: map.device,
            size,
            sector_size: map.sector_size,
            flags,
            timeout: map.timeout.as_secs().max(1),
            patience: map.patience.as_secs().max(1),
        };
        let index = netlink.connect(&device, &sockets).map_err(|error| {
            let failure = Failure::new("the kernel does not make the device");
            match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::PERM) => failure.because(error).next("run this as root"),
                Some(rustix::io::Errno::BUSY) => failure.because("it is in use").next(
                    "choose another one with --device, or take it away with `nbd-client -d DEVICE`",
                ),
                _ => failure.because(error),
            }
        })?;
        Ok(Self { netlink, address, name: map.name.clone(), index, size, sockets })
    }

    fn announce(&self, common: &Common, name: &str) {
        let device = format!("/dev/nbd{}", self.index);
        if common.json {
            output::json(&json!({"device": device, "volume": name, "size": self.size}));
        } else {
            let size = format_size(self.size);
            output::line(&format!("{device} is volume '{name}' of {size}; Ctrl-C takes it away"));
        }
    }

    /// Waits for the end of a connection and makes another in its place. May be dropped meanwhile.
    async fn keep(&mut self) -> Outcome {
        let dead = loop {
            match self.dead()? {
                Some(dead) => break dead,
                None => tokio::time::sleep(LOOK_PAUSE).await,
            }
        };
        let since = Instant::now();
        let export = loop {
            match connect(&self.address, &self.name) {
                Ok(export) => break export,
                Err(failure) if failure.kind == Kind::NotFound.to_string() => return Err(failure),
                Err(_) => tokio::time::sleep(LOOK_PAUSE).await,
            }
        };
        self.size = export.size;
        let socket = for_the_kernel(export)?;
        while !netlink::is_taken(&socket) {
            self.netlink.replace(self.index, self.size, &socket).map_err(|error| {
                Failure::new(format!("/dev/nbd{} takes no new connection", self.index))
                    .because(error)
                    .next("the device was taken away: run this again")
            })?;
            tokio::time::sleep(TAKE_PAUSE).await;
        }
        self.sockets[dead] = socket;
        let took = since.elapsed().as_millis();
        output::tell(&format!(
            "rekindle: connection {dead} of /dev/nbd{} is back after {took} ms",
            self.index
        ));
        Ok(())
    }

    /// Returns a connection that the kernel has given up, and so has shut down. Only the end of a
    /// socket is asked for: its data is for the kernel.
    fn dead(&self) -> Outcome<Option<usize>> {
        let mut polled: Vec<PollFd<'_>> =
            self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::empty())).collect();
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        Ok(polled.iter().position(|socket| socket.revents().contains(PollFlags::HUP)))
    }
}

fn connect(address: &Address, name: &str) -> Outcome<NbdClient> {
    nbd::open(address, name, HANDSHAKE_PATIENCE)
        .map_err(|error| Failure::new(format!("cannot open '{name}' at {address}")).because(error))
}

/// Returns the socket of a connection, without timeouts, for the kernel to go on with.
fn for_the_kernel(export: NbdClient) -> Outcome<OwnedFd> {
    let socket = OwnedFd::from(export);
    nbd::limit(&socket, None)?;
    Ok(socket)
}
