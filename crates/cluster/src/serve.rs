//! Accepts peers, and serves each in a thread of its own, which writes to the disk itself.

use crate::connection::{Broken, Connection};
use crate::hello::{self, Identity};
use crate::holder::Holder;
use crate::limits::{ACCEPT_PAUSE, IDLE_TIME_MAX, PEERS_MAX, STRANGERS_MAX};
use crate::wire::Message;
use parking_lot::Mutex;
use rekindle_env::{Acceptor, BoxFuture, Env, TaskHandle};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The sessions that run; its drop ends them.
#[derive(Default)]
struct Sessions(Mutex<BTreeMap<u64, Option<TaskHandle>>>);

impl Drop for Sessions {
    fn drop(&mut self) {
        self.0.get_mut().values().flatten().for_each(TaskHandle::abort);
    }
}

/// Lets peers call the holder, for as long as the future is polled.
pub async fn serve(env: Env, acceptor: Box<dyn Acceptor>, holder: Arc<Holder>, identity: Identity) {
    let (strangers, peers) =
        (Arc::new(Semaphore::new(STRANGERS_MAX)), Arc::new(Semaphore::new(PEERS_MAX)));
    let sessions = Arc::new(Sessions::default());
    for number in 0.. {
        let connect = loop {
            match acceptor.accept().await {
                Ok(connect) => break connect,
                Err(error) => {
                    tracing::warn!(%error, "peers cannot be accepted now");
                    env.sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        // A connection that is hung up on can say so; one that waits looks like a hang.
        let Ok(stranger) = Arc::clone(&strangers).try_acquire_owned() else { continue };
        let (task_env, holder, peers) = (env.clone(), Arc::clone(&holder), Arc::clone(&peers));
        let ended = Arc::downgrade(&sessions);
        sessions.0.lock().insert(number, None);
        let task = env.spawn_session("cluster-peer", async move {
            if let Ok(stream) = connect() {
                let connection = Connection::new(&task_env, stream);
                let peer = connection.peer();
                let served = one(&task_env, connection, &holder, &identity, stranger, &peers);
                if let Err(why) = served.await {
                    tracing::warn!(peer, why, "a peer's connection has ended");
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
    env: &'a Env,
    mut connection: Connection,
    holder: &'a Holder,
    identity: &'a Identity,
    stranger: tokio::sync::OwnedSemaphorePermit,
    peers: &'a Semaphore,
) -> BoxFuture<'a, Result<(), String>> {
    Box::pin(async move {
        let life = hello::answer(env, &mut connection, identity).await?;
        drop(stranger);
        let Ok(_peer) = peers.try_acquire() else {
            return hello::refuse(&mut connection, "too many peers are connected here").await;
        };
        if life.node == identity.life.node {
            return hello::refuse(&mut connection, "a node keeps no copies of its own log").await;
        }
        let mut session = match holder.session(life).await {
            Ok(session) => session,
            Err(why) => return hello::refuse(&mut connection, &why).await,
        };
        let mut reply = Message::Done(0);
        loop {
            if let Err(broken) = connection.send(&reply).await {
                return Err(broken.to_string());
            }
            let done = match connection.receive(IDLE_TIME_MAX, u32::MAX).await {
                Ok(request) => session.call(&request).await,
                Err(Broken::Ended(_)) => return Ok(()),
                Err(broken) => {
                    return hello::refuse(&mut connection, &broken.to_string()).await;
                }
            };
            reply = match done {
                Ok(has) => Message::Done(has),
                Err(why) => {
                    tracing::debug!(node = %life.node, why, "a peer's request is refused");
                    Message::Refused(why)
                }
            };
        }
    })
}
