//! Frames survive, however they arrive; bad ones are refused.

use super::*;
use proptest::prelude::*;

#[test]
fn the_bytes_are_those_of_the_page() {
    let hello = Hello::new(0x0102_0304_0506_0708, 2);
    assert_eq!(hello.as_bytes()[..8], *b"RKmount\0");
    assert_eq!(hello.as_bytes()[8..16], [1_u32.to_ne_bytes(), 2_u32.to_ne_bytes()].concat());
    assert_eq!(hello.as_bytes()[16..], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    let frame = Frame::new(40, 9, 8, true);
    assert_eq!(frame.as_bytes()[..8], [40_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat());
    assert_eq!(frame.as_bytes()[8..], [9_u64.to_ne_bytes(), 8_u64.to_ne_bytes()].concat());
}

#[test]
fn what_no_mount_sends_is_refused() {
    let hello = |change: fn(&mut Hello)| {
        let mut hello = Hello::new(7, 0);
        change(&mut hello);
        Hello::decode(zerocopy::transmute!(hello))
    };
    assert_eq!(hello(|_| {}), Ok(Hello::new(7, 0)));
    assert_eq!(hello(|hello| hello.magic[0] = b'G'), Err(Garbage::Magic));
    assert_eq!(hello(|hello| hello.version = 2), Err(Garbage::Version(2)));
    let many = limits::OPENS_MAX + 1;
    assert_eq!(hello(|hello| hello.opens = u32::MAX), Err(Garbage::Opens(u32::MAX)));
    assert_eq!(Hello::decode(zerocopy::transmute!(Hello::new(7, many))), Err(Garbage::Opens(many)));
    let frame = |frame: Frame| Frame::decode(zerocopy::transmute!(frame));
    assert_eq!(frame(Frame::new(39, 2, 1, false)), Err(Garbage::Length(39)));
    let long = limits::REQUEST_BYTES_MAX + 1;
    assert_eq!(frame(Frame::new(long, 2, 1, false)), Err(Garbage::Length(long)));
    assert_eq!(frame(Frame::new(40, 1, 2, false)), Err(Garbage::Order(1)));
    let flags = Frame { flags: 2, ..Frame::new(40, 2, 1, false) };
    assert_eq!(frame(flags), Err(Garbage::Flags(2)));
}

proptest! {
    #[test]
    fn frames_come_back_as_they_were(
        length in IN_HEADER_BYTES as u32..=limits::REQUEST_BYTES_MAX,
        oldest in 0..u64::MAX / 2,
        ahead in 0..u64::MAX / 2,
        again: bool,
    ) {
        let frame = Frame::new(length, oldest + ahead, oldest, again);
        let decoded = Frame::decode(zerocopy::transmute!(frame));
        prop_assert_eq!(decoded, Ok(frame));
        prop_assert_eq!(frame.is_again(), again);
    }

    #[test]
    fn any_bytes_are_a_frame_or_garbage(bytes: [u8; FRAME_BYTES]) {
        if let Ok(frame) = Frame::decode(bytes) {
            prop_assert!(frame.length <= limits::REQUEST_BYTES_MAX && frame.oldest <= frame.number);
            prop_assert_eq!(frame.as_bytes(), &bytes[..]);
        }
    }
}
