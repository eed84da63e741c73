//! TCP and Unix sockets.
#![expect(clippy::disallowed_methods, reason = "this is what Env::net is made of")]

use super::access::{self, SocketMode};
use super::descriptors;
use crate::{Accepted, Acceptor, Address, BoxFuture, Descriptors, Net, Stream};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;

/// Time that a session waits for the next request before it sleeps: somewhat more than a client on
/// another core needs to wake up, look at a reply and send again.
const LINGER: Duration = Duration::from_micros(100);
/// Bound of the pause after failures: at worst one in `2^this` waits is tried.
const LINGER_PAUSE_BITS: u32 = 10;

/// Interval of the probes to a TCP client that sends no more.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Probes without an answer after which such a client is taken for gone.
const PROBES_MAX: u32 = 12;

/// Connections that may wait in the queue of a Unix socket.
const QUEUE: i32 = 1024;

/// Accepts the next connection. A client that hung up while it waited in the queue is no error of
/// the listener.
macro_rules! next_connection {
    ($listener:expr) => {
        loop {
            match $listener.accept().await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                other => break other?.0,
            }
        }
    };
}

pub(super) struct RealNet {
    foreground: Handle,
}

impl RealNet {
    pub(super) fn new(foreground: Handle) -> Self {
        Self { foreground }
    }
}

impl Net for RealNet {
    fn descriptors(&self) -> Descriptors {
        descriptors::count()
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Acceptor>>> {
        Box::pin(async move {
            // The threads of the foreground watch the listener, whichever thread polls this.
            let _foreground = self.foreground.enter();
            let acceptor: io::Result<Box<dyn Acceptor>> = match address {
                Address::Tcp(socket) => listen_tcp(*socket).map(|found| Box::new(found) as _),
                Address::Unix(path) => listen_unix(path).map(|found| Box::new(found) as _),
            };
            acceptor.map_err(|error| explain("listen at", address, &error))
        })
    }

    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream: io::Result<Box<dyn Stream>> = match address {
                Address::Tcp(socket) => TcpStream::connect(socket).await.and_then(tcp_stream),
                Address::Unix(path) => {
                    UnixStream::connect(path).await.map(|inner| unix_stream(inner, path))
                }
            };
            stream.map_err(|error| explain("connect to", address, &error))
        })
    }
}

/// Takes over a listener that another process opened and handed to this one (as systemd does,
/// `LISTEN_FDS`). Call it on the background threads or inside [`super::Runtime::block_on`].
pub fn from_listener(socket: OwnedFd) -> io::Result<Box<dyn Acceptor>> {
    if Handle::try_current().is_err() {
        return Err(io::Error::other(
            "an inherited socket must be taken over inside the background runtime",
        ));
    }
    if !rustix::net::sockopt::socket_acceptconn(&socket)? {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the inherited socket does not listen",
        ));
    }
    match rustix::net::sockopt::socket_domain(&socket)? {
        AddressFamily::INET | AddressFamily::INET6 => {
            let listener = std::net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            Ok(Box::new(TcpAcceptor::new(listener)?))
        }
        AddressFamily::UNIX => {
            let listener = std::os::unix::net::UnixListener::from(socket);
            listener.set_nonblocking(true)?;
            let path = listener.local_addr()?.as_pathname().map(Path::to_owned).unwrap_or_default();
            let inner = UnixListener::from_std(listener)?;
            Ok(Box::new(UnixAcceptor { inner, path, bound: None }))
        }
        other => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the inherited socket is neither TCP nor Unix (family {})", other.as_raw()),
        )),
    }
}

fn explain(what: &str, address: &Address, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {address}: {error}"))
}

struct TcpAcceptor {
    inner: TcpListener,
    address: Address,
}

impl TcpAcceptor {
    fn new(listener: std::net::TcpListener) -> io::Result<Self> {
        let address = Address::Tcp(listener.local_addr()?);
        Ok(Self { inner: TcpListener::from_std(listener)?, address })
    }
}

fn listen_tcp(socket: std::net::SocketAddr) -> io::Result<TcpAcceptor> {
    let listener = std::net::TcpListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    TcpAcceptor::new(listener)
}

impl Acceptor for TcpAcceptor {
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(async move {
            let stream = next_connection!(self.inner);
            // Taken off the background threads here; the closure puts it under the watch of the
            // caller's runtime.
            let stream = stream.into_std()?;
            Ok(Box::new(move || TcpStream::from_std(stream).and_then(tcp_stream)) as Accepted)
        })
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

struct UnixAcceptor {
    inner: UnixListener,
    path: PathBuf,
    /// Device and inode number of the socket file, when this acceptor made it and must remove it.
    bound: Option<(u64, u64)>,
}

/// Opens a listening Unix socket, to which only `mode` admits; `queue` connections may wait. A
/// stale socket (no process answers) is replaced, a live one is an error. For callers that keep
/// sockets longer than an environment; the others call [`Net::listen`].
pub fn bind_unix(path: &Path, mode: SocketMode, queue: i32) -> io::Result<OwnedFd> {
    remove_stale(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file takes its mode from the socket: at no moment is it open to more users.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(SocketMode::default().bits()))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let opened = access::admit(path, mode)
        .and_then(|()| Ok(rustix::net::listen(&socket, queue)?))
        .inspect_err(|_| _ = std::fs::remove_file(path));
    opened.map(|()| socket)
}

fn listen_unix(path: &Path) -> io::Result<UnixAcceptor> {
    let socket = bind_unix(path, SocketMode::default(), QUEUE)?;
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    let inner = UnixListener::from_std(listener)?;
    let bound = std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()));
    Ok(UnixAcceptor { inner, path: path.to_owned(), bound })
}

/// Connects to a Unix socket and hangs up, without waiting: a live server may be too busy to
/// accept, and its queue full (`AGAIN`).
pub fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&probe, &SocketAddrUnix::new(path)?)
}

/// Removes a socket file at which no process listens.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        // A connect to a plain file is refused as well: never take that for a stale socket.
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is not a socket is in the way",
            ));
        }
        Ok(_) => {}
    }
    match knock(path) {
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process already listens there"))
        }
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Acceptor for UnixAcceptor {
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(async move {
            let stream = next_connection!(self.inner);
            let stream = stream.into_std()?;
            let path = self.path.clone();
            Ok(
                Box::new(move || {
                    UnixStream::from_std(stream).map(|inner| unix_stream(inner, &path))
                }) as Accepted,
            )
        })
    }

    fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }
}

impl Drop for UnixAcceptor {
    fn drop(&mut self) {
        // Only the file made here: a successor may have put its own in the same place.
        let present =
            std::fs::symlink_metadata(&self.path).ok().map(|found| (found.dev(), found.ino()));
        if self.bound.is_some() && present == self.bound {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn tcp_stream(inner: TcpStream) -> io::Result<Box<dyn Stream>> {
    inner.set_nodelay(true)?;
    let peer =
        inner.peer_addr().map_or_else(|_| "tcp:gone".to_owned(), |peer| format!("tcp:{peer}"));
    Ok(Box::new(Socket::new(inner, peer)))
}

fn unix_stream(inner: UnixStream, path: &Path) -> Box<dyn Stream> {
    let process = inner.peer_cred().ok().and_then(|credentials| credentials.pid());
    let peer = match process {
        Some(process) => format!("unix:{} (process {process})", path.display()),
        None => format!("unix:{}", path.display()),
    };
    Box::new(Socket::new(inner, peer))
}

/// A tokio socket and the name of its other end.
struct Socket<S> {
    inner: S,
    peer: String,
    patience: Patience,
    /// Whether bytes are there of which tokio does not know.
    lingered: bool,
}

impl<S> Socket<S> {
    fn new(inner: S, peer: String) -> Self {
        Self { inner, peer, patience: Patience::default(), lingered: false }
    }
}

impl<S: AsyncRead + AsyncWrite + AsFd + Send + Unpin> Stream for Socket<S> {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn is_closed(&self) -> bool {
        // `HUP` and `ERR` are told without being asked for.
        let mut asked = [PollFd::new(&self.inner, PollFlags::RDHUP)];
        if rustix::event::poll(&mut asked, Some(&Timespec::default())).is_err() {
            return false;
        }
        let told = asked[0].revents();
        if told.contains(PollFlags::RDHUP) {
            probe(&self.inner);
        }
        told.intersects(PollFlags::HUP | PollFlags::ERR)
    }

    fn linger(&mut self) -> bool {
        if !self.patience.is_worth_it() {
            return false;
        }
        let end = Instant::now() + LINGER;
        loop {
            let mut byte = [0u8; 1];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let found = rustix::net::recv(self.inner.as_fd(), &mut byte[..], flags);
            self.lingered = !matches!(found, Err(Errno::AGAIN | Errno::INTR));
            if self.lingered || Instant::now() >= end {
                self.patience.learn(self.lingered);
                return self.lingered;
            }
            std::hint::spin_loop();
        }
    }
}

/// Has the kernel ask a TCP client that sends no more whether it still reads; for other sockets
/// nothing. A client that has shut down its writing answers, and may wait for replies as long as it
/// likes. One that has closed its socket looks the same, until its kernel has forgotten the socket
/// (after a minute, on Linux): it then resets the connection. A time-out of our own could not tell
/// the two apart.
fn probe(socket: &impl AsFd) {
    use rustix::net::sockopt;
    // Each of these may be set again and again; no probe is sent sooner or later for that.
    let _ = sockopt::set_tcp_keepidle(socket, PROBE_INTERVAL)
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, PROBES_MAX))
        .and_then(|()| sockopt::set_socket_keepalive(socket, true));
}

/// The decision whether to linger: yes while it succeeds. A failure skips the next waits, and each
/// further failure skips about twice as many.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
    pause: u32,
}

impl Patience {
    fn is_worth_it(&mut self) -> bool {
        let worth = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        worth
    }

    fn learn(&mut self, success: bool) {
        self.failures = if success { 0 } else { (self.failures + 1).min(LINGER_PAUSE_BITS) };
        self.pause = (1 << self.failures) - 1;
    }
}

impl<S: AsyncRead + AsFd + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.lingered) {
            // An error is ignored here: tokio will meet it as well.
            let flags = RecvFlags::DONTWAIT;
            if let Ok((count, _)) =
                rustix::net::recv(this.inner.as_fd(), buffer.initialize_unfilled(), flags)
            {
                buffer.advance(count);
                return Poll::Ready(Ok(()));
            }
        }
        Pin::new(&mut this.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_tcp_client_that_has_closed_is_told_from_one_that_still_reads() {
        let (env, runtime) = crate::real::env().unwrap();
        runtime.block_on(async {
            let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
            let acceptor = env.net().listen(&address).await.unwrap();
            let Address::Tcp(address) = acceptor.address() else { panic!("TCP") };
            let mut streams = Vec::new();
            let mut clients = Vec::new();
            for _ in 0..2 {
                clients.push(std::net::TcpStream::connect(address).unwrap());
                streams.push(acceptor.accept().await.unwrap()().unwrap());
            }
            assert!(!streams.iter().any(|stream| stream.is_closed()));
            let closing = clients.pop().unwrap();
            // The client's kernel shall forget the socket after a second, not after a minute.
            let one = 1i32;
            // SAFETY: the option is an `int`, which lives for the call.
            let set = unsafe {
                libc::setsockopt(
                    std::os::fd::AsRawFd::as_raw_fd(&closing),
                    libc::IPPROTO_TCP,
                    libc::TCP_LINGER2,
                    (&raw const one).cast(),
                    4,
                )
            };
            assert_eq!(set, 0);
            drop(closing);
            clients[0].shutdown(std::net::Shutdown::Write).unwrap();
            let began = Instant::now();
            while !streams[1].is_closed() {
                assert!(began.elapsed() < 12 * PROBE_INTERVAL, "it is not noticed");
                assert!(!streams[0].is_closed(), "it reads");
                env.sleep(Duration::from_millis(100)).await;
            }
            // The other one has been asked meanwhile, and has answered.
            assert!(began.elapsed() >= PROBE_INTERVAL - Duration::from_secs(1));
            env.sleep(PROBE_INTERVAL).await;
            assert!(!streams[0].is_closed(), "it reads");
        });
    }

    #[test]
    fn a_unix_socket_lets_in_nobody_but_its_user_and_the_group_that_was_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = bind_unix(&path, SocketMode::default(), 5).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        let live = bind_unix(&path, SocketMode::default(), 5).unwrap_err();
        assert_eq!(live.kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        let group = rustix::process::getegid().as_raw();
        let _socket = bind_unix(&path, SocketMode { group: Some(group) }, 5).unwrap();
        assert_eq!(mode(&path), 0o660);
        assert_eq!(std::fs::metadata(&path).unwrap().gid(), group);
    }

    #[test]
    fn patience_ends_and_comes_back() {
        let mut patience = Patience::default();
        let mut tried = 0;
        for _ in 0..10_000 {
            if patience.is_worth_it() {
                tried += 1;
                patience.learn(false);
            }
        }
        assert!((10..30).contains(&tried), "{tried}");
        while !patience.is_worth_it() {}
        patience.learn(true);
        assert!((0..100).all(|_| {
            patience.learn(true);
            patience.is_worth_it()
        }));
    }
}
