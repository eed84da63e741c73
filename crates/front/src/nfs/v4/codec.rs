//! The words of version 4.1 in XDR, beyond plain numbers (RFC 5662): read out of what a stranger
//! has sent, without a copy, and written to a reply.

use crate::held::Given;
use crate::nfs::xdr::{Args, Garbage};

/// Words of a bitmap that mean anything here; further ones are read, and ignored.
pub const BITMAP_WORDS: usize = 3;
/// Most words of a bitmap that are read at all.
const BITMAP_WORDS_READ: u32 = 16;

/// A set of attributes, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bitmap(pub [u32; BITMAP_WORDS]);

impl Bitmap {
    pub const fn of(numbers: &[u32]) -> Self {
        let mut words = [0; BITMAP_WORDS];
        let mut at = 0;
        while at < numbers.len() {
            words[(numbers[at] / 32) as usize] |= 1 << (numbers[at] % 32);
            at += 1;
        }
        Self(words)
    }

    pub fn has(&self, number: u32) -> bool {
        let word = self.0.get((number / 32) as usize);
        word.is_some_and(|word| word & 1 << (number % 32) != 0)
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    pub fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// Returns the numbers in the set, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        (0..32 * BITMAP_WORDS as u32).filter(|number| self.has(*number))
    }
}

/// A name of state that a client has: opens or locks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stateid {
    pub seqid: u32,
    pub other: [u8; 12],
}

/// What a stateid without state of its own means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// No open at all.
    Anonymous,
    /// The same, and share reservations do not hinder a READ.
    Bypass,
    /// The last one of the same COMPOUND.
    Current,
}

impl Stateid {
    /// The stateid of what is closed.
    pub const INVALID: Stateid = Stateid { seqid: u32::MAX, other: [0; 12] };

    pub fn new(ino: u64, id: u64, seqid: u32) -> Self {
        let mut other = [0; 12];
        other[..6].copy_from_slice(&ino.to_be_bytes()[2..]);
        other[6..].copy_from_slice(&id.to_be_bytes()[2..]);
        Self { seqid, other }
    }

    /// Returns the inode that the state is of.
    pub fn ino(&self) -> u64 {
        let [a, b, c, d, e, f, ..] = self.other;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Returns the number that the state has at its inode.
    pub fn id(&self) -> u64 {
        let [.., a, b, c, d, e, f] = self.other;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// `None`: it is the name of state.
    pub fn special(&self) -> Option<Special> {
        match (self.other, self.seqid) {
            (other, 0) if other == [0; 12] => Some(Special::Anonymous),
            (other, 1) if other == [0; 12] => Some(Special::Current),
            (other, u32::MAX) if other == [0xff; 12] => Some(Special::Bypass),
            _ => None,
        }
    }
}

impl From<Stateid> for Given {
    fn from(stateid: Stateid) -> Self {
        Self { id: stateid.id(), seqid: stateid.seqid }
    }
}

pub trait Read<'a> {
    fn flag(&mut self) -> Result<bool, Garbage>;
    fn bitmap(&mut self) -> Result<Bitmap, Garbage>;
    fn stateid(&mut self) -> Result<Stateid, Garbage>;
    fn sixteen(&mut self) -> Result<[u8; 16], Garbage>;
}

impl<'a> Read<'a> for Args<'a> {
    fn flag(&mut self) -> Result<bool, Garbage> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    fn bitmap(&mut self) -> Result<Bitmap, Garbage> {
        let count = self.u32()?;
        if count > BITMAP_WORDS_READ {
            return Err(Garbage);
        }
        let mut bitmap = Bitmap::default();
        for at in 0..count as usize {
            let word = self.u32()?;
            if let Some(there) = bitmap.0.get_mut(at) {
                *there = word;
            }
        }
        Ok(bitmap)
    }

    fn stateid(&mut self) -> Result<Stateid, Garbage> {
        let (seqid, first, last) = (self.u32()?, self.eight()?, self.u32()?);
        let mut other = [0; 12];
        other[..8].copy_from_slice(&first);
        other[8..].copy_from_slice(&last.to_be_bytes());
        Ok(Stateid { seqid, other })
    }

    fn sixteen(&mut self) -> Result<[u8; 16], Garbage> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.eight()?);
        bytes[8..].copy_from_slice(&self.eight()?);
        Ok(bytes)
    }
}

pub trait Write {
    fn put_u32(&mut self, number: u32);
    fn put_u64(&mut self, number: u64);
    fn put_flag(&mut self, flag: bool);
    /// Bytes that are not counted.
    fn put_plain(&mut self, bytes: &[u8]);
    /// Bytes behind their count.
    fn put_opaque(&mut self, bytes: &[u8]);
    fn put_bitmap(&mut self, bitmap: &Bitmap);
    fn put_stateid(&mut self, stateid: &Stateid);
}

impl Write for Vec<u8> {
    fn put_u32(&mut self, number: u32) {
        self.extend_from_slice(&number.to_be_bytes());
    }

    fn put_u64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_be_bytes());
    }

    fn put_flag(&mut self, flag: bool) {
        self.put_u32(flag.into());
    }

    fn put_plain(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
        self.resize(self.len() + (4 - bytes.len() % 4) % 4, 0);
    }

    fn put_opaque(&mut self, bytes: &[u8]) {
        self.put_u32(u32::try_from(bytes.len()).expect("replies are bounded"));
        self.put_plain(bytes);
    }

    fn put_bitmap(&mut self, bitmap: &Bitmap) {
        let words = bitmap.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.put_u32(words as u32);
        bitmap.0[..words].iter().for_each(|word| self.put_u32(*word));
    }

    fn put_stateid(&mut self, stateid: &Stateid) {
        self.put_u32(stateid.seqid);
        self.put_plain(&stateid.other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive() {
        let bitmap = Bitmap::of(&[0, 31, 32, 55, 75]);
        let stateid = Stateid::new(0x0102_0304_0506, 0x0a0b_0c0d_0e0f, 9);
        let mut bytes = Vec::new();
        bytes.put_bitmap(&bitmap);
        bytes.put_stateid(&stateid);
        bytes.put_opaque(b"abcde");
        bytes.put_flag(true);
        let mut args = Args(&bytes);
        assert_eq!(args.bitmap(), Ok(bitmap));
        assert_eq!(args.stateid(), Ok(stateid));
        assert_eq!(args.opaque(5), Ok(&b"abcde"[..]));
        assert_eq!(args.flag(), Ok(true));
        assert!(args.0.is_empty());
        assert_eq!(bitmap.numbers().collect::<Vec<_>>(), [0, 31, 32, 55, 75]);
        assert_eq!((stateid.ino(), stateid.id()), (0x0102_0304_0506, 0x0a0b_0c0d_0e0f));
    }

    #[test]
    fn bitmaps_of_strangers_are_bounded() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let bytes: Vec<u8> = words(&[5, 1, 0, 0, 7, 7]);
        assert_eq!(Args(&bytes).bitmap(), Ok(Bitmap::of(&[0])));
        let bytes: Vec<u8> = words(&[u32::MAX, 1, 0, 0]);
        assert_eq!(Args(&bytes).bitmap(), Err(Garbage));
        let bytes: Vec<u8> = words(&[2]);
        assert_eq!(Args(&bytes).flag(), Err(Garbage));
    }

    #[test]
    fn special_stateids_are_no_state() {
        let special = |seqid, byte| Stateid { seqid, other: [byte; 12] }.special();
        assert_eq!(special(0, 0), Some(Special::Anonymous));
        assert_eq!(special(1, 0), Some(Special::Current));
        assert_eq!(special(u32::MAX, 0xff), Some(Special::Bypass));
        assert_eq!(special(u32::MAX, 0), None, "that of what is closed");
        assert_eq!(special(0, 0xff), None);
        assert_eq!(Stateid::new(5, 6, 0).special(), None);
    }
}
