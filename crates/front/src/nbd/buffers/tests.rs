//! Bytes pass in order, in pieces of any size, and memory is given back.

use super::*;
use futures_util::FutureExt;
use proptest::prelude::*;
use std::task::Waker;

fn lease(bytes: usize) -> Lease {
    Budget::new(bytes).lease(bytes).now_or_never().expect("all of it")
}

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
                if !input.holds(wanted) {
                    input.grow(lease(Input::room(wanted)));
                }
                let words: Vec<u8> = (next..next + 50_000).flat_map(u32::to_be_bytes).collect();
                let count = fill(&mut input, &words);
                prop_assert!(count > 0 && count.is_multiple_of(4), "{count}");
                next += u32::try_from(count / 4).unwrap();
            }
            let first = u32::from_be_bytes(input.unread()[..4].try_into().unwrap());
            let words = input.unread().chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
            prop_assert!(words.eq(first..next));
            input.consume(wanted);
            input.settle(skipped % 2 == 0);
            input.skip(skipped as u64 * 4);
        }
    }
}

#[test]
fn a_long_request_is_read_to_its_end_and_no_further() {
    let budget = Budget::new(64 << 20);
    let lease = |bytes| budget.lease(bytes).now_or_never().expect("there is enough");
    let mut input = Input::new();
    let stream = vec![1; 4 << 20];
    for is_kept in [true, false] {
        input.want(1 << 20);
        assert!(!input.holds(1 << 20) && !input.is_large());
        input.grow(lease(Input::room(1 << 20)));
        fill(&mut input, &stream);
        assert_eq!(input.unread().len(), 1 << 20);
        input.consume(1 << 20);
        input.settle(is_kept);
        assert_eq!(input.is_large(), is_kept, "kept for the next one, unless others want it");
        input.relax(false);
        assert_eq!((input.bytes.len(), budget.used()), (BUFFER_BYTES, 0));
    }
    input.want(16 << 20);
    input.grow(lease(16 << 20));
    fill(&mut input, &stream);
    assert!(input.bytes.len() > BUFFER_BYTES_KEPT);
    input.relax(false);
    assert!(input.is_large(), "not in the middle of a request");
    input.consume(usize::MAX >> 1);
    input.settle(true);
    assert_eq!((input.bytes.len(), budget.used()), (BUFFER_BYTES, 0), "given back");
}

#[test]
fn a_buffer_whose_request_lives_on_is_given_back_and_its_lease_is_not() {
    let budget = Budget::new(64 << 20);
    let mut input = Input::new();
    input.want(1 << 20);
    input.grow(budget.lease(1 << 20).now_or_never().expect("there is enough"));
    fill(&mut input, &vec![1; 1 << 20]);
    let lease = input.take_lease().expect("leased");
    input.consume(1 << 20);
    input.settle(true);
    assert_eq!((input.bytes.len(), budget.used()), (BUFFER_BYTES, 1 << 20));
    drop(lease);
    assert_eq!(budget.used(), 0);
}

#[test]
fn the_reply_of_a_missed_read_is_sent_out_of_its_own_buffer() {
    let budget = Budget::new(1 << 20);
    let mut output = Output::new();
    output.put(b"before");
    let (reply, short) = (vec![1; 128 << 10], vec![2; COPIED_BYTES_MAX]);
    let buffer = reply.as_ptr();
    output.push_own(reply, budget.try_lease(128 << 10));
    output.push_own(short, budget.try_lease(COPIED_BYTES_MAX));
    assert!(std::ptr::eq(output.pieces[1].bytes().as_ptr(), buffer), "not copied");
    assert_eq!((output.pieces.len(), budget.used()), (2, 128 << 10));
    assert!(output.has_leases());
    let mut stream = Vec::new();
    send(&mut output, &mut stream);
    assert!(stream.starts_with(b"before\x01") && stream.ends_with(&[2; 9]));
    assert_eq!(stream.len(), 6 + (128 << 10) + COPIED_BYTES_MAX);
    assert_eq!((budget.used(), output.has_leases()), (0, false));
    output.put(&vec![3; 200 << 10]);
    output.push_own(vec![4; 100 << 10], None);
    assert!(output.pieces.is_empty(), "to keep this buffer, more bytes would be copied");
}

fn send(output: &mut Output, stream: &mut Vec<u8>) -> usize {
    output.poll_send(&mut Context::from_waker(Waker::noop()), stream).unwrap()
}

#[test]
fn output_is_sent_in_order_and_memory_is_given_back() {
    let budget = Budget::new(64 << 20);
    let mut output = Output::new();
    let mut stream = Vec::new();
    let mut expected = Vec::new();
    for (index, length) in [10, 300_000, 5, 6 << 20, 100, 1 << 20, 7].into_iter().enumerate() {
        let byte = u8::try_from(index).unwrap();
        if length > BUFFER_BYTES {
            let large = Large::new(budget.clone(), length).now_or_never();
            let mut large = large.expect("there is enough");
            large.bytes[..length].fill(byte);
            output.push(large);
        } else {
            output.put(&vec![byte; length]);
        }
        let _uncommitted = output.space(1000);
        expected.extend(vec![byte; length]);
        if index % 3 == 2 {
            assert!(send(&mut output, &mut stream) > 0 && output.is_empty());
        }
    }
    send(&mut output, &mut stream);
    assert!(stream == expected);
    assert!(budget.used() <= BUFFER_BYTES_KEPT, "one buffer at most is kept for the next reply");
    let spare = output.spare().take(1000).expect("the last one");
    assert_eq!(spare.length, 1000);
    drop(spare);
    output.relax(true);
    assert_eq!((budget.used(), output.bytes.len()), (0, BUFFER_BYTES));
}

/// A stream that takes all bytes, and passes them on when it is flushed; the first flush waits.
#[derive(Default)]
struct Encrypted {
    taken: Vec<u8>,
    sent: Vec<u8>,
    flushes: usize,
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.taken.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes += 1;
        if self.flushes == 1 {
            return Poll::Pending;
        }
        let taken = std::mem::take(&mut self.taken);
        self.sent.extend_from_slice(&taken);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn what_a_stream_holds_back_is_flushed_and_counts_as_unsent_until_then() {
    let (mut output, mut stream) = (Output::new(), Encrypted::default());
    let context = &mut Context::from_waker(Waker::noop());
    output.put(b"reply");
    assert_eq!(output.poll_send(context, &mut stream).unwrap(), 5);
    assert!(!output.is_empty() && stream.sent.is_empty(), "the stream has it still");
    assert_eq!(output.poll_send(context, &mut stream).unwrap(), 0);
    assert!(output.is_empty());
    assert_eq!(stream.sent, b"reply");
    output.poll_send(context, &mut stream).unwrap();
    assert_eq!(stream.flushes, 2, "nothing more is held back");
}
