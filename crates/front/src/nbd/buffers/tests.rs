//! Bytes go through in order whatever the pieces, and memory is given back.

use super::*;
use proptest::prelude::*;
use std::task::Waker;

fn fill(input: &mut Input, mut stream: &[u8]) -> usize {
    match input.poll_fill(&mut Context::from_waker(Waker::noop()), &mut stream) {
        Poll::Ready(Ok(count)) => count,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn input_keeps_order_across_growth_and_skips(
        steps in proptest::collection::vec((1usize..700_000, 0usize..5), 1..12)
    ) {
        let mut input = Input::new();
        let mut next = 0u32;
        for (wanted, skipped) in steps {
            let wanted = wanted.div_ceil(4) * 4;
            while input.unread().len() < wanted {
                input.want(wanted);
                let words: Vec<u8> = (next..next + 50_000).flat_map(u32::to_be_bytes).collect();
                let count = fill(&mut input, &words);
                prop_assert!(count > 0 && count.is_multiple_of(4), "{count}");
                next += u32::try_from(count / 4).unwrap();
            }
            let first = u32::from_be_bytes(input.unread()[..4].try_into().unwrap());
            let words = input.unread().chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
            prop_assert!(words.eq(first..next));
            input.consume(wanted);
            input.skip(skipped as u64 * 4);
        }
    }
}

#[test]
fn a_long_request_is_read_to_its_end_and_no_further() {
    let mut input = Input::new();
    let stream = vec![1; 4 << 20];
    input.want(1 << 20);
    fill(&mut input, &stream);
    assert_eq!(input.unread().len(), 1 << 20);
    input.consume(1 << 20);
    assert!(input.bytes.len() >= 1 << 20, "kept for the next");
    input.want(16 << 20);
    fill(&mut input, &stream);
    assert!(input.bytes.len() > BUFFER_BYTES_KEPT);
    input.consume(usize::MAX >> 1);
    fill(&mut input, &stream);
    assert_eq!(input.bytes.len(), BUFFER_BYTES, "given back");
}

#[test]
fn output_is_sent_in_order_and_memory_is_given_back() {
    let mut output = Output::new();
    let mut stream = Vec::new();
    let mut expected = Vec::new();
    for (index, length) in [10, 300_000, 5, 6 << 20, 100].into_iter().enumerate() {
        let data = vec![u8::try_from(index).unwrap(); length];
        output.put(&data);
        let _uncommitted = output.space(1000);
        expected.extend(data);
        if index % 2 == 1 {
            let sent =
                output.poll_send(&mut Context::from_waker(Waker::noop()), &mut stream).unwrap();
            assert!(sent > 0 && output.is_empty());
            assert!(output.bytes.len() <= BUFFER_BYTES_KEPT);
        }
    }
    output.poll_send(&mut Context::from_waker(Waker::noop()), &mut stream).unwrap();
    assert!(stream == expected);
}
