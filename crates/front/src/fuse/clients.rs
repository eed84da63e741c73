//! The mounts that this daemon serves, and the inodes that they have open.
//!
//! A mount has one session: the next one begins when the last has ended with all requests that it
//! has begun. Else a request that is sent again could be carried out beside itself. The opens of a
//! mount outlive its session for a while, so that one that comes back finds its files.

use super::limits;
use crate::target::Target;
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_env::Env;
use rekindle_file::Ino;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// A mount: its volume, and the number that it has drawn.
pub type Key = (VolumeId, u64);

/// The mounts of a daemon. Clones share them.
pub struct Clients<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    all: Mutex<BTreeMap<Key, Row<T>>>,
    /// Rung when a session has ended.
    left: Notify,
}

impl<T> Clone for Clients<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T> Default for Clients<T> {
    fn default() -> Self {
        Self { inner: Arc::new(Inner { all: Mutex::default(), left: Notify::new() }) }
    }
}

struct Row<T> {
    /// Counts the sessions of the mount.
    session: u64,
    state: State<T>,
}

enum State<T> {
    /// A session serves it; the sender, until it is used, asks the session to finish.
    Served(Option<oneshot::Sender<()>>),
    /// It is gone, and leaves opens that stay for a while.
    Gone(Opens<T>),
}

/// Inodes that are open in a file system.
pub struct Opens<T> {
    target: T,
    counts: BTreeMap<Ino, u64>,
}

impl<T: Target> Opens<T> {
    /// Closes all of them.
    pub async fn close(self) {
        for (ino, count) in self.counts {
            for _ in 0..count {
                self.target.close(ino).await;
            }
        }
    }
}

/// A mount that has a session; its drop ends that.
pub struct Enrolled<T: Target> {
    clients: Clients<T>,
    env: Env,
    key: Key,
    session: u64,
    target: T,
    counts: Mutex<BTreeMap<Ino, u64>>,
}

impl<T: Target> Clients<T> {
    /// Lets a mount in, once its earlier session has ended. Returns also what that has left open,
    /// and a future that completes when a later session of the mount wants to begin.
    pub async fn enroll(
        &self,
        env: &Env,
        key: Key,
        target: &T,
    ) -> (Enrolled<T>, Option<Opens<T>>, oneshot::Receiver<()>) {
        loop {
            let mut left = pin!(self.inner.left.notified());
            // Before the look: no end after it is missed.
            left.as_mut().enable();
            if let Some((session, earlier, later)) = self.try_enroll(key) {
                let (clients, env, target) = (self.clone(), env.clone(), target.clone());
                let counts = Mutex::default();
                let enrolled = Enrolled { clients, env, key, session, target, counts };
                return (enrolled, earlier, later);
            }
            left.await;
        }
    }

    fn try_enroll(&self, key: Key) -> Option<(u64, Option<Opens<T>>, oneshot::Receiver<()>)> {
        let mut all = self.inner.all.lock();
        let (finish, later) = oneshot::channel();
        let served = State::Served(Some(finish));
        let Some(row) = all.get_mut(&key) else {
            all.insert(key, Row { session: 0, state: served });
            return Some((0, None, later));
        };
        if let State::Served(finish) = &mut row.state {
            finish.take();
            return None;
        }
        row.session += 1;
        let earlier = match std::mem::replace(&mut row.state, served) {
            State::Gone(opens) => Some(opens),
            State::Served(_) => None,
        };
        Some((row.session, earlier, later))
    }

    /// Takes out what a mount has left open, unless it has come back.
    fn expire(&self, key: Key, session: u64) -> Option<Opens<T>> {
        let mut all = self.inner.all.lock();
        let row = all.get(&key)?;
        if row.session != session || matches!(row.state, State::Served(_)) {
            return None;
        }
        match all.remove(&key)?.state {
            State::Gone(opens) => Some(opens),
            State::Served(_) => None,
        }
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.inner.all.lock().len()
    }
}

impl<T: Target> Enrolled<T> {
    /// Notes that an inode is open `count` times more.
    pub fn opened(&self, ino: Ino, count: u64) {
        *self.counts.lock().entry(ino).or_default() += count;
    }

    /// Notes that an inode is open once less. Whether it was.
    pub fn closed(&self, ino: Ino) -> bool {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(&ino) else { return false };
        *count -= 1;
        if *count == 0 {
            counts.remove(&ino);
        }
        true
    }

    /// Takes out all that is open.
    pub fn take(&self) -> Opens<T> {
        Opens { target: self.target.clone(), counts: std::mem::take(&mut self.counts.lock()) }
    }
}

impl<T: Target> Drop for Enrolled<T> {
    fn drop(&mut self) {
        let (key, session, opens) = (self.key, self.session, self.take());
        let inner = &self.clients.inner;
        if opens.counts.is_empty() {
            inner.all.lock().remove(&key);
        } else {
            inner.all.lock().insert(key, Row { session, state: State::Gone(opens) });
            let (clients, sleeper) = (self.clients.clone(), self.env.clone());
            self.env.spawn("fuse-opens", async move {
                sleeper.sleep(limits::OPENS_GRACE).await;
                if let Some(opens) = clients.expire(key, session) {
                    opens.close().await;
                }
            });
        }
        inner.left.notify_waiters();
    }
}
