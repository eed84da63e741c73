//! The mounts that this daemon serves, and the inodes that they have open and locked.
//!
//! A mount has one session: the next one begins when the last has ended with all requests that it
//! has begun. Else a request that is sent again could be carried out beside itself. The opens and
//! locks of a mount outlive its session for a while, so that one that comes back finds its files.

use super::limits;
use crate::held::{Held, Holder, Keeping, Refused};
use crate::target::Target;
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_env::{Env, Moment};
use rekindle_file::{Caller, Ino};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// A mount: its volume, and the number that it has drawn.
pub type Key = (VolumeId, u64);

/// Says of a client of NFS that it has gone, where its volume is in service since a moment.
pub type HasGone = dyn Fn(&Holder, Moment) -> bool + Send + Sync;

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
    /// It is gone since then, and leaves opens that stay for a while.
    Gone(Opens<T>, Moment),
}

/// Inodes that a mount has open in a file system, and those that it has locked.
pub struct Opens<T> {
    target: T,
    key: Key,
    counts: BTreeMap<Ino, u64>,
    locked: BTreeSet<Ino>,
}

impl<T: Target> Opens<T> {
    /// Gives all locks back, and closes all of them.
    pub async fn end(mut self) {
        for ino in std::mem::take(&mut self.locked) {
            leave(&self.target, self.key, ino).await;
        }
        self.close().await;
    }

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
    /// Inodes that it has locked, as far as this process has heard.
    locked: Mutex<BTreeSet<Ino>>,
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
                let (counts, locked) = (Mutex::default(), Mutex::default());
                let enrolled = Enrolled { clients, env, key, session, target, counts, locked };
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
            State::Gone(opens, _) => Some(opens),
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
            State::Gone(opens, _) => Some(opens),
            State::Served(_) => None,
        }
    }

    /// Whether another client may have what a mount holds of a volume that is in service since
    /// then: the mount has neither been here for a while, nor come back.
    pub fn has_gone(&self, key: Key, since: Moment, now: Moment) -> bool {
        let heard = match self.inner.all.lock().get(&key).map(|row| &row.state) {
            Some(State::Served(_)) => return false,
            Some(State::Gone(_, at)) => since.max(*at),
            None => since,
        };
        now - heard > limits::OPENS_GRACE
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

    /// Whether another mount of the volume has gone, which is in service since then.
    pub fn has_gone(&self, mount: u64, since: Moment) -> bool {
        self.clients.has_gone((self.key.0, mount), since, self.env.now())
    }

    /// The volume, and the mount.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Notes whether the mount has locks of an inode.
    pub fn holds(&self, ino: Ino, has_locks: bool) {
        let mut locked = self.locked.lock();
        if has_locks {
            locked.insert(ino)
        } else {
            locked.remove(&ino)
        };
    }

    /// Notes the locks that an earlier session has left.
    pub fn inherit(&self, earlier: &mut Opens<T>) {
        self.locked.lock().append(&mut earlier.locked);
    }

    /// Takes out all that is open, and locked.
    pub fn take(&self) -> Opens<T> {
        let counts = std::mem::take(&mut *self.counts.lock());
        let locked = std::mem::take(&mut *self.locked.lock());
        Opens { target: self.target.clone(), key: self.key, counts, locked }
    }
}

impl<T: Target> Drop for Enrolled<T> {
    fn drop(&mut self) {
        let (key, session, opens) = (self.key, self.session, self.take());
        let inner = &self.clients.inner;
        if opens.counts.is_empty() && opens.locked.is_empty() {
            inner.all.lock().remove(&key);
        } else {
            let state = State::Gone(opens, self.env.now());
            inner.all.lock().insert(key, Row { session, state });
            let (clients, sleeper) = (self.clients.clone(), self.env.clone());
            self.env.spawn_foreground("fuse-opens", async move {
                sleeper.sleep(limits::OPENS_GRACE).await;
                if let Some(opens) = clients.expire(key, session) {
                    opens.end().await;
                }
            });
        }
        inner.left.notify_waiters();
    }
}

/// Gives back all locks that a mount has of a file.
async fn leave<T: Target>(target: &T, (volume, mount): Key, ino: Ino) {
    let act = |held: &mut Held| {
        held.leave(mount);
        Ok::<(), Refused>(())
    };
    let keeping = Keeping::new(volume, &act);
    let caller = Caller { keeper: Some(&keeping), ..Caller::default() };
    if let Err(error) = target.keep(caller, ino).await {
        tracing::debug!(ino, %error, "locks of a mount that is gone stay for now");
    }
}
