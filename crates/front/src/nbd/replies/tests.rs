//! Block status and errors at their edges.

use super::*;

fn extent(position: u64, span: u64, data: bool) -> Extent {
    Extent { position, span, data }
}

/// Returns the pairs in the reply to a request from 0.
fn told(length: u32, one: bool, extents: &[Extent]) -> Option<Vec<(u64, u64)>> {
    let mut output = Output::new();
    if !block_status(&mut output, (1, 0, length), one, extents) {
        assert!(output.is_empty());
        return None;
    }
    let bytes = output.unsent().to_vec();
    let number = crate::nbd::testing::number;
    assert_eq!(number(&bytes[16..20]) as usize, bytes.len() - 20);
    Some(bytes[24..].chunks(8).map(|pair| (number(&pair[..4]), number(&pair[4..]))).collect())
}

#[test]
fn extents_are_merged_cut_and_counted() {
    let extents =
        [extent(0, 10, true), extent(10, 10, true), extent(20, 5, false), extent(25, 100, true)];
    assert_eq!(told(40, false, &extents), Some(vec![(20, 0), (5, 3), (15, 0)]));
    assert_eq!(told(40, true, &extents), Some(vec![(20, 0)]));
    assert_eq!(told(7, false, &extents), Some(vec![(7, 0)]));
    assert_eq!(told(40, false, &extents[..2]), Some(vec![(20, 0)]), "the rest is asked for again");
    assert_eq!(told(40, false, &[]), None);
    assert_eq!(told(40, false, &[extent(5, 10, true)]), None, "nothing about the first byte");
    let many: Vec<Extent> = (0..100_000).map(|index| extent(index, 1, index % 2 == 0)).collect();
    assert_eq!(told(100_000, false, &many).unwrap().len(), limits::EXTENTS_MAX);
    assert_eq!(
        told(u32::MAX, false, &[extent(0, u64::MAX, false)]),
        Some(vec![(u64::from(u32::MAX), 3)])
    );
}

#[test]
fn only_numbers_of_the_protocol_are_sent() {
    assert_eq!(number(&Error::NotFound("x".into())), errno::EIO);
    assert_eq!(number(&Error::Invalid("x".into())), errno::EINVAL);
    assert_eq!(number(&Error::Stopping), 108);
}

#[test]
fn words_go_only_to_those_who_can_read_them() {
    let mut output = Output::new();
    failed(&mut output, Modes::default(), 1, errno::EIO, "words");
    assert_eq!(output.len(), wire::SIMPLE_REPLY_BYTES);
    let mut output = Output::new();
    let structured = Modes { structured: true, block_status: false };
    failed(&mut output, structured, 1, errno::EIO, &"é".repeat(4000));
    assert_eq!(output.len(), wire::CHUNK_BYTES + 6 + limits::MESSAGE_BYTES_MAX);
}
