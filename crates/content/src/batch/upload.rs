//! The upload of a pack, for all batches that have chunks in it.

use super::shared::{Body, Upload, UploadState, slot};
use crate::content::{Inner, add};
use crate::pack::writer::Sealed;
use crate::{limits, pack};
use futures_util::future::{Either, select};
use rekindle_base::Kind;
use rekindle_datastore::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

impl Upload {
    /// Waits until the pack is durable or an attempt has failed. Begins an attempt unless one is
    /// under way; a shared pack with little in it waits for its turn before. A caller that drops
    /// the future loses nothing: another batch in the pack, or another call, goes on.
    pub(super) async fn end(self: &Arc<Self>, inner: &Arc<Inner>) {
        let way = pin!(async {
            let turn = match self.waits_for_company() {
                true => Some(self.turn(inner).await),
                false => None,
            };
            (granted(&inner.uploads).await, turn)
        });
        let begun = pin!(self.until(|state| !state.may_begin()));
        if let Either::Right((way, _)) = select(begun, way).await {
            self.begin(inner, way);
        }
        self.until(|state| matches!(state, UploadState::Done | UploadState::Failed(_))).await;
    }

    /// Waits for the turn of a shared pack: not for long, because the request of another one may
    /// hang.
    async fn turn(&self, inner: &Inner) -> Option<OwnedSemaphorePermit> {
        let turn = &inner.shared[slot(pack::class(self.id))].turn;
        if let Ok(turn) = turn.clone().try_acquire_owned() {
            return Some(turn);
        }
        match select(pin!(granted(turn)), inner.env.sleep(limits::SHARED_WAIT_MAX)).await {
            Either::Left((turn, _)) => Some(turn),
            Either::Right(_) => None,
        }
    }

    /// Uploads the pack in the background, unless that is under way or done. `way` is dropped when
    /// the attempt has ended.
    pub(super) fn begin(self: &Arc<Self>, inner: &Arc<Inner>, way: impl Send + 'static) {
        inner.shared[slot(pack::class(self.id))].close(self);
        if !self.begin_attempt() {
            return;
        }
        let attempt = Attempt { upload: self.clone(), result: Err(lost()) };
        let pack = self.seal(inner);
        let inner = inner.clone();
        // The attempt may outlive the batches, and puts the pack into the index: until then the
        // sweep must not take the pack.
        let hold = inner.live.hold();
        hold.wrote(pack.id);
        inner.env.clone().spawn("content-upload", async move {
            let result = inner.store.put(&pack::key(pack.id), pack.object.clone()).await;
            match &result {
                Ok(()) => {
                    inner.full.store(false, Ordering::Relaxed);
                    add(&inner.counters.packs_written, 1);
                    add(&inner.counters.bytes_stored, pack.object.len() as u64);
                    inner.index.add(pack.id, pack.object.len() as u64, &pack.entries);
                    inner.unpublish(pack.id);
                }
                Err(error) if error.kind() == Kind::Full => {
                    inner.full.store(true, Ordering::Relaxed);
                }
                // Any other error says nothing about room.
                Err(_) => {}
            }
            drop(way);
            drop(pack);
            // The task that waits for the result may end the batch at once, so the hold ends
            // before. Whether a commit is on its way, the batches say.
            hold.end_known();
            drop(hold);
            attempt.end(result);
        });
    }

    /// Completes the pack, and makes it readable before it is in the store.
    fn seal(&self, inner: &Inner) -> Arc<Sealed> {
        let mut body = self.body.lock();
        let sealed = match &mut *body {
            Body::Sealed(sealed) => return sealed.clone(),
            Body::Open(writer) => Arc::new(writer.seal(inner.config.parity, &inner.pool)),
        };
        inner.publish(&sealed);
        *body = Body::Sealed(sealed.clone());
        sealed
    }
}

/// An attempt to upload a pack. When it ends, however that comes, all batches in the pack learn the
/// result.
struct Attempt {
    upload: Arc<Upload>,
    result: Result<(), Error>,
}

impl Attempt {
    fn end(mut self, result: Result<(), Error>) {
        self.result = result;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.upload.ended(std::mem::replace(&mut self.result, Ok(())));
    }
}

pub(super) async fn granted(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    semaphore.clone().acquire_owned().await.expect("no caller closes the semaphore")
}

fn lost() -> Error {
    Error::Unavailable("the upload was broken off".into())
}
