//! The words about access control lists: how a mount says that it knows of them, and how it sends
//! requests so that any daemon carries them out.
//!
//! With `FUSE_DONT_MASK` the kernel leaves it to the file system to take the bits of the umask from
//! a mode, since a directory's default list goes before that. A mount stays while daemons come and
//! go, and one of before takes the mode as it is. So the mount takes the bits away, and puts those
//! that went in the place of the umask, of which such a daemon knows nothing.

use super::{IN_HEADER_BYTES, InHeader, header, opcode, word_at};
use bytes::Bytes;
use rekindle_file::{AclOf, Errno};
use zerocopy::IntoBytes;

/// What a mount puts into the last but one word of INIT, which the kernel leaves free: it sends
/// requests as told here.
pub const KNOWS_ACLS: u32 = 0x524b_0003;

/// What a mount knows of, of what came later than mounts did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Knows {
    pub locks: bool,
    pub acls: bool,
}

/// In the place of a umask: it is the bits that went from the mode.
const WENT: u32 = 1 << 31;
const PERMISSIONS: u32 = 0o777;
/// Among the flags of a SETXATTR: an access control list takes set-group-id.
pub(super) const KILLS_SET_GID: u32 = 1 << 31;

/// Returns the mode that a program asks for, and the bits of it that are to go.
pub(super) fn asked(mode: u32, umask: u32) -> (u32, u32) {
    match umask & WENT {
        // It has no bits any more that are to go.
        0 => (mode, 0),
        _ => (mode | umask & PERMISSIONS, umask & PERMISSIONS),
    }
}

/// Returns a request of the kernel as any daemon understands it.
#[must_use]
pub fn for_any_daemon(request: Bytes) -> Bytes {
    let changed = header(&request).and_then(|header| match header.opcode {
        opcode::CREATE => with_mask(&request, 1, 2),
        opcode::MKDIR => with_mask(&request, 0, 1),
        opcode::MKNOD => with_mask(&request, 0, 2),
        opcode::SETXATTR => short_xattr(header, &request),
        _ => None,
    });
    changed.map_or(request, Bytes::from)
}

/// Takes the umask from a mode; both are words of the request's body.
fn with_mask(request: &[u8], mode_at: usize, umask_at: usize) -> Option<Vec<u8>> {
    let at = |word: usize| IN_HEADER_BYTES + word * 4;
    let (mode, umask) = (word_at(request, at(mode_at))?, word_at(request, at(umask_at))?);
    let went = mode & umask & PERMISSIONS;
    let mut request = request.to_vec();
    request[at(mode_at)..][..4].copy_from_slice(&(mode & !went).to_ne_bytes());
    request[at(umask_at)..][..4].copy_from_slice(&(went | WENT).to_ne_bytes());
    Some(request)
}

/// Takes the two words away that `FUSE_SETXATTR_EXT` adds. The only flag in them goes among the
/// others.
fn short_xattr(mut header: InHeader, request: &[u8]) -> Option<Vec<u8>> {
    let body = request.get(IN_HEADER_BYTES..)?;
    let [size, flags, more, _] = [0, 4, 8, 12].map(|at| word_at(body, at));
    let size = size?;
    // A name, its NUL and a value: nothing less, and nothing more.
    let is_pair = |rest: &[u8]| {
        let name = rest.iter().position(|byte| *byte == 0);
        name.is_some_and(|name| rest.len() == name + 1 + size as usize)
    };
    let rest = body.get(16..)?;
    // The first added word would be a name of a byte at most.
    if is_pair(&body[8..]) || !is_pair(rest) {
        return None;
    }
    let kills = if more? & 1 != 0 { KILLS_SET_GID } else { 0 };
    header.length -= 8;
    Some([header.as_bytes(), [size, flags? | kills].as_bytes(), rest].concat())
}

/// Whether a reply says that the daemon knows no lists: then no inode has one.
#[must_use]
pub fn lacks_acls(header: &InHeader, request: &[u8], error: i32) -> bool {
    // The name is behind two words.
    let name = request.get(IN_HEADER_BYTES + 8..).and_then(|rest| rest.strip_suffix(b"\0"));
    header.opcode == opcode::GETXATTR
        && error == -Errno::OPNOTSUPP.raw_os_error()
        && name.is_some_and(|name| AclOf::named(name).is_some())
}
