//! Uses of files by clients: a file without a name stays as long as it is in use.

use super::{Done, Files};
use crate::caller::Caller;
use crate::files::draft::Draft;
use crate::files::frozen::is_present;
use crate::limits;
use crate::state::{ORPHANS, View};
use crate::types::{Errno, Ino};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Files {
    /// Notes that a client uses an inode: without a name it stays until the last [`Files::close`].
    pub async fn open(&self, ino: Ino) -> Done<()> {
        if is_present(ino).is_err() {
            return self.attr(ino).await.map(drop);
        }
        if !self.begin_use(ino, false) {
            let turn = self.home.turn.lock().await;
            self.begin_use(ino, true);
            drop(turn);
        }
        match self.look(|view| view.inode(ino).map(drop)).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.end_use(ino);
                Err(error)
            }
        }
    }

    /// Counts a use. `false`: the change that has its turn removes the inode, if the log takes it;
    /// until then no new use counts, unless the caller has the turn.
    fn begin_use(&self, ino: Ino, has_turn: bool) -> bool {
        let mut state = self.home.state.lock();
        let may_begin = has_turn || !self.home.leaving.lock().contains(&ino);
        if may_begin {
            *state.uses.entry(ino).or_default() += 1;
        }
        may_begin
    }

    /// Returns whether no client uses the inode any more.
    fn end_use(&self, ino: Ino) -> bool {
        let mut state = self.home.state.lock();
        let Some(count) = state.uses.get_mut(&ino) else { return true };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            state.uses.remove(&ino);
        }
        is_last
    }

    /// Ends a use.
    pub async fn close(&self, ino: Ino) {
        if is_present(ino).is_err() || !self.end_use(ino) {
            return;
        }
        let is_gone = self.look(|view| Ok(view.inode(ino)?.links == 0)).await;
        if matches!(is_gone, Ok(true)) {
            self.reap(ino).await;
        }
    }

    /// Removes a file without a name that is not in use. One that cannot be removed now is removed
    /// when the volume comes into service the next time.
    async fn reap(&self, ino: Ino) {
        let plan = |draft: &mut Draft<'_, '_>| {
            if draft.view.is_used(ino)? || draft.inode(ino)?.links > 0 {
                return Ok(());
            }
            draft.unname(ORPHANS, ino);
            draft.remove(ino)
        };
        if let Err(error) = self.change(Caller::default(), plan).await
            && !matches!(error, crate::Error::Posix(Errno::STALE))
        {
            tracing::debug!(ino, %error, "a file without a name stays for now");
        }
    }

    /// Once in each service: removes the files without a name that no client has come back to.
    pub(super) fn tend(&self) {
        if self.home.is_tended.swap(true, Ordering::AcqRel) {
            return;
        }
        let (home, handle) = (Arc::downgrade(&self.home), self.handle.downgrade());
        let env = self.env.clone();
        self.env.spawn("file-orphans", async move {
            env.sleep(limits::ORPHAN_GRACE).await;
            let (Some(home), Some(handle)) = (home.upgrade(), handle.upgrade()) else { return };
            let files = Files { handle, home, env };
            let mut from = 0;
            while let Ok(found) = files.orphans(from).await {
                let Some(&(last, _)) = found.last() else { return };
                from = last + 1;
                for (ino, is_used) in found {
                    if !is_used {
                        files.reap(ino).await;
                    }
                }
            }
        });
    }

    /// Returns some of the files without a name, from a number on, and whether each is in use.
    pub(super) async fn orphans(&self, from: Ino) -> Done<Vec<(Ino, bool)>> {
        let look_at = |view: &View<'_>| {
            let mut found = Vec::new();
            view.names_from(ORPHANS, from, |_, named| {
                found.push(named.ino);
                found.len() < 1000
            })?;
            found.into_iter().map(|ino| Ok((ino, view.is_used(ino)?))).collect()
        };
        self.look(look_at).await
    }
}
