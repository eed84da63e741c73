//! The words of replies: attributes, times, errors.

use super::xdr::Garbage;
use nfs3_types::nfs3::{
    Nfs3Option, fattr3, ftype3, nfsstat3, nfstime3, post_op_attr, specdata3, wcc_attr, wcc_data,
};
use rekindle_base::VolumeId;
use rekindle_file::{Attr, Errno, FileType, Time};
use std::sync::Arc;

/// Why a call has no reply of success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    Status(nfsstat3),
    /// The volume is not served here any more.
    Gone,
    /// The same, found out amid the call: it may have been carried out.
    Broken,
    /// The host at which the owner of this volume runs serves it.
    Elsewhere(Arc<str>),
    /// The arguments make no sense.
    Garbage,
    /// There is no such procedure.
    NoProcedure,
}

impl From<nfsstat3> for Failed {
    fn from(status: nfsstat3) -> Self {
        Self::Status(status)
    }
}

impl From<Garbage> for Failed {
    fn from(_: Garbage) -> Self {
        Self::Garbage
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Status(status(errno))
    }
}

impl From<rekindle_file::Error> for Failed {
    fn from(error: rekindle_file::Error) -> Self {
        match crate::target::Failed::from(error) {
            crate::target::Failed::Errno(errno) => errno.into(),
            crate::target::Failed::HangUp => Self::Broken,
        }
    }
}

/// Returns the status of an error.
pub fn status(errno: Errno) -> nfsstat3 {
    match errno {
        Errno::PERM => nfsstat3::NFS3ERR_PERM,
        Errno::NOENT => nfsstat3::NFS3ERR_NOENT,
        Errno::NXIO => nfsstat3::NFS3ERR_NXIO,
        Errno::ACCESS => nfsstat3::NFS3ERR_ACCES,
        Errno::EXIST => nfsstat3::NFS3ERR_EXIST,
        Errno::XDEV => nfsstat3::NFS3ERR_XDEV,
        Errno::NODEV => nfsstat3::NFS3ERR_NODEV,
        Errno::NOTDIR => nfsstat3::NFS3ERR_NOTDIR,
        Errno::ISDIR => nfsstat3::NFS3ERR_ISDIR,
        // A directory that is too deep has no number of its own.
        Errno::INVAL | Errno::LOOP => nfsstat3::NFS3ERR_INVAL,
        Errno::FBIG => nfsstat3::NFS3ERR_FBIG,
        Errno::NOSPC => nfsstat3::NFS3ERR_NOSPC,
        Errno::ROFS => nfsstat3::NFS3ERR_ROFS,
        Errno::MLINK => nfsstat3::NFS3ERR_MLINK,
        Errno::NAMETOOLONG => nfsstat3::NFS3ERR_NAMETOOLONG,
        Errno::NOTEMPTY => nfsstat3::NFS3ERR_NOTEMPTY,
        Errno::DQUOT => nfsstat3::NFS3ERR_DQUOT,
        Errno::STALE => nfsstat3::NFS3ERR_STALE,
        // A guard that does not hold.
        Errno::CANCELED => nfsstat3::NFS3ERR_NOT_SYNC,
        Errno::OPNOTSUPP => nfsstat3::NFS3ERR_NOTSUPP,
        _ => nfsstat3::NFS3ERR_IO,
    }
}

/// The number by which clients tell volumes apart.
pub fn volume_number(id: VolumeId) -> u64 {
    let (first, _) = id.0.split_at(8);
    u64::from_be_bytes(first.try_into().expect("8 bytes"))
}

/// A time; NFS has seconds from 1970 to 2106.
pub fn time(time: Time) -> nfstime3 {
    match u32::try_from(time.seconds) {
        Ok(seconds) => nfstime3 { seconds, nseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => nfstime3::default(),
        Err(_) => nfstime3 { seconds: u32::MAX, nseconds: time.nanoseconds },
    }
}

/// The time that a client asks for.
pub fn time_asked(time: nfstime3) -> Result<Time, Errno> {
    let nfstime3 { seconds, nseconds } = time;
    if nseconds >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    Ok(Time { seconds: seconds.into(), nanoseconds: nseconds })
}

/// The number of a device, as the kernel encodes it: 12 bits of the major number, 20 of the minor.
pub fn device_number(spec: &specdata3) -> Option<u32> {
    let (major, minor) = (spec.specdata1, spec.specdata2);
    let fits = major < 1 << 12 && minor < 1 << 20;
    fits.then_some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// The number of a device, in two.
pub fn device(number: u32) -> specdata3 {
    specdata3 {
        specdata1: (number >> 8) & 0xfff,
        specdata2: (number & 0xff) | ((number >> 12) & 0xf_ff00),
    }
}

pub fn attributes(attr: &Attr, volume: u64) -> fattr3 {
    let type_ = match attr.kind {
        FileType::Regular => ftype3::NF3REG,
        FileType::Directory => ftype3::NF3DIR,
        FileType::Symlink => ftype3::NF3LNK,
        FileType::Fifo => ftype3::NF3FIFO,
        FileType::Socket => ftype3::NF3SOCK,
        FileType::CharDevice => ftype3::NF3CHR,
        FileType::BlockDevice => ftype3::NF3BLK,
    };
    fattr3 {
        type_,
        mode: attr.mode.into(),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.allocated,
        rdev: device(attr.device),
        fsid: volume,
        fileid: attr.ino,
        atime: time(attr.accessed),
        mtime: time(attr.modified),
        ctime: time(attr.changed),
    }
}

/// The attributes by which a client sees that only its own change was made.
pub fn before(attr: &Attr) -> wcc_attr {
    wcc_attr { size: attr.size, mtime: time(attr.modified), ctime: time(attr.changed) }
}

/// Attributes that nothing is known of before.
pub fn only_after(after: post_op_attr) -> wcc_data {
    wcc_data { before: Nfs3Option::None, after }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_as_the_kernel_does() {
        for (major, minor, number) in [(8, 1, 0x801), (4, 0x1_2345, 0x1230_0445)] {
            let spec = specdata3 { specdata1: major, specdata2: minor };
            assert_eq!(device_number(&spec), Some(number), "{major}:{minor}");
            assert_eq!(device(number), spec);
        }
        assert_eq!(device_number(&specdata3 { specdata1: 1 << 12, specdata2: 0 }), None);
        assert_eq!(device_number(&specdata3 { specdata1: 0, specdata2: 1 << 20 }), None);
    }

    #[test]
    fn times_end_where_the_protocol_does() {
        let at = |seconds| time(Time { seconds, nanoseconds: 5 });
        assert_eq!(at(7), nfstime3 { seconds: 7, nseconds: 5 });
        assert_eq!(at(-1), nfstime3::default());
        assert_eq!(at(1 << 40).seconds, u32::MAX);
        let back = time_asked(nfstime3 { seconds: 7, nseconds: 5 });
        assert_eq!(back, Ok(Time { seconds: 7, nanoseconds: 5 }));
        assert_eq!(time_asked(nfstime3 { seconds: 0, nseconds: 1_000_000_000 }), Err(Errno::INVAL));
    }
}
