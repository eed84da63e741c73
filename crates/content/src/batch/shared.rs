//! The pack that small batches share.
//!
//! A batch with much to write has packs of its own. What little a batch has goes into the one pack
//! of its class that is open for all, so that many small commits cost one object: the first batch
//! that flushes uploads it, and batches that flush meanwhile share the next one. The place of a
//! chunk is known when it is appended, because the names of its parents cover it. So the pack may
//! hold chunks of a batch that comes to nothing: garbage, as in a pack of its own.

use crate::pack::writer::{Sealed, Writer};
use crate::{Class, Pointer, limits};
use parking_lot::Mutex;
use rekindle_base::PackId;
use rekindle_datastore::Error;
use std::pin::pin;
use std::sync::{Arc, Weak};
use tokio::sync::{Notify, Semaphore};

/// A pack for all batches that have chunks in it, from its first chunk until it is durable.
pub(crate) struct Upload {
    pub(super) id: PackId,
    pub(super) body: Mutex<Body>,
    state: Mutex<UploadState>,
    /// Wakes the waiting batches in the order of their coming, which a `watch` does not: runs of
    /// the simulation would not repeat themselves.
    changed: Notify,
}

pub(super) enum Body {
    Open(Writer),
    Sealed(Arc<Sealed>),
}

pub(super) enum UploadState {
    Open,
    Running,
    Done,
    Failed(Error),
}

impl UploadState {
    pub(super) fn may_begin(&self) -> bool {
        matches!(self, UploadState::Open | UploadState::Failed(_))
    }
}

/// The pack of a class that small batches share.
pub(crate) struct Shared {
    /// Lives as long as a batch has chunks in it.
    open: Mutex<Weak<Upload>>,
    /// One upload of a shared pack at a time: chunks of batches that flush meanwhile gather.
    pub(super) turn: Arc<Semaphore>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { open: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Shared {
    /// Lets `append` add to the open pack, or to a new one. `append` runs under the pack's lock:
    /// no upload of the pack begins meanwhile. `Err`: the pack has no room, and must be uploaded.
    pub(super) fn append<R>(
        &self,
        new: impl FnOnce() -> Writer,
        append: impl FnOnce(&mut Writer, &Arc<Upload>) -> Option<R>,
    ) -> Result<R, Arc<Upload>> {
        let mut open = self.open.lock();
        let upload = open.upgrade().unwrap_or_else(|| {
            let upload = Upload::new(new());
            *open = Arc::downgrade(&upload);
            upload
        });
        let appended = match &mut *upload.body.lock() {
            Body::Open(writer) => append(writer, &upload),
            Body::Sealed(_) => None,
        };
        appended.ok_or(upload)
    }

    /// Takes no more chunks into this pack.
    pub(super) fn close(&self, upload: &Arc<Upload>) {
        let mut open = self.open.lock();
        if open.as_ptr() == Arc::as_ptr(upload) {
            *open = Weak::new();
        }
    }
}

impl Upload {
    pub(super) fn new(writer: Writer) -> Arc<Self> {
        let (id, body) = (writer.id(), Mutex::new(Body::Open(writer)));
        Arc::new(Self { id, body, state: Mutex::new(UploadState::Open), changed: Notify::new() })
    }

    /// Notes that an attempt begins; `false` if one is under way, or none is needed.
    pub(super) fn begin_attempt(&self) -> bool {
        let mut state = self.state.lock();
        let may_begin = state.may_begin();
        if may_begin {
            *state = UploadState::Running;
            drop(state);
            self.changed.notify_waiters();
        }
        may_begin
    }

    /// Notes how an attempt has ended.
    pub(super) fn ended(&self, result: Result<(), Error>) {
        *self.state.lock() = result.map_or_else(UploadState::Failed, |()| UploadState::Done);
        self.changed.notify_waiters();
    }

    /// Waits for a state.
    pub(super) async fn until(&self, is_it: impl Fn(&UploadState) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_it(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// The outcome of the last attempt; `None` while there is none.
    pub(super) fn outcome(&self) -> Option<Result<(), Error>> {
        match &*self.state.lock() {
            UploadState::Open | UploadState::Running => None,
            UploadState::Done => Some(Ok(())),
            UploadState::Failed(error) => Some(Err(error.clone())),
        }
    }

    /// Whether chunks of other batches may still be worth the wait.
    pub(super) fn waits_for_company(&self) -> bool {
        matches!(&*self.body.lock(), Body::Open(writer) if writer.bytes() < limits::SHARED_BYTES_MAX)
    }

    /// The complete pack, if it is complete.
    pub(super) fn sealed(&self) -> Option<Arc<Sealed>> {
        match &*self.body.lock() {
            Body::Open(_) => None,
            Body::Sealed(sealed) => Some(sealed.clone()),
        }
    }

    /// Shows a blob of the pack, unless the pack is complete: then it is published.
    pub(super) fn look<R>(&self, at: &Pointer, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match &*self.body.lock() {
            Body::Open(writer) => writer.blob(at).map(look),
            Body::Sealed(_) => None,
        }
    }
}

pub(super) fn slot(class: Class) -> usize {
    match class {
        Class::Data => 0,
        Class::Metadata => 1,
    }
}
