//! Little-endian numbers and counted bytes, one after the other.
//!
//! See also `docs/format/files.md`.

use super::Bad;

/// Takes apart what [`Scribe`] has put together.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Bad("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Bad("it ends too early"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Bad> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Bad> {
        self.array().map(i64::from_le_bytes)
    }

    /// Bytes behind their count.
    pub(super) fn counted(&mut self) -> Result<&'a [u8], Bad> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Puts numbers and bytes together.
pub(super) trait Scribe {
    fn put_counted(&mut self, bytes: &[u8]);
    fn put_u64(&mut self, number: u64);
}

impl Scribe for Vec<u8> {
    fn put_counted(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("names and values are short");
        self.extend_from_slice(&length.to_le_bytes());
        self.extend_from_slice(bytes);
    }

    fn put_u64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_le_bytes());
    }
}
