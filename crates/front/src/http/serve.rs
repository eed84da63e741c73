//! Connections of the API: hyper on a stream of the env, one background task each.

use super::api::ApiError;
use super::guard::Guard;
use super::problem::problem;
use super::routes::{self, App};
use crate::conn::{Connections, SessionThread, Stop};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_env::{Acceptor, Address, BoxFuture, Env, Moment, Stream};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes of a request's body.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of a request's head (hyper's buffer).
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long a client may take for a request's head; also how long an idle connection is kept.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a client may take to receive an answer that is ready.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a request may take. Longer work is a job.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);

/// Serves the API on `acceptor` until the connections are stopped. `supervise::sockets` has refused
/// an address that strangers reach, unless the user allows it.
pub async fn serve(env: Env, acceptor: Box<dyn Acceptor>, app: App, connections: Connections) {
    let guard = match acceptor.address() {
        Address::Unix(_) => Guard::Unix,
        Address::Tcp(socket) if socket.ip().is_loopback() => Guard::Loopback,
        Address::Tcp(_) => Guard::Remote,
    };
    let router = router(&env, app, guard);
    let serve_env = env.clone();
    let serve = Arc::new(move |stream, stop| -> BoxFuture<'static, ()> {
        Box::pin(connection(serve_env.clone(), stream, stop, router.clone()))
    });
    connections.accept(&env, acceptor, SessionThread::Shared, serve).await;
}

/// The checks that every request passes.
#[derive(Clone)]
struct Gate {
    env: Env,
    guard: Guard,
}

pub(super) fn router(env: &Env, app: App, guard: Guard) -> Router {
    routes::router()
        .with_state(app)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Gate { env: env.clone(), guard }, pass))
}

async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    if let Err(error) = gate.guard.check(request.method(), request.headers()) {
        return problem(axum::http::StatusCode::FORBIDDEN, &error);
    }
    match gate.env.timeout(REQUEST_TIME_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(
            Kind::Unavailable,
            format!(
                "no answer within {} s; it may still happen: look before you try again",
                REQUEST_TIME_MAX.as_secs()
            ),
        )
        .into_response(),
    }
}

async fn connection(env: Env, stream: Box<dyn Stream>, stop: Stop, router: Router) {
    let peer = stream.peer();
    let served = http1::Builder::new()
        .timer(EnvTimer { env: env.clone(), epoch: epoch() })
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Hasty::new(env, stream)), TowerToHyperService::new(router))
        // A mount's connection goes on as another protocol.
        .with_upgrades();
    let mut served = pin!(served);
    let ended = match select(served.as_mut(), stop).await {
        Either::Left((ended, _)) => ended,
        Either::Right(_) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "HTTP connection ended");
    }
}

/// A client's stream that breaks when the client does not take an answer in time: a client that
/// never reads would keep its slot for ever.
struct Hasty {
    env: Env,
    stream: Box<dyn Stream>,
    /// The time limit; set while the client has not taken all bytes, even if it takes a few now and
    /// then.
    limit: Option<BoxFuture<'static, ()>>,
}

impl Hasty {
    fn new(env: Env, stream: Box<dyn Stream>) -> Self {
        Self { env, stream, limit: None }
    }

    /// Returns the result of a write, or an error when the time limit has passed.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            let limit = self.limit.get_or_insert_with(|| self.env.sleep(WRITE_TIME_MAX));
            if limit.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        written
    }
}

impl AsyncRead for Hasty {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Hasty {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut *this.stream).poll_write(context, data);
        this.judge(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut *this.stream).poll_write_vectored(context, pieces);
        this.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written all it has.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.limit = None;
        Pin::new(&mut *this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_shutdown(context)
    }
}

/// The env's time for hyper. hyper needs `Instant`s, which the env does not have: they count from
/// an epoch that is taken once and stands for the env's zero.
struct EnvTimer {
    env: Env,
    epoch: Instant,
}

#[expect(
    clippy::disallowed_methods,
    reason = "an arbitrary origin for hyper's Instants; time itself comes from the env"
)]
fn epoch() -> Instant {
    Instant::now()
}

impl hyper::rt::Timer for EnvTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Nap(Mutex::new(self.env.sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        let deadline = Moment(deadline.saturating_duration_since(self.epoch));
        self.sleep(deadline.since(self.env.now()))
    }

    fn now(&self) -> Instant {
        self.epoch + self.env.now().0
    }
}

/// A sleep that is `Sync`, as hyper requires; the lock is never contended, because `poll` has the
/// only reference.
struct Nap(Mutex<BoxFuture<'static, ()>>);

impl Future for Nap {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.get_mut().0.get_mut().as_mut().poll(context)
    }
}

impl hyper::rt::Sleep for Nap {}

#[cfg(test)]
mod tests;
