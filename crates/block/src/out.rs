//! What a read gives: bytes that are copied to their place, or pieces that lie where they are.

use bytes::Bytes;
use std::ops::Range;

/// Zeros, which every hole shows.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The bytes that a reader wants, in order.
pub(crate) trait Out: Send {
    /// The bytes that it still wants.
    fn left(&self) -> u64;
    /// Gives it so many zeros, or as many as it wants.
    fn zeros(&mut self, length: u64);
    /// Gives it a part of a chunk, or as much as it wants of that. Returns how many bytes.
    fn bytes(&mut self, chunk: &Bytes, part: Range<u64>) -> u64;
}

/// A buffer of the reader's.
pub(crate) struct Copied<'a>(pub(crate) &'a mut [u8]);

impl Copied<'_> {
    fn take(&mut self, length: u64) -> &mut [u8] {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(self.0.len());
        let (taken, rest) = std::mem::take(&mut self.0).split_at_mut(length);
        self.0 = rest;
        taken
    }
}

impl Out for Copied<'_> {
    fn left(&self) -> u64 {
        self.0.len() as u64
    }

    fn zeros(&mut self, length: u64) {
        self.take(length).fill(0);
    }

    fn bytes(&mut self, chunk: &Bytes, part: Range<u64>) -> u64 {
        let from = part.start as usize;
        let out = self.take(part.end - part.start);
        out.copy_from_slice(&chunk[from..from + out.len()]);
        out.len() as u64
    }
}

/// Pieces of chunks in the cache.
pub(crate) struct Pieces {
    pub(crate) list: Vec<Bytes>,
    left: u64,
}

impl Pieces {
    pub(crate) fn new(wanted: u64) -> Self {
        Self { list: Vec::new(), left: wanted }
    }
}

impl Out for Pieces {
    fn left(&self) -> u64 {
        self.left
    }

    fn zeros(&mut self, length: u64) {
        let mut length = length.min(self.left);
        self.left -= length;
        while length > 0 {
            let piece = length.min(ZEROS.len() as u64);
            self.list.push(Bytes::from_static(&ZEROS[..piece as usize]));
            length -= piece;
        }
    }

    fn bytes(&mut self, chunk: &Bytes, part: Range<u64>) -> u64 {
        let length = (part.end - part.start).min(self.left);
        if length > 0 {
            self.left -= length;
            self.list.push(chunk.slice(part.start as usize..(part.start + length) as usize));
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_give_the_same_bytes_and_no_more_than_are_wanted() {
        let chunk = Bytes::from_static(b"0123456789");
        let (hole, wanted) = (3 * ZEROS.len() + 5, 3 * ZEROS.len() + 12);
        let give = |out: &mut dyn FnMut(Option<Range<u64>>) -> u64| {
            out(None);
            (out(Some(2..6)), out(Some(4..10)), out(Some(0..1)))
        };
        let mut pieces = Pieces::new(wanted as u64);
        let given = give(&mut |part| match part {
            Some(part) => pieces.bytes(&chunk, part),
            None => {
                pieces.zeros(hole as u64);
                0
            }
        });
        assert_eq!((given, pieces.left), ((4, 3, 0), 0));
        let mut buffer = vec![9; wanted];
        let mut copied = Copied(&mut buffer);
        give(&mut |part| match part {
            Some(part) => copied.bytes(&chunk, part),
            None => {
                copied.zeros(hole as u64);
                0
            }
        });
        let expected = [&vec![0; hole][..], b"2345456"].concat();
        assert!(pieces.list.concat() == expected && buffer == expected);
    }
}
