//! Operations that say where a COMPOUND is.

use super::{Done, Spot, Work, directory, exports};
use crate::nfs::handle::{self, Handle};
use crate::nfs::replies::Failed;
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::codec::{Read, Write};
use crate::nfs::v4::limits;
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::xdr::{Args, Garbage};
use crate::target::Target;
use rekindle_base::Kind;
use rekindle_file::{FileType, ROOT};
use rekindle_volume::Error;

/// AUTH_SYS.
const SYS: u32 = 1;

/// Reads a name of a directory.
pub fn name<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Garbage> {
    args.opaque(limits::OWNER_BYTES_MAX)
}

/// Refuses what version 4 has for no name.
pub fn check_name(name: &[u8]) -> Result<(), Status> {
    match name {
        [] => Err(Status::INVAL),
        b"." | b".." => Err(Status::BADNAME),
        name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Status::BADNAME),
        _ => Ok(()),
    }
}

impl<E: Exports> Work<'_, E> {
    pub(super) fn put_root(&mut self) -> Done {
        self.go(Spot::Exports);
        Ok(())
    }

    pub(super) async fn put_handle(&mut self, args: &mut Args<'_>) -> Done {
        let handle = handle::read(args)?;
        if Handle::decode(handle, &self.seal) == Some(exports()) {
            return self.put_root();
        }
        let its = Handle::decode(handle, &self.seal);
        if self.visited.is_some_and(|visited| its.is_some_and(|its| its.volume != visited.volume)) {
            // Each volume has a line of its own.
            return Err(Status::XDEV.into());
        }
        let place = match self.server.place(handle).await {
            Ok(place) => place,
            Err(failed) => {
                if !matches!(failed, Failed::Elsewhere(_)) {
                    self.server.forget(handle);
                }
                return Err(failed.into());
            }
        };
        self.go(Spot::At(place));
        Ok(())
    }

    pub(super) fn handle(&mut self, out: &mut Vec<u8>) -> Done {
        match self.spot()? {
            Spot::Exports => out.put_opaque(&self.exports_handle()),
            Spot::At(place) => out.put_opaque(&place.handle(place.ino).data),
        }
        Ok(())
    }

    pub(super) fn save(&mut self) -> Done {
        self.spot()?;
        (self.saved, self.saved_stateid) = (self.spot.clone(), self.stateid);
        Ok(())
    }

    pub(super) fn restore(&mut self) -> Done {
        let saved = self.saved.clone().ok_or(Status::RESTOREFH)?;
        self.go(saved);
        self.stateid = self.saved_stateid;
        Ok(())
    }

    pub(super) async fn look_up(&mut self, args: &mut Args<'_>) -> Done {
        let name = name(args)?;
        let found = self.found(name).await?;
        self.go(found);
        Ok(())
    }

    /// Returns what a name leads to.
    async fn found(&self, name: &[u8]) -> Result<Spot<E::Files>, Fault> {
        check_name(name)?;
        let place = match self.spot()? {
            Spot::Exports => return Ok(Spot::At(self.export(name).await?)),
            Spot::At(place) => place,
        };
        let files = &place.export.files;
        let dir = files.rights(place.ino).await?;
        if dir.kind == rekindle_file::FileType::Symlink {
            return Err(Status::SYMLINK.into());
        }
        directory(&dir)?;
        self.caller.look_up(&dir)?;
        let ino = files.lookup(place.ino, name).await?.ino;
        Ok(Spot::At(Place { ino, ..place.clone() }))
    }

    /// Brings an export into service.
    async fn export(&self, name: &[u8]) -> Result<Place<E::Files>, Fault> {
        let name = std::str::from_utf8(name).map_err(|_| Status::NOENT)?;
        if let Some(visited) = self.visited {
            let place = self.server.place(&self.root_of(visited)).await?;
            // Each volume has a line of its own.
            return if *place.export.name == *name { Ok(place) } else { Err(Status::XDEV.into()) };
        }
        let attached = self.server.exports.attach(name).await.map_err(|error| {
            if let Error::Elsewhere(name, _) = error {
                return Fault::Elsewhere(name.into(), true);
            }
            Fault::Status(match error.kind() {
                Kind::NotFound | Kind::Invalid | Kind::Unsupported => Status::NOENT,
                Kind::Unavailable | Kind::Fenced | Kind::Conflict => Status::DELAY,
                _ => {
                    tracing::warn!(volume = name, %error, "a volume cannot be mounted");
                    Status::IO
                }
            })
        })?;
        Ok(self.server.keep(attached).at(ROOT, self.seal.clone()))
    }

    pub(super) async fn look_up_parent(&mut self) -> Done {
        let place = match self.spot()? {
            Spot::Exports => return Err(Status::NOENT.into()),
            Spot::At(place) => place.clone(),
        };
        let files = &place.export.files;
        let dir = files.rights(place.ino).await?;
        if dir.kind == FileType::Symlink {
            return Err(Status::SYMLINK.into());
        }
        directory(&dir)?;
        self.caller.look_up(&dir)?;
        if place.ino == ROOT {
            return self.put_root();
        }
        let parent = files.parent(place.ino).await?;
        self.go_on(&place, parent);
        Ok(())
    }

    fn put_security(&mut self, out: &mut Vec<u8>) {
        out.put_u32(1);
        out.put_u32(SYS);
        // As the protocol says: the place is used up.
        self.spot = None;
    }

    pub(super) async fn security(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let name = name(args)?;
        match self.found(name).await {
            Ok(_) | Err(Fault::Elsewhere(_, true)) => {}
            Err(fault) => return Err(fault),
        }
        self.put_security(out);
        Ok(())
    }

    pub(super) async fn own_security(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let is_parent = args.flag()?;
        self.spot()?;
        if is_parent {
            self.look_up_parent().await?;
        }
        self.put_security(out);
        Ok(())
    }
}
