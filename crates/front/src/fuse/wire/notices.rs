//! What a mount is told beside the kernel's replies: a reply with the number 0, which has one of
//! these in the place of its error. The kernel's own numbers of errors are small.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The inode whose attributes follow has lost its last name.
pub const UNNAMED: i32 = 0x524b_0001;

/// The lock of the request whose number follows, and whose reply comes next, is of a client that
/// has had no company in its volume for twice the time for which names are believed.
pub const ALONE: i32 = 0x524b_0003;

/// The request whose number follows, and whose reply comes next, has left a folder with the
/// attributes behind that.
pub const FOLDER: i32 = 0x524b_0004;

/// Behind it is a [`Memory`]: until a sync, what the mount was told is in that memory, perhaps, and
/// nowhere else. Told first on each connection over which changes are answered before they are
/// durable.
pub const MEMORY: i32 = 0x524b_0005;

/// A memory that outlives the daemon's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Memory {
    /// The node that has it.
    pub node: [u8; 16],
    /// The last start of the node that found the memory lost, with what only it had; 0: none did.
    pub since: u64,
}
