//! The service of an NFS listener: a session for every connection.

use super::limits;
use super::meters::Counted;
use super::server::Server;
use super::session::{self, End, Line};
use super::settings::Peer;
use super::target::Exports;
use super::v4;
use crate::conn::{Connections, SessionThread, Stop};
use rekindle_env::{Acceptor, Address, BoxFuture, Env, Stream};
use std::sync::Arc;

/// Serves NFS and MOUNT on `acceptors` until the connections are stopped. `supervise::sockets` has
/// refused an address that strangers reach, unless the user allows it.
pub fn serve<E: Exports>(
    env: &Env,
    acceptors: Vec<Box<dyn Acceptor>>,
    server: &Arc<Server<E>>,
    connections: &Connections,
) {
    if !acceptors.is_empty() {
        tend(server);
    }
    for acceptor in acceptors {
        env.spawn_foreground(
            "nfs-accept",
            accept(env.clone(), acceptor, server.clone(), connections.clone()),
        );
    }
}

/// Begins to tend a server, with its first listener or its first client of another host: a node
/// without either has no task for it.
pub fn tend<E: Exports>(server: &Arc<Server<E>>) {
    if !server.is_first_to_tend() {
        return;
    }
    let (env, weak) = (server.env.clone(), Arc::downgrade(server));
    let noted = server.haunts_noted.clone();
    env.clone().spawn("nfs-idle", async move {
        loop {
            let is_noted = tokio::select! {
                () = env.sleep(limits::IDLE_LOOK) => false,
                () = noted.notified() => true,
            };
            let Some(server) = weak.upgrade() else { return };
            match is_noted {
                true => server.keep_haunts().await,
                false => server.tend().await,
            }
        }
    });
    let (env, weak) = (server.env.clone(), Arc::downgrade(server));
    env.clone().spawn("nfs-forsaken", async move {
        loop {
            env.sleep(v4::limits::TEND_INTERVAL).await;
            let Some(server) = weak.upgrade() else { return };
            v4::tend::drop_forsaken(&server).await;
        }
    });
}

async fn accept<E: Exports>(
    env: Env,
    acceptor: Box<dyn Acceptor>,
    server: Arc<Server<E>>,
    connections: Connections,
) {
    let (address, budget) = (acceptor.address(), connections.budget().clone());
    let budget = match &address {
        Address::Tcp(_) => budget.for_strangers(),
        Address::Unix(_) => budget,
    };
    let serve = Arc::new(move |stream: Box<dyn Stream>, stop| -> BoxFuture<'static, ()> {
        let line = Line {
            server: server.clone(),
            peer: Peer::of(&address, &stream.peer()),
            budget: budget.clone(),
        };
        Box::pin(connection(line, stream, stop))
    });
    connections.accept(&env, acceptor, SessionThread::Shared, serve).await;
}

async fn connection<E: Exports>(line: Line<E>, stream: Box<dyn Stream>, stop: Stop) {
    let peer = stream.peer();
    tracing::info!(%peer, "NFS client connected");
    let _counted = Counted::new();
    match session::run(line, stream, stop).await {
        End::Garbage(reason) => tracing::warn!(%peer, reason, "NFS client hung up on"),
        End::Io(error) => tracing::info!(%peer, %error, "NFS client lost"),
        end @ (End::Client | End::Stopped) => {
            tracing::info!(%peer, ?end, "NFS client disconnected");
        }
    }
}
