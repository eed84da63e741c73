//! What a front keeps of inodes: the opens and locks of its clients, over restarts.

use super::{Done, Files};
use crate::caller::Caller;
use crate::files::draft::Draft;
use crate::files::frozen::is_present;
use crate::home::KeptLately;
use crate::state::{ORPHANS, View};
use crate::types::{Attr, Ino};
use bytes::Bytes;
use tokio::sync::watch;

impl Files {
    /// Keeps what the caller's keeper says of a regular file, and changes nothing else. A file
    /// without a name goes when nothing is kept of it any more, and it is not in use otherwise.
    pub async fn keep(&self, caller: Caller<'_>, ino: Ino) -> Done<Attr> {
        is_present(ino)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            let attr = draft.view.inode(ino)?.attr(ino);
            let is_kept = draft.keep(&caller, ino)?;
            let is_used = is_kept || draft.view.state.uses.contains_key(&ino);
            if attr.links == 0 && !is_used {
                draft.unname(ORPHANS, ino);
                draft.remove(ino)?;
            }
            Ok(attr)
        };
        self.change(caller, plan).await
    }

    /// Returns what is kept of an inode; `ESTALE` if it is no more.
    pub async fn kept(&self, ino: Ino) -> Done<Option<Bytes>> {
        if is_present(ino).is_err() {
            return self.attr(ino).await.map(|_| None);
        }
        let look_at = |view: &View<'_>| {
            view.inode(ino)?;
            view.kept(ino)
        };
        self.look(look_at).await
    }

    /// Returns what hears of each change of what is kept of any inode, and of the last ones in this
    /// process.
    #[must_use]
    pub fn kept_changes(&self) -> watch::Receiver<KeptLately> {
        self.home.kept_changes.subscribe()
    }

    /// Returns files that have no name, and stay because something is kept of them: some, from a
    /// number on.
    pub async fn kept_without_name(&self, from: Ino) -> Done<Vec<Ino>> {
        let found = self.orphans(from).await?;
        Ok(found.into_iter().filter(|(_, is_used)| *is_used).map(|(ino, _)| ino).collect())
    }
}
