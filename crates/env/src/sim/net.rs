//! A simulated network: listeners by address, and a pair of pipes for each connection.
//!
//! Unix sockets and loopback addresses are a host's own; other addresses are the world's. Bytes
//! arrive in order, each piece after a delay, and are read and written in pieces of any size. A
//! process that ends closes its connections; one that loses power resets them.

use super::executor::Delay;
use super::faults::Failure;
use super::state::{Event, Machine, State};
use crate::{Accepted, Acceptor, Address, BoxFuture, Descriptors, Net, Stream};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a connection holds in each direction.
const PIPE_BYTES_MAX: usize = 256 << 10;
/// The port after which ports are chosen for listeners at port 0.
const PORT_CHOSEN_MIN: u16 = 40_000;

#[derive(Default)]
pub(super) struct NetState {
    listeners: BTreeMap<HostAddress, Listener>,
    cuts: Cuts,
    ports_chosen: u16,
}

/// The host that owns the address (`None`: the world), and the address.
type HostAddress = (Option<usize>, String);

struct Listener {
    number: u64,
    host: usize,
    queue: VecDeque<SimStream>,
    wakers: Vec<Waker>,
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    /// Pieces under way: time of arrival, bytes, and number of bytes that are read.
    pieces: VecDeque<(Duration, Vec<u8>, usize)>,
    bytes: usize,
    /// Time at which the latest piece arrives.
    latest: Duration,
    is_closed: bool,
    is_reset: bool,
    reader_is_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn take_wakers(&mut self) -> [Option<Waker>; 2] {
        [self.reader.take(), self.writer.take()]
    }
}

fn wake(wakers: impl IntoIterator<Item = Option<Waker>>) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}

fn place(host: usize, address: &Address) -> HostAddress {
    let is_local = match address {
        Address::Tcp(socket) => socket.ip().is_loopback(),
        Address::Unix(_) => true,
    };
    (is_local.then_some(host), address.to_string())
}

/// Ways between hosts, from one to the other, that are cut; and wakers of the tasks that wait for
/// the end of a cut.
#[derive(Default)]
struct Cuts {
    ways: BTreeSet<(usize, usize)>,
    waiting: Vec<Waker>,
}

impl Cuts {
    /// Whether nothing comes from one host to the other; if so, the end of the cut wakes the task.
    fn is_way_cut(&mut self, from: usize, to: usize, context: &Context<'_>) -> bool {
        let is_cut = self.ways.contains(&(from, to));
        if is_cut {
            self.waiting.push(context.waker().clone());
        }
        is_cut
    }

    /// Whether no connection can be made between two hosts, for which both ways are needed.
    fn are_between(&mut self, one: usize, other: usize, context: &Context<'_>) -> bool {
        self.is_way_cut(one, other, context) || self.is_way_cut(other, one, context)
    }
}

impl NetState {
    pub(super) fn cut_way(&mut self, from: usize, to: usize) {
        self.cuts.ways.insert((from, to));
    }

    pub(super) fn heal(&mut self) -> Vec<Waker> {
        self.cuts.ways.clear();
        std::mem::take(&mut self.cuts.waiting)
    }

    /// Ends the listeners of a host, and returns them: the caller drops them without the lock.
    pub(super) fn remove_host(&mut self, host: usize) -> impl Sized + use<> {
        let (gone, kept): (BTreeMap<_, _>, _) = std::mem::take(&mut self.listeners)
            .into_iter()
            .partition(|(_, listener)| listener.host == host);
        self.listeners = kept;
        gone
    }

    fn choose_port(&mut self, address: &Address) -> Address {
        match address {
            Address::Tcp(socket) if socket.port() == 0 => {
                self.ports_chosen = (self.ports_chosen + 1) % (u16::MAX - PORT_CHOSEN_MIN);
                let mut socket = *socket;
                socket.set_port(PORT_CHOSEN_MIN + self.ports_chosen);
                Address::Tcp(socket)
            }
            other => other.clone(),
        }
    }
}

impl Net for Machine {
    fn descriptors(&self) -> Descriptors {
        self.shared.lock().faults.descriptors
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Acceptor>>> {
        Box::pin(async move {
            let mut guard = self.shared.lock();
            let state = &mut *guard;
            self.check_alive(state)?;
            state.take_descriptor()?;
            let address = state.net.choose_port(address);
            let place = place(self.host, &address);
            if state.net.listeners.contains_key(&place) {
                let message =
                    format!("cannot listen at {address}: another process already listens there");
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            let number = state.number();
            let listener =
                Listener { number, host: self.host, queue: VecDeque::new(), wakers: Vec::new() };
            state.net.listeners.insert(place.clone(), listener);
            Ok(Box::new(SimAcceptor { machine: self.clone(), number, place, address })
                as Box<dyn Acceptor>)
        })
    }

    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let delay = {
                let mut guard = self.shared.lock();
                let state = &mut *guard;
                state.take_descriptor()?;
                let latency = state.rng.duration(&state.faults.network_latency);
                Delay::until(&self.shared, state.now + latency)
            };
            delay.await;
            let stream = poll_fn(|context| self.poll_connect(address, context)).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

impl State {
    /// Takes one more file descriptor for a call, or fails by chance.
    fn take_descriptor(&mut self) -> io::Result<()> {
        if self.rng.chance(self.faults.no_descriptors) {
            self.record(Event::Fail, 0, 0);
            return Err(Failure::NoDescriptors.error());
        }
        Ok(())
    }
}

impl Machine {
    fn poll_connect(
        &self,
        address: &Address,
        context: &Context<'_>,
    ) -> Poll<io::Result<SimStream>> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        self.check_alive(state)?;
        let number = state.number();
        let NetState { listeners, cuts, .. } = &mut state.net;
        let Some(listener) = listeners.get_mut(&place(self.host, address)) else {
            let message = format!("cannot connect to {address}: no task listens there");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, message)));
        };
        let host = listener.host;
        if cuts.are_between(self.host, host, context) {
            return Poll::Pending;
        }
        let server = Machine { shared: self.shared.clone(), host, life: state.hosts[host].life };
        let (up, down) =
            (Arc::new(Mutex::new(Pipe::default())), Arc::new(Mutex::new(Pipe::default())));
        let names = (&state.hosts[self.host].name, &state.hosts[host].name);
        let there = SimStream::new(&server, self.host, &up, &down, format!("{}#{number}", names.0));
        let here = SimStream::new(self, host, &down, &up, format!("{}#{number}", names.1));
        listener.queue.push_back(there);
        let wakers = std::mem::take(&mut listener.wakers);
        state.record(Event::Connect, number, host as u64);
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(here))
    }
}

struct SimAcceptor {
    machine: Machine,
    number: u64,
    place: HostAddress,
    address: Address,
}

impl SimAcceptor {
    /// The listener, unless a crash has ended it.
    fn listener<'a>(&self, state: &'a mut State) -> Option<&'a mut Listener> {
        state.net.listeners.get_mut(&self.place).filter(|listener| listener.number == self.number)
    }
}

impl Acceptor for SimAcceptor {
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(poll_fn(|context| {
            let mut state = self.machine.shared.lock();
            self.machine.check_alive(&state)?;
            let Some(listener) = self.listener(&mut state) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if !listener.queue.is_empty() {
                // As on the real machine, the client stays in the queue.
                state.take_descriptor()?;
            }
            let listener = self.listener(&mut state).expect("it was there");
            match listener.queue.pop_front() {
                Some(stream) => {
                    Poll::Ready(Ok(
                        Box::new(move || Ok(Box::new(stream) as Box<dyn Stream>)) as Accepted
                    ))
                }
                None => {
                    listener.wakers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl Drop for SimAcceptor {
    fn drop(&mut self) {
        let mut state = self.machine.shared.lock();
        let listener = if self.listener(&mut state).is_some() {
            state.net.listeners.remove(&self.place)
        } else {
            None
        };
        drop(state);
        // Without the lock: a listener holds connections, whose drop wants it.
        drop(listener);
    }
}

struct SimStream {
    machine: Machine,
    /// Host of the other end.
    host: usize,
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    /// Delay until the next piece arrives.
    arrival: Option<Delay>,
    peer: String,
}

impl SimStream {
    fn new(
        machine: &Machine,
        host: usize,
        incoming: &Arc<Mutex<Pipe>>,
        outgoing: &Arc<Mutex<Pipe>>,
        peer: String,
    ) -> Self {
        let (incoming, outgoing) = (incoming.clone(), outgoing.clone());
        Self { machine: machine.clone(), host, incoming, outgoing, arrival: None, peer }
    }
}

/// Draws the number of bytes that one call moves, of `most`.
fn transfer(state: &mut State, most: usize) -> usize {
    if most > 1 && state.rng.chance(state.faults.short_transfer) {
        1 + state.rng.index(most)
    } else {
        most
    }
}

impl Stream for SimStream {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn is_closed(&self) -> bool {
        self.incoming.lock().is_closed && self.outgoing.lock().reader_is_gone
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.arrival = None;
        let mut guard = this.machine.shared.lock();
        let state = &mut *guard;
        this.machine.check_alive(state)?;
        let mut pipe = this.incoming.lock();
        if pipe.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        // A reset must reach a reader that waits for another event.
        pipe.reader = Some(context.waker().clone());
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if state.net.cuts.is_way_cut(this.host, this.machine.host, context) {
            return Poll::Pending;
        }
        let arrives = pipe.pieces.front().map_or(pipe.latest, |piece| piece.0);
        if arrives > state.now {
            let delay = this.arrival.insert(Delay::until(&this.machine.shared, arrives));
            drop((pipe, guard));
            return Pin::new(delay).poll(context).map(Ok);
        }
        let Some((_, bytes, done)) = pipe.pieces.front_mut() else {
            return if pipe.is_closed { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        let count = transfer(state, (bytes.len() - *done).min(buffer.remaining()));
        buffer.put_slice(&bytes[*done..*done + count]);
        *done += count;
        if *done == bytes.len() {
            pipe.pieces.pop_front();
        }
        pipe.bytes -= count;
        state.record(Event::Receive, this.host as u64, count as u64);
        let writer = pipe.writer.take();
        drop((pipe, guard));
        wake([writer]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut guard = this.machine.shared.lock();
        let state = &mut *guard;
        this.machine.check_alive(state)?;
        let mut pipe = this.outgoing.lock();
        if pipe.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if pipe.is_closed || pipe.reader_is_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = (PIPE_BYTES_MAX - pipe.bytes).min(data.len());
        if room == 0 && !data.is_empty() {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = transfer(state, room);
        if count > 0 {
            let latency = state.rng.duration(&state.faults.network_latency);
            pipe.latest = pipe.latest.max(state.now + latency);
            pipe.bytes += count;
            let arrives = pipe.latest;
            pipe.pieces.push_back((arrives, data[..count].to_vec(), 0));
        }
        state.record(Event::Send, this.host as u64, count as u64);
        let reader = pipe.reader.take();
        drop((pipe, guard));
        wake([reader]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.outgoing.lock();
        pipe.is_closed = true;
        let reader = pipe.reader.take();
        drop(pipe);
        wake([reader]);
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        let is_reset = {
            let state = self.machine.shared.lock();
            self.machine.death(&state).is_some_and(|death| death.power)
        };
        let wakers = {
            let mut pipe = self.outgoing.lock();
            pipe.is_closed = true;
            pipe.is_reset |= is_reset;
            pipe.take_wakers()
        };
        wake(wakers);
        let wakers = {
            let mut pipe = self.incoming.lock();
            pipe.reader_is_gone = true;
            pipe.is_reset |= is_reset;
            pipe.take_wakers()
        };
        wake(wakers);
    }
}
