//! Buffers of one fold, for reuse: fresh memory costs page faults, and growing it copies.

use crate::limits;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Buffers that are not in use. All clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spare {
    /// Returns a buffer, whose content does not matter.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Takes a buffer back. A short one is not worth it.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut buffers = self.0.lock();
        if buffer.capacity() >= limits::SPARE_BYTES_MIN && buffers.len() < limits::SPARE_MAX {
            buffers.push(buffer);
        }
    }

    /// Makes bytes of a buffer, which comes back when the last holder of the bytes lets go.
    pub(crate) fn lend(&self, buffer: Vec<u8>) -> Bytes {
        match buffer.capacity() < limits::SPARE_BYTES_MIN {
            true => buffer.into(),
            false => Bytes::from_owner(Lent { buffer, spare: self.clone() }),
        }
    }
}

struct Lent {
    buffer: Vec<u8>,
    spare: Spare,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.spare.give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_buffer_comes_back_with_its_last_holder_and_few_are_kept() {
        let spare = Spare::default();
        let bytes = spare.lend(vec![7; limits::SPARE_BYTES_MIN]);
        let (part, at) = (bytes.slice(3..5), bytes.as_ptr());
        drop(bytes);
        assert_eq!((&part[..], spare.take().capacity()), (&[7, 7][..], 0), "it is in use");
        drop(part);
        let again = spare.take();
        assert_eq!(again.as_ptr(), at);
        drop(spare.lend(vec![7; 100]));
        assert_eq!(spare.take().capacity(), 0, "a short one goes");
        for _ in 0..2 * limits::SPARE_MAX {
            spare.give(vec![0; limits::SPARE_BYTES_MIN]);
        }
        assert_eq!(spare.0.lock().len(), limits::SPARE_MAX);
    }
}
