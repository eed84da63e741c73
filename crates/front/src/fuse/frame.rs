//! The bytes between a mount and its daemon: requests of the kernel in frames, so that a mount can
//! send them again over another connection. Page: docs/format/mount.md.
//!
//! A mount says hello, then sends frames. The daemon sends the kernel's replies as they are: each
//! begins with its length.

use super::limits;
use super::wire::IN_HEADER_BYTES;
use rekindle_file::Ino;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first bytes of a hello.
pub const MAGIC: [u8; 8] = *b"RKmount\0";
/// The version of the protocol.
pub const VERSION: u32 = 1;
/// Flag of a frame: the request was sent before, over another connection.
pub const AGAIN: u32 = 1 << 0;

/// Bytes of a hello before the inodes that are open.
pub const HELLO_BYTES: usize = size_of::<Hello>();
/// Bytes of a frame before its request.
pub const FRAME_BYTES: usize = size_of::<Frame>();

/// The first bytes of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    magic: [u8; 8],
    version: u32,
    /// Number of inodes that the mount has open; an [`Open`] follows for each.
    pub opens: u32,
    /// The mount, by a number that it has drawn.
    pub client: u64,
}

/// An inode that a mount has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Open {
    pub ino: Ino,
    /// How often it is open.
    pub count: u64,
}

/// A frame before its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Frame {
    /// Bytes of the request.
    pub length: u32,
    flags: u32,
    /// The mount's number of the request, ascending. (The kernel's own ascend only on one
    /// processor.)
    pub number: u64,
    /// The smallest number without a reply: the mount sends none again that is before it.
    pub oldest: u64,
}

/// Bytes that no mount of this version sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    #[error("it does not begin as a mount does")]
    Magic,
    #[error("it speaks version {0}, and this daemon {VERSION}: start the mount again")]
    Version(u32),
    #[error("it says that {0} inodes are open")]
    Opens(u32),
    #[error("a frame of {0} bytes")]
    Length(u32),
    #[error("a frame with flags 0x{0:x}")]
    Flags(u32),
    #[error("request {0} is older than the oldest one")]
    Order(u64),
    #[error("a request that is not as long as its frame")]
    Request,
}

impl Hello {
    #[must_use]
    pub fn new(client: u64, opens: u32) -> Self {
        Self { magic: MAGIC, version: VERSION, opens, client }
    }

    /// Decodes a hello.
    pub fn decode(bytes: [u8; HELLO_BYTES]) -> Result<Self, Garbage> {
        let hello: Self = zerocopy::transmute!(bytes);
        if hello.magic != MAGIC {
            return Err(Garbage::Magic);
        }
        if hello.version != VERSION {
            return Err(Garbage::Version(hello.version));
        }
        if hello.opens > limits::OPENS_MAX {
            return Err(Garbage::Opens(hello.opens));
        }
        Ok(hello)
    }
}

impl Frame {
    #[must_use]
    pub fn new(length: u32, number: u64, oldest: u64, again: bool) -> Self {
        Self { length, flags: if again { AGAIN } else { 0 }, number, oldest }
    }

    /// Whether the request was sent before.
    #[must_use]
    pub fn is_again(&self) -> bool {
        self.flags & AGAIN != 0
    }

    /// Decodes a frame before its request.
    pub fn decode(bytes: [u8; FRAME_BYTES]) -> Result<Self, Garbage> {
        let frame: Self = zerocopy::transmute!(bytes);
        if frame.flags & !AGAIN != 0 {
            return Err(Garbage::Flags(frame.flags));
        }
        let lengths = IN_HEADER_BYTES as u32..=limits::REQUEST_BYTES_MAX;
        if !lengths.contains(&frame.length) {
            return Err(Garbage::Length(frame.length));
        }
        if frame.oldest > frame.number {
            return Err(Garbage::Order(frame.number));
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests;
