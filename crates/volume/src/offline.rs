//! Taking a volume out of service.

use crate::Error;
use crate::machine::Event;
use crate::registry::{Exclusive, Inner};
use std::sync::Arc;

/// Gets the say over a volume by moving it to `offlining`; waits while another task has it. The volume is still open.
pub(crate) async fn claim(
    inner: &Arc<Inner>,
    name: &str,
    force: bool,
    cause: &str,
) -> Result<Exclusive, Error> {
    loop {
        let entry = inner.entry(name);
        let changes = {
            let mut inside = entry.inside.lock();
            if inside.retired {
                continue;
            }
            let state = inside.machine.state();
            if !state.is_exclusive() && state != crate::machine::State::Deleted {
                let clients = inside.clients();
                if clients > 0 && !force {
                    return Err(Error::Busy { name: name.to_owned(), clients });
                }
                return Exclusive::enter(inner, &entry, &mut inside, Event::Offline, cause);
            }
            entry.subscribe()
        };
        changes.changed().await;
    }
}

/// Closes what is in service; its unfinished changes stay in the log.
pub(crate) async fn close(claimed: &Exclusive) -> Result<(), Error> {
    // Taken only after closing, so that whoever looks sees the backlog until the end.
    let live = claimed.entry.inside.lock().live.clone();
    let Some(live) = live else { return Ok(()) };
    let _step = claimed.step("the destager: the batch in hand; then the log: a commit");
    let closed = live.staged.close().await;
    claimed.entry.inside.lock().live = None;
    Ok(closed?)
}

/// Takes a volume that no client holds (or, with `force`, any) out of service.
pub(crate) async fn detach(
    inner: &Arc<Inner>,
    name: &str,
    force: bool,
    cause: &str,
) -> Result<(), Error> {
    let claimed = claim(inner, name, force, cause).await?;
    match close(&claimed).await {
        Ok(()) => claimed.end(Event::OfflineDone, cause, |inside| inside.reason = None),
        Err(error) => {
            let why = error.to_string();
            claimed.end(Event::OfflineFailed, &why, |inside| inside.reason = Some(why.clone()))?;
            Err(error)
        }
    }
}
