//! Reading XDR: the arguments of calls, out of bytes that a stranger has sent. Total, and copies
//! nothing. (The codec of `nfs3_types` makes room for as many bytes as a length says, before it
//! has seen them; it decodes here only what has no lengths.)

use nfs3_types::xdr_codec::Unpack;

/// The arguments make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbage;

/// The bytes that are not read yet.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a>(pub &'a [u8]);

impl<'a> Args<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Garbage> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Garbage)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u32(&mut self) -> Result<u32, Garbage> {
        let bytes = self.take(4)?.try_into().map_err(|_| Garbage)?;
        Ok(u32::from_be_bytes(bytes))
    }

    pub fn u64(&mut self) -> Result<u64, Garbage> {
        let bytes = self.take(8)?.try_into().map_err(|_| Garbage)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Reads eight bytes that mean nothing to us.
    pub fn eight(&mut self) -> Result<[u8; 8], Garbage> {
        self.take(8)?.try_into().map_err(|_| Garbage)
    }

    /// Reads counted bytes, at most `most`.
    pub fn opaque(&mut self, most: u32) -> Result<&'a [u8], Garbage> {
        let length = self.u32()?;
        if length > most {
            return Err(Garbage);
        }
        let bytes = self.take(length as usize)?;
        self.take((4 - length as usize % 4) % 4)?;
        Ok(bytes)
    }

    /// Reads something without lengths.
    pub fn plain<T: Unpack>(&mut self) -> Result<T, Garbage> {
        let (value, _) = T::unpack(&mut self.0).map_err(|_| Garbage)?;
        Ok(value)
    }
}
