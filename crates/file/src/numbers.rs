//! The numbers of inodes: none is ever given twice, whatever is lost.
//!
//! A client holds a number for as long as it has the file open, or a handle of NFS: it would meet
//! another file in its place. A new inode may be lost with the memory of its host, so its number is
//! not taken from what the volume has. Numbers are noted in blocks, and a block is durable before
//! the first of its numbers is given. What is left of a block at the end of a service is not given
//! any more.
//!
//! Where a volume goes on without what was durable (a rollback, losses that a person accepts), its
//! vault says from which number on it goes ([`Vault::numbers_from`]).

use crate::limits;
use crate::look::unreadable;
use crate::state::{ORPHANS, decode_own};
use crate::table;
use crate::types::{Error, Ino};
use rekindle_content::Content;
use rekindle_content::tree::Root;
use rekindle_staging::Vault;
use std::ops::Range;

/// The numbers that one service of a volume gives.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    /// Noted, and not given yet.
    pub(crate) next: Range<Ino>,
    /// The first one that may be noted.
    from: Ino,
}

impl Numbers {
    pub(crate) fn of(vault: &Vault) -> Self {
        Self { next: 0..0, from: vault.numbers_from }
    }

    /// The first number that is neither given nor noted: `next` of what the volume says of itself,
    /// but for what its vault says.
    pub(crate) fn unused(&self, next: Ino) -> Ino {
        next.max(self.from)
    }
}

/// Returns a number above all that a volume has given, with room for those that its content and its
/// vault do not know of any more.
pub(crate) async fn unused(content: &Content, vault: &Vault) -> Ino {
    let (next, skipped) = match next(content, &vault.root).await {
        Ok(next) => (next, limits::NUMBERS_SKIPPED),
        Err(error) => {
            tracing::debug!(volume = vault.name, %error, "the next inode's number is not known");
            (0, limits::NUMBERS_SKIPPED_BLINDLY)
        }
    };
    vault.numbers_from.max(next) + skipped
}

async fn next(content: &Content, root: &Root) -> Result<Ino, Error> {
    let own = table::get(content, root, ORPHANS).await?;
    let (totals, _) = decode_own(own.as_ref()).map_err(|bad| unreadable(&bad))?;
    Ok(totals.next_ino)
}
