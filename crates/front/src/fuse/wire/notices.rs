//! What a mount is told beside the kernel's replies: a reply with the number 0, which has one of
//! these in the place of its error. The kernel's own numbers of errors are small.

/// The inode whose attributes follow has lost its last name.
pub const UNNAMED: i32 = 0x524b_0001;

/// The lock of the request whose number follows, and whose reply comes next, is of a client that
/// has had no company in its volume for twice the time for which names are believed.
pub const ALONE: i32 = 0x524b_0003;

/// The request whose number follows, and whose reply comes next, has left a folder with the
/// attributes behind that.
pub const FOLDER: i32 = 0x524b_0004;
