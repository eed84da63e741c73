//! The MOUNT protocol: it gives the handle of a volume's root, or of a directory below. A volume is
//! exported under its name. Nothing is kept of mounts, so DUMP tells of none.

use super::limits;
use super::permission::Credentials;
use super::replies::Failed;
use super::rpc;
use super::server::{Place, Server};
use super::target::Exports;
use super::xdr::Args;
use crate::target::Target;
use nfs3_types::mount::{
    MOUNT_PROGRAM, dirpath, export_node, exports, fhandle3, mountlist, mountres3, mountres3_ok,
    mountstat3,
};
use nfs3_types::nfs3::nfsstat3;
use nfs3_types::rpc::auth_flavor;
use nfs3_types::xdr_codec::{List, Opaque};
use rekindle_base::Kind;
use rekindle_file::{Errno, FileType, ROOT};
use rekindle_volume::Error;

/// Answers a call of MOUNT.
pub async fn answer<E: Exports>(
    server: &Server<E>,
    caller: &Credentials,
    procedure: MOUNT_PROGRAM,
    mut args: Args<'_>,
) -> Result<Vec<u8>, Failed> {
    Ok(match procedure {
        MOUNT_PROGRAM::MOUNTPROC3_NULL
        | MOUNT_PROGRAM::MOUNTPROC3_UMNT
        | MOUNT_PROGRAM::MOUNTPROC3_UMNTALL => Vec::new(),
        MOUNT_PROGRAM::MOUNTPROC3_DUMP => rpc::pack(&mountlist::default()),
        MOUNT_PROGRAM::MOUNTPROC3_EXPORT => rpc::pack(&list(server).await?),
        MOUNT_PROGRAM::MOUNTPROC3_MNT => {
            let path = args.opaque(limits::PATH_BYTES_MAX)?;
            rpc::pack(&match mount(server, caller, path).await {
                Ok(place) => {
                    let fhandle = fhandle3(place.handle(place.ino).data);
                    let auth_flavors = vec![auth_flavor::AUTH_UNIX as u32];
                    mountres3::Ok(mountres3_ok { fhandle, auth_flavors })
                }
                Err(Refused::Failed(failed)) => return Err(failed),
                Err(Refused::Status(status)) => mountres3::Err(status),
            })
        }
    })
}

async fn list<E: Exports>(server: &Server<E>) -> Result<exports<'static, 'static>, Failed> {
    let names = server.exports.names().await.map_err(|error| {
        tracing::warn!(%error, "the list of exports cannot be had");
        Failed::Status(nfsstat3::NFS3ERR_IO)
    })?;
    let node = |name: &String| export_node {
        ex_dir: dirpath(Opaque::owned(format!("/{name}").into_bytes())),
        ex_groups: List::default(),
    };
    Ok(List(names.iter().take(limits::EXPORTS_MAX).map(node).collect()))
}

/// Why there is no handle.
enum Refused {
    Status(mountstat3),
    /// MOUNT has no word for it: the volume is elsewhere, or on its way.
    Failed(Failed),
}

impl From<mountstat3> for Refused {
    fn from(status: mountstat3) -> Self {
        Self::Status(status)
    }
}

/// Walks to a directory: the volume's name, and names below.
async fn mount<E: Exports>(
    server: &Server<E>,
    caller: &Credentials,
    path: &[u8],
) -> Result<Place<E::Files>, Refused> {
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let volume = names.next().ok_or(mountstat3::MNT3ERR_NOENT)?;
    let volume = std::str::from_utf8(volume).map_err(|_| mountstat3::MNT3ERR_NOENT)?;
    let seal = server.seal().await.map_err(|_| mountstat3::MNT3ERR_SERVERFAULT)?;
    let attached = server.exports.attach(volume).await.map_err(|error| match error {
        Error::Elsewhere(name, _) => Refused::Failed(Failed::Elsewhere(name.into())),
        error => refused(volume, &error),
    })?;
    let used = server.keep(attached);
    let (files, mut ino) = (&used.export.files, ROOT);
    for (depth, name) in names.enumerate() {
        let dir = files.rights(ino).await.map_err(status)?;
        caller.look_up(&dir).map_err(|_| mountstat3::MNT3ERR_ACCES)?;
        let attr = files.lookup(ino, name).await.map_err(status)?;
        if attr.kind != FileType::Directory || depth >= limits::MOUNT_DEPTH_MAX {
            return Err(mountstat3::MNT3ERR_NOTDIR.into());
        }
        ino = attr.ino;
    }
    Ok(used.at(ino, seal))
}

fn refused(volume: &str, error: &Error) -> Refused {
    match error.kind() {
        Kind::NotFound | Kind::Invalid | Kind::Unsupported => mountstat3::MNT3ERR_NOENT.into(),
        Kind::Unavailable | Kind::Fenced | Kind::Conflict => Refused::Failed(Failed::Gone),
        _ => {
            tracing::warn!(volume, %error, "a volume cannot be mounted");
            mountstat3::MNT3ERR_SERVERFAULT.into()
        }
    }
}

fn status(error: rekindle_file::Error) -> Refused {
    use rekindle_file::Error;
    match error {
        Error::Posix(Errno::NOENT | Errno::INVAL) => mountstat3::MNT3ERR_NOENT.into(),
        Error::Posix(Errno::NAMETOOLONG) => mountstat3::MNT3ERR_NAMETOOLONG.into(),
        error => match error.into() {
            failed @ (Failed::Gone | Failed::Broken) => Refused::Failed(failed),
            _ => mountstat3::MNT3ERR_IO.into(),
        },
    }
}
