//! Batches in a row: while one is on its way to the store, the next ones are folded, so neither the
//! cores nor the line to the store are idle. They are committed in their order.

use crate::ack::staged::Staged;
use crate::destage::batch::{Folded, Stored, fold, store};
use crate::destage::portion::{Portion, take};
use crate::{Error, limits};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Destages a batch, and those behind it for as long as there is much to destage.
pub(crate) async fn run(volume: &Arc<Staged>) -> Result<(), Error> {
    let (ready, coming) = mpsc::channel(limits::ROW_BATCHES_READY);
    let (folding, storing) = (pin!(fold_in_row(volume, ready)), pin!(store_in_row(volume, coming)));
    match select(storing, folding).await {
        Either::Left((stored, folding)) => match stored? {
            After::Next => folding.await,
            After::Nothing => Ok(()),
        },
        Either::Right((folded, storing)) => storing.await.and(folded),
    }
}

/// What comes behind a batch that is stored.
enum After {
    Next,
    /// The batches behind it come to nothing, as they do behind one that failed.
    Nothing,
}

/// Folds batch after batch, as long as there is enough for one.
async fn fold_in_row<'a>(
    volume: &'a Arc<Staged>,
    ready: mpsc::Sender<Folded<'a>>,
) -> Result<(), Error> {
    let content = &volume.inner.content;
    let mut next = take(volume, None).map(|first| (first, content.batch()));
    let mut count = 0;
    while let Some((portion, batch)) = next.take() {
        let mut folded = fold(volume, portion, batch).await?;
        count += 1;
        if count < limits::ROW_BATCHES_MAX
            && let Some(portion) = take_behind(volume, &folded)
        {
            // The next batch reads the root of this one.
            folded.batch.complete().await;
            next = Some((portion, content.batch_behind(&folded.batch)));
        }
        if ready.send(folded).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Brings batch after batch into the store, in their order.
async fn store_in_row(
    volume: &Arc<Staged>,
    mut coming: mpsc::Receiver<Folded<'_>>,
) -> Result<After, Error> {
    let mut since = volume.inner.env.now();
    while let Some(folded) = coming.recv().await {
        let stored = store(volume, folded, since).await?;
        // Those that are folded already are folded again later, and find their chunks.
        if matches!(stored, Stored::Late) || is_to_leave(volume) {
            return Ok(After::Nothing);
        }
        since = volume.inner.env.now();
    }
    Ok(After::Next)
}

/// Whether the end of the volume, or another task, waits for the destager.
fn is_to_leave(volume: &Staged) -> bool {
    volume.is_ending() || volume.is_turn_wanted()
}

/// Takes the changes of a batch behind one that is on its way, if there are enough of them.
fn take_behind(volume: &Arc<Staged>, folded: &Folded<'_>) -> Option<Portion> {
    // Where bytes are damaged, a batch as large as can be may need none of them.
    if is_to_leave(volume) || volume.gate.lock().destaging.lost.is_some() {
        return None;
    }
    take(volume, Some(folded.base()))
}
