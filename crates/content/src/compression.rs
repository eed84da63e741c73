//! Compression of chunks that gain by it, and the way back, bounded.

use crate::format::blob::Codec;
use crate::{Compression, limits};
use std::borrow::Cow;
use std::cell::RefCell;

/// A compressor of chunks; one for each writer, because its tables are used again.
pub struct Compressor {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    /// Whether the last chunk did not compress. Such chunks come together, so only then a sample is
    /// likely to spare more than it costs.
    is_doubtful: bool,
}

impl Compressor {
    /// Creates a compressor. Its tables come with the first chunk.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Self { compression, zstd: None, is_doubtful: false }
    }

    /// Bytes that [`Compressor::compress`] may write for a body of `length` bytes.
    #[must_use]
    pub fn room(&self, length: usize) -> usize {
        match self.compression {
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(length).max(length),
            Compression::None | Compression::Zstd => length,
        }
    }

    /// Writes the payload of `body` to the begin of `target`, which has [`Compressor::room`] for
    /// it. The payload is compressed when that saves a sixteenth, else it is the body. Returns
    /// codec and length, in bytes.
    pub fn compress(&mut self, body: &[u8], target: &mut [u8]) -> (Codec, usize) {
        self.try_compress(body, target).unwrap_or_else(|| {
            target[..body.len()].copy_from_slice(body);
            (Codec::None, body.len())
        })
    }

    /// Like [`Compressor::compress`], but `None` when it saves less than a sixteenth; what `target`
    /// holds then does not matter.
    pub(crate) fn try_compress(
        &mut self,
        body: &[u8],
        target: &mut [u8],
    ) -> Option<(Codec, usize)> {
        let most = body.len() - body.len() / limits::COMPRESS_SAVES_SHARE;
        let (codec, compressed) = match self.compression {
            _ if body.len() < limits::COMPRESS_BYTES_MIN => (Codec::None, None),
            Compression::None => (Codec::None, None),
            _ if self.is_doubtful && is_noise(body) => (Codec::None, None),
            Compression::Lz4 => (Codec::Lz4, lz4_flex::block::compress_into(body, target).ok()),
            // A target that is too short makes zstd give up early.
            Compression::Zstd => (Codec::Zstd, self.zstd(body, &mut target[..most])),
        };
        let compressed = compressed.filter(|length| *length <= most);
        self.is_doubtful = compressed.is_none();
        compressed.map(|length| (codec, length))
    }

    fn zstd(&mut self, body: &[u8], target: &mut [u8]) -> Option<usize> {
        if self.zstd.is_none() {
            self.zstd = zstd::bulk::Compressor::new(1).ok();
        }
        self.zstd.as_mut()?.compress_to_buffer(body, target).ok()
    }
}

/// Whether a sample of a body looks like random bytes: encrypted, or compressed already. Of random
/// bytes each value is as frequent as the others, and the sum of the squares of the frequencies is
/// least. A chunk that repeats noise looks like noise too, and is then stored as it is.
fn is_noise(body: &[u8]) -> bool {
    const PIECES: usize = 64;
    const PIECE: usize = 16;
    let Some(stride) = (body.len() / PIECES).checked_sub(PIECE).filter(|stride| *stride > 0) else {
        return false;
    };
    let mut frequencies = [0_u32; 256];
    for piece in 0..PIECES {
        // At no fixed distance: the beginning of each sector may be unlike the rest.
        let start = piece * (stride + PIECE) + piece * 37 % stride;
        for byte in &body[start..start + PIECE] {
            frequencies[usize::from(*byte)] += 1;
        }
    }
    let squares: u32 = frequencies.iter().map(|count| count * count).sum();
    let (count, values) = ((PIECES * PIECE) as u32, 256);
    let random = count + count * count / values;
    squares <= random + random / 10
}

thread_local! {
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decompresses a payload into exactly `length` bytes, or says why it cannot. A payload that is not
/// compressed is returned as it lies. The caller has checked that `length` is within bounds.
pub(crate) fn decompress(
    codec: Codec,
    payload: &[u8],
    length: usize,
) -> Result<Cow<'_, [u8]>, String> {
    match codec {
        Codec::None => Ok(Cow::Borrowed(payload)),
        Codec::Lz4 => {
            let mut body = vec![0; length];
            let found = lz4_flex::block::decompress_into(payload, &mut body)
                .map_err(|error| error.to_string())?;
            exact(body, found)
        }
        Codec::Zstd => ZSTD.with_borrow_mut(|kept| {
            let decompressor = match kept {
                Some(decompressor) => decompressor,
                None => {
                    kept.insert(zstd::bulk::Decompressor::new().map_err(|error| error.to_string())?)
                }
            };
            let mut body = Vec::with_capacity(length);
            let found = decompressor
                .decompress_to_buffer(payload, &mut body)
                .map_err(|error| error.to_string())?;
            if found == length {
                Ok(Cow::Owned(body))
            } else {
                Err(format!("it has {found} bytes instead of {length}"))
            }
        }),
    }
}

fn exact(body: Vec<u8>, found: usize) -> Result<Cow<'static, [u8]>, String> {
    if found == body.len() {
        Ok(Cow::Owned(body))
    } else {
        Err(format!("it has {found} bytes instead of {}", body.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|i| b"what pays is kept "[i * i % 18]).collect()
    }

    /// The payload of a body.
    fn compress(compressor: &mut Compressor, body: &[u8]) -> (Codec, Vec<u8>) {
        let mut payload = vec![0; compressor.room(body.len())];
        let (codec, length) = compressor.compress(body, &mut payload);
        payload.truncate(length);
        (codec, payload)
    }

    #[test]
    fn what_pays_is_compressed_and_comes_back() {
        for (compression, codec) in
            [(Compression::Lz4, Codec::Lz4), (Compression::Zstd, Codec::Zstd)]
        {
            let mut compressor = Compressor::new(compression);
            for length in [128, 1000, 16_384, 100_000, 4096] {
                let body = text(length);
                let (found, payload) = compress(&mut compressor, &body);
                assert_eq!(found, codec);
                assert!(payload.len() < length);
                assert_eq!(decompress(codec, &payload, length).unwrap(), body);
                assert!(decompress(codec, &payload, length - 1).is_err());
                assert!(decompress(codec, &payload, length + 1).is_err());
                assert!(decompress(codec, &payload[..payload.len() - 1], length).is_err());
            }
        }
    }

    #[test]
    fn what_does_not_pay_is_stored_as_it_is() {
        let mut random = [0; 16_384];
        blake3::Hasher::new().finalize_xof().fill(&mut random);
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let mut compressor = Compressor::new(compression);
            assert_eq!(compress(&mut compressor, &random), (Codec::None, random.to_vec()));
            assert_eq!(compress(&mut compressor, &text(100)), (Codec::None, text(100)));
        }
    }

    #[test]
    fn a_sample_spares_noise_only_and_only_after_noise() {
        let mut random = [0; 64 << 10];
        blake3::Hasher::new().finalize_xof().fill(&mut random);
        for length in [4096, 16_384, 65_536] {
            assert!(is_noise(&random[..length]));
            let sparse: Vec<u8> = random[..length].iter().map(|byte| byte & 0x7f).collect();
            // A tenth of each sector is zeros.
            let mut holes = random[..length].to_vec();
            holes.chunks_mut(512).for_each(|sector| sector[..51].fill(0));
            for body in [&text(length), &sparse, &holes] {
                assert!(!is_noise(body), "{length}");
            }
            // Noise that is repeated compresses, which no sample tells.
            let twice = [&random[..length / 2], &random[..length / 2]].concat();
            let mut compressor = Compressor::new(Compression::Zstd);
            assert_eq!(compress(&mut compressor, &twice).0, Codec::Zstd);
            assert_eq!(compress(&mut compressor, &random[..length]).0, Codec::None);
            assert_eq!(compress(&mut compressor, &twice).0, Codec::None, "sampled");
            assert_eq!(compress(&mut compressor, &text(length)).0, Codec::Zstd);
            assert_eq!(compress(&mut compressor, &twice).0, Codec::Zstd);
        }
        assert!(!is_noise(&random[..1024]) && !is_noise(&[]));
    }

    proptest! {
        #[test]
        fn any_payload_is_decompressed_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            length in 0usize..5000,
        ) {
            let _ = decompress(Codec::Lz4, &bytes, length);
            let _ = decompress(Codec::Zstd, &bytes, length);
        }
    }
}
