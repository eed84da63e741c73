//! Handles: what a client has of a file. A handle stays good over restarts, takeovers and upgrades,
//! as long as its file exists, since a volume's id and the numbers of inodes are never used again.
//! All hosts of a store understand it. See docs/format/nfs.md.

use super::limits;
use super::xdr::{Args, Garbage};
use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::xdr_codec::Opaque;
use rekindle_base::VolumeId;
use rekindle_file::{Ino, Seal};

/// Bytes of a handle.
pub const HANDLE_BYTES: usize = 36;
/// Longest handle that is read: that of version 4.
const READ_BYTES_MAX: u32 = 128;
/// Version of the layout.
const VERSION: u32 = 1;

/// A claim on an inode of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    pub volume: VolumeId,
    pub ino: Ino,
}

impl Handle {
    fn claim(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..4].copy_from_slice(&VERSION.to_be_bytes());
        bytes[4..20].copy_from_slice(&self.volume.0);
        bytes[20..].copy_from_slice(&self.ino.to_be_bytes());
        bytes
    }

    /// Encodes the handle, with a check that only a host with the store can compute.
    #[must_use]
    pub fn encode(&self, seal: &Seal) -> nfs_fh3 {
        let claim = self.claim();
        let bytes = [&claim[..], &seal.check(&claim).to_be_bytes()].concat();
        nfs_fh3 { data: Opaque::owned(bytes) }
    }

    /// Decodes a handle. `None`: no host of this store has given it.
    #[must_use]
    pub fn decode(bytes: &[u8], seal: &Seal) -> Option<Self> {
        let mut args = Args(bytes);
        let mut read = || -> Result<_, Garbage> {
            let version = args.u32()?;
            let (first, second) = (args.eight()?, args.eight()?);
            Ok((version, first, second, args.u64()?, args.u64()?))
        };
        let (version, first, second, ino, check) = read().ok()?;
        let mut volume = VolumeId([0; 16]);
        volume.0[..8].copy_from_slice(&first);
        volume.0[8..].copy_from_slice(&second);
        let handle = Self { volume, ino };
        let is_whole = args.0.is_empty() && version == VERSION;
        (is_whole && seal.check(&handle.claim()) == check).then_some(handle)
    }
}

/// Reads the handle of a call; one of a wrong length is no handle of ours, and no garbage.
pub fn read<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Garbage> {
    args.opaque(READ_BYTES_MAX)
}

const _: () = assert!(HANDLE_BYTES <= nfs3_types::nfs3::NFS3_FHSIZE);
const _: () = assert!(HANDLE_BYTES < limits::SHORT_CALL_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_in_its_store_only() {
        let (seal, other) = (Seal::with_secret(1), Seal::with_secret(2));
        let handle = Handle { volume: VolumeId(*b"0123456789abcdef"), ino: 7 };
        let bytes = handle.encode(&seal).data.to_vec();
        assert_eq!(bytes.len(), HANDLE_BYTES);
        assert_eq!(Handle::decode(&bytes, &seal), Some(handle));
        assert_eq!(Handle::decode(&bytes, &other), None);
        for at in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[at] ^= 1;
            assert_eq!(Handle::decode(&forged, &seal), None, "byte {at}");
            assert_eq!(Handle::decode(&bytes[..at], &seal), None, "{at} bytes");
        }
        assert_eq!(Handle::decode(&[&bytes[..], b"0000"].concat(), &seal), None);
    }

    #[test]
    fn one_of_any_length_that_version_4_allows_is_read() {
        for (length, is_read) in [(0, true), (64, true), (128, true), (132, false)] {
            let bytes = [&u32::to_be_bytes(length)[..], &vec![7; length as usize]].concat();
            assert_eq!(read(&mut Args(&bytes)).is_ok(), is_read, "{length}");
        }
    }

    #[test]
    fn the_layout_is_that_of_the_manual() {
        let handle = Handle { volume: VolumeId([9; 16]), ino: 0x0102 };
        let bytes = handle.encode(&Seal::with_secret(5)).data.to_vec();
        let claim = [&[0, 0, 0, 1][..], &[9; 16], &[0, 0, 0, 0, 0, 0, 1, 2]].concat();
        assert_eq!(bytes[..28], claim);
        assert_eq!(bytes[28..], Seal::with_secret(5).check(&claim).to_be_bytes());
    }
}
