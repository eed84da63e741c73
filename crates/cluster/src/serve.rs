//! Accepts other nodes, and serves each in a thread of its own, which writes to the disk itself.

use crate::calls::Calls;
use crate::connection::{Broken, Connection};
use crate::forward::Volumes;
use crate::hello;
use crate::holder::{Holder, Session};
use crate::limits::{ACCEPT_PAUSE, HELLO_TIME_MAX, IDLE_TIME_MAX, PEERS_MAX, STRANGERS_MAX};
use crate::wire::{Message, Serve};
use parking_lot::Mutex;
use rekindle_base::Life;
use rekindle_env::{Acceptor, BoxFuture, Stream, TaskHandle};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// What a host does for other nodes.
pub struct Desk {
    pub calls: Arc<Calls>,
    pub holder: Arc<Holder>,
    /// Called when a node has proved itself that may be new here.
    pub met: Box<dyn Fn() + Send + Sync>,
    /// Has this node take no further copies, or some again, as another node asks.
    pub drain: Drain,
    /// The volumes that this host serves to clients of other hosts.
    pub volumes: Arc<dyn Volumes>,
}

/// A request to drain, or not.
pub type Drain = Box<dyn Fn(bool) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// The sessions that run; its drop ends them.
#[derive(Default)]
struct Sessions(Mutex<BTreeMap<u64, Option<TaskHandle>>>);

impl Drop for Sessions {
    fn drop(&mut self) {
        self.0.get_mut().values().flatten().for_each(TaskHandle::abort);
    }
}

/// Lets other nodes call, for as long as the future is polled.
pub async fn serve(acceptor: Box<dyn Acceptor>, desk: Arc<Desk>) {
    let (strangers, peers) =
        (Arc::new(Semaphore::new(STRANGERS_MAX)), Arc::new(Semaphore::new(PEERS_MAX)));
    let sessions = Arc::new(Sessions::default());
    let env = desk.calls.env.clone();
    for number in 0.. {
        let connect = loop {
            match acceptor.accept().await {
                Ok(connect) => break connect,
                Err(error) => {
                    tracing::warn!(%error, "other nodes cannot be accepted now");
                    env.sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        // A connection that is hung up on can say so; one that waits looks like a hang.
        let Ok(stranger) = Arc::clone(&strangers).try_acquire_owned() else { continue };
        let (desk, peers) = (Arc::clone(&desk), Arc::clone(&peers));
        let ended = Arc::downgrade(&sessions);
        sessions.0.lock().insert(number, None);
        let task = env.spawn_session("cluster-peer", async move {
            if let Ok(stream) = connect() {
                let peer = stream.peer();
                if let Err(why) = one(&desk, stream, stranger, &peers).await {
                    tracing::warn!(peer, why, "the connection of another node has ended");
                }
            }
            if let Some(sessions) = ended.upgrade() {
                sessions.0.lock().remove(&number);
            }
        });
        // The session may have ended already.
        if let Some(slot) = sessions.0.lock().get_mut(&number) {
            *slot = Some(task);
        }
    }
}

fn one<'a>(
    desk: &'a Desk,
    stream: Box<dyn Stream>,
    stranger: tokio::sync::OwnedSemaphorePermit,
    peers: &'a Semaphore,
) -> BoxFuture<'a, Result<(), String>> {
    Box::pin(async move {
        let calls = &desk.calls;
        let secured = calls.env.timeout(HELLO_TIME_MAX, calls.channel.accept(stream)).await;
        let secured = secured.map_err(|_| "the other end does not begin TLS".to_owned())?;
        let (stream, secured) = match secured {
            // A holder that knocks says nothing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            secured => secured.map_err(|error| format!("no TLS: {error}"))?,
        };
        let mut connection = Connection::new(&calls.env, stream);
        let identity = calls.identity(calls.home, secured);
        let life = hello::answer(&calls.env, &mut connection, &identity).await?;
        drop(stranger);
        let Ok(peer) = peers.try_acquire() else {
            return hello::refuse(&mut connection, "too many nodes are connected here").await;
        };
        match calls.vouch(life, secured).await {
            Ok(entry) if entry.host == calls.home.node => {
                return hello::refuse(&mut connection, "a node keeps no copies of its own log")
                    .await;
            }
            Ok(_) => {}
            Err(why) => return hello::refuse(&mut connection, &why).await,
        }
        (desk.met)();
        let mut visit = Visit { desk, life, session: None };
        let mut reply = Message::Done(0);
        loop {
            if let Err(broken) = connection.send(&reply).await {
                return Err(broken.to_string());
            }
            let done = match connection.receive(IDLE_TIME_MAX, u32::MAX).await {
                // Sessions of clients have bounds of their own.
                Ok(Message::Serve(request)) => {
                    drop(peer);
                    return forwarded(desk, life, connection, request).await;
                }
                Ok(request) => visit.call(&request).await,
                Err(Broken::Ended(_)) => return Ok(()),
                Err(broken) => {
                    return hello::refuse(&mut connection, &broken.to_string()).await;
                }
            };
            reply = done.unwrap_or_else(|why| {
                tracing::debug!(node = %life.node, why, "a request of another node is refused");
                Message::Refused(why)
            });
        }
    })
}

/// Serves a volume to a client of another host, for the rest of the connection.
async fn forwarded(
    desk: &Desk,
    life: Life,
    mut connection: Connection,
    request: Serve,
) -> Result<(), String> {
    let (opened, reply) = match desk.volumes.open(life, request).await {
        Ok(opened) => {
            let served = opened.served;
            (Some(opened.session), Message::Served(served))
        }
        Err(unserved) => (None, Message::Unserved(unserved)),
    };
    connection.send(&reply).await.map_err(|broken| broken.to_string())?;
    if let Some(session) = opened {
        session(connection.into_stream()).await;
    }
    Ok(())
}

/// One connection of a life that has proved itself.
struct Visit<'a> {
    desk: &'a Desk,
    life: Life,
    /// The session of copies, once the first call for it has come.
    session: Option<Session>,
}

impl Visit<'_> {
    async fn call(&mut self, request: &Message<'_>) -> Result<Message<'static>, String> {
        let holder = &self.desk.holder;
        let done = |()| Message::Done(0);
        match request {
            Message::Beat(lease) => {
                let lease = Duration::from_millis(u64::from(*lease));
                holder.grant(self.life, lease).map(done)
            }
            Message::Rest => {
                holder.rest(self.life);
                Ok(done(()))
            }
            Message::Offer => Ok(Message::Offered(holder.offer())),
            Message::Hears(life) => Ok(Message::Done(u32::from(holder.hears(*life)))),
            Message::Drain(on) => (self.desk.drain)(*on > 0).await.map(done),
            Message::Ping if self.session.is_none() => {
                // It has news: what its record says.
                self.desk.calls.read(self.life.node).await?;
                (self.desk.met)();
                Ok(done(()))
            }
            _ => {
                let session = match &mut self.session {
                    Some(session) => session,
                    None => self.session.insert(holder.session(self.life).await?),
                };
                session.call(request).await.map(Message::Done)
            }
        }
    }
}
