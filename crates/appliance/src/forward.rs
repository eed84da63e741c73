//! Forwarding from the host's sockets into the guest. Clients that connect while the guest starts
//! wait. When the guest is reset, their connections end at once, so that they know to connect
//! again: QEMU alone would keep the connections open, and silent.
#![expect(clippy::disallowed_methods, reason = "this command has no Env")]

use rekindle_supervise::sockets::{Listening, Role};
use rekindle_terminal::failure::Outcome;
use std::net::SocketAddr;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Bytes in flight, each way.
const BUFFER_BYTES: usize = 64 << 10;
/// Pause before a listening socket that failed (too many open files) is asked again.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Addresses at which the guest is reached while it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    pub nbd: SocketAddr,
    pub http: SocketAddr,
}

/// A gate for clients, open while the guest serves.
pub struct Gate(watch::Sender<Option<Way>>);

impl Gate {
    /// Makes a closed gate, which accepts at `sockets` for as long as the runtime lives.
    pub fn new(sockets: &[Listening]) -> Outcome<Self> {
        let (gate, way) = watch::channel(None);
        for socket in sockets {
            let acceptor = rekindle_env::real::net::from_listener(socket.socket.try_clone()?)?;
            let (role, way) = (socket.role, way.clone());
            tokio::spawn(async move {
                loop {
                    match acceptor.accept().await {
                        Ok(accepted) => drop(tokio::spawn(carry(accepted, role, way.clone()))),
                        Err(_) => tokio::time::sleep(PAUSE).await,
                    }
                }
            });
        }
        Ok(Self(gate))
    }

    /// Lets waiting and new clients through.
    pub fn open(&self, way: Way) {
        self.0.send_replace(Some(way));
    }

    /// Ends every connection.
    pub fn close(&self) {
        self.0.send_replace(None);
    }
}

/// Carries one connection, to its end.
async fn carry(
    accepted: rekindle_env::Accepted,
    role: Role,
    mut way: watch::Receiver<Option<Way>>,
) {
    let Ok(mut client) = accepted() else { return };
    let Ok(open) = way.wait_for(Option::is_some).await.map(|open| *open) else { return };
    let Some(Way { nbd, http }) = open else { return };
    let address = match role {
        Role::Nbd => nbd,
        Role::Http => http,
        // The host opens none.
        Role::Nfs => return,
    };
    let Ok(mut guest) = TcpStream::connect(address).await else { return };
    let _ = guest.set_nodelay(true);
    tokio::select! {
        // A side that breaks ends both: neither has anything left to say.
        _ = copy_bidirectional_with_sizes(&mut client, &mut guest, BUFFER_BYTES, BUFFER_BYTES) => {}
        _ = way.wait_for(|now| *now != open) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_supervise::sockets::WantedSockets;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn clients_wait_for_the_guest_and_are_let_go_when_it_is_reset() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("nbd.sock");
        let sockets =
            WantedSockets::default().open(folder.path(), &mut Vec::new()).expect("sockets");
        let guest = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = guest.local_addr().expect("bound");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("one");
        let inside = runtime.enter();
        let gate = Gate::new(&sockets).expect("listens");
        drop(inside);
        let mut client = UnixStream::connect(&own).expect("is taken in");
        client.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        client.write_all(b"hello").expect("sent");
        assert!(client.read(&mut [0; 1]).is_err(), "no guest answers yet");
        gate.open(Way { nbd: address, http: address });
        let (mut inner, _) = guest.accept().expect("comes through");
        let mut text = [0; 5];
        inner.read_exact(&mut text).expect("what was sent before");
        assert_eq!(&text, b"hello");
        gate.close();
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        assert_eq!(client.read(&mut [0; 1]).expect("an end, not silence"), 0);
    }
}
