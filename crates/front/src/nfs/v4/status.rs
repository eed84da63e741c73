//! The statuses of version 4.1 (RFC 8881, section 15), and what becomes of an error.

use crate::held::Refused;
use crate::nfs::replies;
use crate::nfs::xdr::Garbage;
use nfs3_types::nfs3::nfsstat3;
use rekindle_file::Errno;
use std::sync::Arc;

/// The status of an operation. Those that version 3 has, too, have the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $number:literal),* $(,)?) => {
        impl Status {
            $(pub const $name: Status = Status($number);)*
        }
    };
}

statuses! {
    OK = 0,
    NOENT = 2,
    IO = 5,
    ACCESS = 13,
    EXIST = 17,
    XDEV = 18,
    NOTDIR = 20,
    ISDIR = 21,
    INVAL = 22,
    FBIG = 27,
    NOSPC = 28,
    ROFS = 30,
    NAMETOOLONG = 63,
    NOTEMPTY = 66,
    STALE = 70,
    BADHANDLE = 10001,
    BAD_COOKIE = 10003,
    NOTSUPP = 10004,
    TOOSMALL = 10005,
    BADTYPE = 10007,
    DELAY = 10008,
    SAME = 10009,
    DENIED = 10010,
    LOCKED = 10012,
    SHARE_DENIED = 10015,
    NOFILEHANDLE = 10020,
    MINOR_VERS_MISMATCH = 10021,
    STALE_CLIENTID = 10022,
    OLD_STATEID = 10024,
    BAD_STATEID = 10025,
    NOT_SAME = 10027,
    SYMLINK = 10029,
    RESTOREFH = 10030,
    ATTRNOTSUPP = 10032,
    NO_GRACE = 10033,
    BADXDR = 10036,
    LOCKS_HELD = 10037,
    OPENMODE = 10038,
    BADOWNER = 10039,
    BADNAME = 10041,
    BAD_RANGE = 10042,
    OP_ILLEGAL = 10044,
    BADSESSION = 10052,
    BADSLOT = 10053,
    COMPLETE_ALREADY = 10054,
    CONN_NOT_BOUND_TO_SESSION = 10055,
    SEQ_MISORDERED = 10063,
    SEQUENCE_POS = 10064,
    REQ_TOO_BIG = 10065,
    REP_TOO_BIG = 10066,
    REP_TOO_BIG_TO_CACHE = 10067,
    TOO_MANY_OPS = 10070,
    OP_NOT_IN_SESSION = 10071,
    CLIENTID_BUSY = 10074,
    BAD_HIGH_SLOT = 10077,
    NOT_ONLY_OP = 10081,
    WRONG_TYPE = 10083,
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unknown => Self::BAD_STATEID,
            Refused::Outdated => Self::OLD_STATEID,
            Refused::Shared => Self::SHARE_DENIED,
            Refused::Denies => Self::LOCKED,
            Refused::Access => Self::OPENMODE,
            Refused::Invalid => Self::INVAL,
            Refused::Full => Self::NOSPC,
            Refused::Holds => Self::LOCKS_HELD,
            Refused::Locked(_) => Self::DENIED,
        }
    }
}

/// Why an operation is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    Status(Status),
    /// The same, with results that go with it.
    With(Status, Vec<u8>),
    /// The volume is not served here any more.
    Gone,
    /// The same, found out amid the operation: it may have been carried out.
    Broken,
    /// The host at which the owner of this volume runs serves it. Whether the operation has only
    /// come to the volume's root, and is done with that.
    Elsewhere(Arc<str>, bool),
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Garbage> for Fault {
    fn from(_: Garbage) -> Self {
        Self::Status(Status::BADXDR)
    }
}

impl From<nfsstat3> for Status {
    fn from(status: nfsstat3) -> Self {
        Self(status as u32)
    }
}

impl From<Errno> for Status {
    fn from(errno: Errno) -> Self {
        match errno {
            // Version 4 has none for it.
            Errno::NODEV => Self::INVAL,
            errno => replies::status(errno).into(),
        }
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Status(errno.into())
    }
}

impl From<replies::Failed> for Fault {
    fn from(failed: replies::Failed) -> Self {
        match failed {
            replies::Failed::Status(status) => Self::Status(status.into()),
            replies::Failed::Gone => Self::Gone,
            replies::Failed::Broken => Self::Broken,
            replies::Failed::Elsewhere(volume) => Self::Elsewhere(volume, false),
            replies::Failed::Garbage | replies::Failed::NoProcedure => Self::Status(Status::BADXDR),
        }
    }
}

impl From<rekindle_file::Error> for Fault {
    fn from(error: rekindle_file::Error) -> Self {
        match error {
            rekindle_file::Error::Posix(errno) => errno.into(),
            error => replies::Failed::from(error).into(),
        }
    }
}
