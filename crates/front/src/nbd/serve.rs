//! The service of an NBD listener: a handshake, then a session, for every connection.

use super::handshake::{self, Agreed, Link};
use super::meters::VolumeMeters;
use super::replies::Modes;
use super::session::{self, End};
use super::target::{Exports, Target};
use crate::conn::{Budget, Connections, SessionThread, Stop};
use futures_util::future::{Either, select};
use rekindle_env::{Acceptor, Address, BoxFuture, Env, Stream};
use std::pin::pin;
use std::sync::Arc;

/// Serves NBD on `acceptor` until the connections are stopped. Each client gets a thread of its
/// own. `supervise::sockets` has refused an address that strangers reach, unless the user allows
/// it.
pub async fn serve<E: Exports>(
    env: Env,
    acceptor: Box<dyn Acceptor>,
    exports: Arc<E>,
    connections: Connections,
) {
    let serve_env = env.clone();
    let budget = match acceptor.address() {
        Address::Tcp(_) => connections.budget().for_strangers(),
        Address::Unix(_) => connections.budget().clone(),
    };
    let serve = Arc::new(move |stream, stop| -> BoxFuture<'static, ()> {
        let (exports, budget) = (exports.clone(), budget.clone());
        Box::pin(connection(serve_env.clone(), stream, stop, exports, budget))
    });
    connections.accept(&env, acceptor, SessionThread::OwnThread, serve).await;
}

async fn connection<E: Exports>(
    env: Env,
    stream: Box<dyn Stream>,
    mut stop: Stop,
    exports: Arc<E>,
    budget: Budget,
) {
    let peer = stream.peer();
    env.boot_phase("first-connection", None, env.watch());
    let mut link = Link::new(stream);
    let negotiated = {
        let negotiating = pin!(handshake::negotiate(&env, &mut link, &*exports));
        match select(negotiating, &mut stop).await {
            Either::Left((negotiated, _)) => negotiated,
            Either::Right(_) => return,
        }
    };
    let agreed = match negotiated {
        Ok(Some(agreed)) => agreed,
        Ok(None) => return,
        Err(failure) if failure.is_notable() => {
            tracing::warn!(%peer, reason = %failure, "NBD client dropped in the handshake");
            return;
        }
        Err(failure) => {
            tracing::debug!(%peer, reason = %failure, "NBD client went in the handshake");
            return;
        }
    };
    run(&env, link, agreed, budget, stop, &peer).await;
}

/// Serves a device to a client that has no handshake, with structured replies and
/// `base:allocation`: a client of another host, which forwards its requests.
pub async fn serve_device<D: Target>(
    env: &Env,
    stream: Box<dyn Stream>,
    stop: Stop,
    (name, device, meters): (String, D, Arc<VolumeMeters>),
    budget: Budget,
) {
    let peer = stream.peer();
    let modes = Modes { structured: true, block_status: true };
    let agreed = Agreed { name, device, modes, meters };
    run(env, Link::new(stream), agreed, budget, stop, &peer).await;
}

async fn run<D: Target>(
    env: &Env,
    link: Link,
    agreed: Agreed<D>,
    budget: Budget,
    stop: Stop,
    peer: &str,
) {
    let volume = agreed.name.clone();
    tracing::info!(%peer, %volume, "NBD client connected");
    let end = {
        let _counted = Counted::new();
        session::run(env, link, agreed, budget, stop).await
    };
    match end {
        End::Client | End::Stopped => {
            tracing::info!(%peer, %volume, ?end, "NBD client disconnected")
        }
        End::Fenced => {
            tracing::warn!(%peer, %volume, "NBD client hung up on: the volume is not served here any more");
        }
        End::Io(error) => tracing::info!(%peer, %volume, %error, "NBD client lost"),
        End::Stalled => {
            tracing::warn!(
                %peer, %volume,
                "NBD client dropped: it moves hardly any bytes, and holds memory that other clients wait for"
            );
        }
        End::Garbage(garbage) => {
            tracing::warn!(%peer, %volume, reason = %garbage, "NBD client dropped: it does not speak NBD");
        }
    }
}

/// One session in the gauge; its drop takes it out, however the session ends.
struct Counted(metrics::Gauge);

impl Counted {
    fn new() -> Self {
        let sessions = metrics::gauge!("rekindle_nbd_sessions");
        sessions.increment(1);
        Self(sessions)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
