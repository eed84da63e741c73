//! The few kinds of error that leave a crate. Each tells the caller what to do; the detailed error
//! stays within the crate.

use std::fmt;

/// A kind of error, by what the caller shall do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request itself is wrong: change it.
    Invalid,
    /// The named thing does not exist.
    NotFound,
    /// The thing to create exists already.
    Exists,
    /// Another writer changed the thing first: look again, then decide.
    Conflict,
    /// Another owner or a newer generation has taken over: stop.
    Fenced,
    /// A budget or a device is full: wait or free space.
    Full,
    /// Bytes fail their checksum or hash: salvage.
    Damaged,
    /// The other side cannot be reached now: try again later.
    Unavailable,
    /// The other side does not let this one in (credentials, permissions, its address): the user
    /// has to change that.
    Refused,
    /// A version or feature that this binary does not know: upgrade.
    Unsupported,
    /// The machine refused an I/O or a similar call.
    Io,
}

impl Kind {
    /// Whether the same request may succeed later, although neither the caller nor the user changes
    /// anything.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Kind::Unavailable | Kind::Full | Kind::Conflict)
    }

    /// The Linux errno that a block client understands best.
    #[must_use]
    pub fn errno(self) -> u32 {
        match self {
            Kind::Invalid | Kind::Exists => 22,   // EINVAL
            Kind::NotFound => 2,                  // ENOENT
            Kind::Full => 28,                     // ENOSPC
            Kind::Fenced | Kind::Conflict => 108, // ESHUTDOWN
            Kind::Unsupported => 95,              // EOPNOTSUPP
            // EIO
            Kind::Damaged | Kind::Unavailable | Kind::Refused | Kind::Io => 5,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Invalid => "invalid",
            Kind::NotFound => "not-found",
            Kind::Exists => "exists",
            Kind::Conflict => "conflict",
            Kind::Fenced => "fenced",
            Kind::Full => "full",
            Kind::Damaged => "damaged",
            Kind::Unavailable => "unavailable",
            Kind::Refused => "refused",
            Kind::Unsupported => "unsupported",
            Kind::Io => "io",
        })
    }
}
