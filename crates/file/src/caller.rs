//! The caller of a change, and its witness: a front's word on the change, in its turn.
//!
//! A front that must know what is there before it lets a caller change something (permissions, a
//! guard on the time of the last change, a request that was carried out before) cannot look first
//! and change then: another change may come between. So it sends a witness along, who sees the
//! state that the change is judged by.

use crate::acl::Rights;
use crate::look::Stop;
use crate::state::View;
use crate::types::{Attr, Call, Errno, Error, Ino, Origin};
use bytes::Bytes;

/// The caller of a change.
#[derive(Clone, Copy, Default)]
pub struct Caller<'a> {
    /// Owner of what the call makes.
    pub uid: u32,
    pub gid: u32,
    /// The request, of a client that may send it again when a reply is lost.
    pub origin: Option<Origin>,
    /// The same, of a client that does not number its requests.
    pub call: Option<Call>,
    /// Who judges the change in its turn.
    pub witness: Option<&'a dyn Witness>,
    /// The keeper that says what is kept of the inode from then on. [`crate::Files::keep`] asks it,
    /// and so do calls that make an inode or set its attributes.
    pub keeper: Option<&'a dyn Keeper>,
}

impl Caller<'_> {
    /// Returns the mode that a change gives an inode, which is `before` yet.
    pub(crate) fn settled(&self, mode: u16, before: &Attr) -> u16 {
        self.witness.map_or(mode, |witness| witness.settle(mode, before))
    }
}

/// A look at the file system while nothing changes.
pub trait Sight {
    /// Returns the attributes of an inode; `ESTALE` if it is no more.
    fn attr(&self, ino: Ino) -> Result<Attr, Halt>;
    /// Returns what decides who may do what with an inode.
    fn rights(&self, ino: Ino) -> Result<Rights, Halt>;
    /// Returns what a name of a directory leads to.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Rights>, Halt>;
    /// Returns what is kept of an inode.
    fn kept(&self, ino: Ino) -> Result<Option<Bytes>, Halt>;
    /// Whether a call was carried out before.
    fn was_called(&self, call: &Call) -> bool;
}

/// Judges a change, and sees what it did.
pub trait Witness: Sync {
    /// Says whether the change may be made. It is asked again when something had to be fetched.
    fn judge(&self, sight: &dyn Sight) -> Result<(), Halt>;
    /// Returns the mode that the change gives an inode, where `mode` is the one asked for or had:
    /// set-user-id may have to go.
    fn settle_mode(&self, mode: u16) -> u16;
    /// The same, of an inode that is `before` yet.
    fn settle(&self, mode: u16, _before: &Attr) -> u16 {
        self.settle_mode(mode)
    }
    /// Is told of each inode that the change leaves as `attr` says. The last word counts.
    fn changed(&self, attr: &Attr);
    /// Is told of each inode whose last name the change takes.
    fn unnamed(&self, _attr: &Attr) {}
}

/// Decides what a front keeps of an inode, in the turn of a change and in its record: the opens and
/// locks of its clients. The bytes mean something to the front only. They stay over restarts, and
/// go with the inode. An inode of which something is kept stays without a name, too.
pub trait Keeper: Sync {
    /// Returns what is to be kept of an inode, where `kept` is what is. It is asked again when
    /// something had to be fetched.
    fn keep(&self, ino: Ino, kept: Option<&[u8]>) -> Result<Option<Vec<u8>>, Halt>;

    /// The client for which it is kept, by a number of the front's; 0: any of those without one.
    fn client(&self) -> u64 {
        0
    }
}

/// Why a witness does not let a change pass, or not yet.
#[derive(Debug)]
pub struct Halt(pub(crate) Stop);

impl From<Errno> for Halt {
    fn from(errno: Errno) -> Self {
        Self(errno.into())
    }
}

impl Halt {
    /// Returns the error that ends the change.
    #[must_use]
    pub fn into_error(self) -> Error {
        self.0.into_error()
    }
}

impl Sight for View<'_> {
    fn attr(&self, ino: Ino) -> Result<Attr, Halt> {
        Ok(self.inode(ino).map_err(Halt)?.attr(ino))
    }

    fn rights(&self, ino: Ino) -> Result<Rights, Halt> {
        View::rights(self, ino).map_err(Halt)
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Rights>, Halt> {
        self.dir(dir).map_err(Halt)?;
        let (_, named) = self.name(dir, name).map_err(Halt)?;
        named.map(|named| Sight::rights(self, named.ino)).transpose()
    }

    fn kept(&self, ino: Ino) -> Result<Option<Bytes>, Halt> {
        View::kept(self, ino).map_err(Halt)
    }

    fn was_called(&self, call: &Call) -> bool {
        self.totals().has_call(call)
    }
}
