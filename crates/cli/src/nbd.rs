//! Connections to volumes, for drills, transfers and `map`. A transfer hangs up on its own when the
//! user ends the command.

use parking_lot::Mutex;
use rekindle_env::Address;
use rekindle_nbd_client::{Handshake, NbdClient};
use rustix::net::sockopt::{self, Timeout};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A switch that hangs up on connections when the user ends the command: they may be waiting for an
/// answer.
#[derive(Clone, Default)]
pub struct Breaker {
    state: Arc<Mutex<Wires>>,
}

#[derive(Default)]
struct Wires {
    is_broken: bool,
    open: Vec<OwnedFd>,
}

impl Breaker {
    /// Hangs up: from now on every wait ends with an error.
    pub fn break_off(&self) {
        let mut wires = self.state.lock();
        wires.is_broken = true;
        for wire in wires.open.drain(..) {
            let _ = rustix::net::shutdown(&wire, rustix::net::Shutdown::Both);
        }
    }

    /// Whether the connections were hung up on.
    pub fn is_broken(&self) -> bool {
        self.state.lock().is_broken
    }

    fn watch(&self, wire: &OwnedFd) -> io::Result<()> {
        let wire = wire.try_clone()?;
        let mut wires = self.state.lock();
        if wires.is_broken {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        wires.open.push(wire);
        Ok(())
    }
}

/// Opens a volume. No answer within `patience` is an error, then and later.
pub fn open(address: &Address, volume: &str, patience: Duration) -> io::Result<NbdClient> {
    greet(address, patience, &Breaker::default())?.go(volume)
}

/// As [`open`], until `breaker` hangs up.
pub fn open_until(
    address: &Address,
    volume: &str,
    patience: Duration,
    breaker: &Breaker,
) -> io::Result<NbdClient> {
    greet(address, patience, breaker)?.go(volume)
}

/// As [`open_until`], only to ask for extents; `None` when the server does not tell them.
pub fn open_for_extents(
    address: &Address,
    volume: &str,
    patience: Duration,
    breaker: &Breaker,
) -> io::Result<Option<NbdClient>> {
    let mut handshake = greet(address, patience, breaker)?;
    if handshake.wants_extents(volume)? { handshake.go(volume).map(Some) } else { Ok(None) }
}

fn greet(address: &Address, patience: Duration, breaker: &Breaker) -> io::Result<Handshake> {
    let wire: OwnedFd = match address {
        Address::Tcp(socket) => {
            let stream = TcpStream::connect(socket)?;
            stream.set_nodelay(true)?;
            stream.into()
        }
        Address::Unix(path) => UnixStream::connect(path)?.into(),
    };
    limit(&wire, Some(patience))?;
    breaker.watch(&wire)?;
    Handshake::new(wire)
}

/// Sets the longest wait for the other side, in both directions; `None` is for ever.
pub fn limit(wire: &OwnedFd, patience: Option<Duration>) -> io::Result<()> {
    sockopt::set_socket_timeout(wire, Timeout::Recv, patience)?;
    Ok(sockopt::set_socket_timeout(wire, Timeout::Send, patience)?)
}
