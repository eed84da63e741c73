//! Takes a volume out of service.

use crate::Error;
use crate::registry::machine::Event;
use crate::registry::{Claim, Inner};
use std::sync::Arc;

/// Claims a volume by moving it to `offlining`; waits while another task has the claim. A volume in
/// service is still open afterwards.
pub(crate) async fn claim(
    inner: &Arc<Inner>,
    name: &str,
    force: bool,
    cause: &str,
) -> Result<Claim, Error> {
    loop {
        let entry = inner.entry(name);
        let changes = {
            let mut inside = entry.inside.lock();
            if inside.retired {
                continue;
            }
            let state = inside.machine.state();
            if !state.is_transitional() && state != crate::registry::machine::State::Deleted {
                let clients = inside.clients();
                if clients > 0 && !force {
                    return Err(Error::Busy { name: name.to_owned(), clients });
                }
                return Claim::enter(inner, &entry, &mut inside, Event::Offline, cause);
            }
            entry.subscribe()
        };
        changes.changed().await;
    }
}

/// Closes a volume that is in service; its unfinished changes stay in the log.
pub(crate) async fn close(claimed: &Claim) -> Result<(), Error> {
    // `live` is cleared only after closing, so that a listing shows the backlog until the end.
    let live = claimed.entry.inside.lock().live.clone();
    let Some(live) = live else { return Ok(()) };
    let _step = claimed.step("the destager: the batch in hand; then the log: a commit");
    let closed = live.staged.close().await;
    claimed.entry.inside.lock().live = None;
    Ok(closed?)
}

/// Takes a volume out of service. Refused while clients hold it, unless `force`.
pub(crate) async fn detach(
    inner: &Arc<Inner>,
    name: &str,
    force: bool,
    cause: &str,
) -> Result<(), Error> {
    let claimed = claim(inner, name, force, cause).await?;
    let closed = close(&claimed).await;
    claimed.finish(closed, (Event::OfflineDone, Event::OfflineFailed), cause)
}
