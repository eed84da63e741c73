//! Decoders against all bytes; encoders against the protocol's layout.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = client_flags(&bytes);
        let _ = option_header(&bytes);
        let _ = request(&bytes);
        let _ = export_name(&bytes);
        let _ = reply_head(&bytes);
        let _ = error_payload(&bytes);
        let _ = status_payload(&bytes);
        if let Some(query) = export_query(&bytes) {
            let _ = query.wants(info::NAME);
        }
        if let Some(query) = meta_query(&bytes) {
            prop_assert!(query.iter().count() <= query.queries as usize);
        }
    }

    #[test]
    fn a_request_survives_the_wire(
        flags: u16, command: u16, cookie: u64, offset: u64, length in 0..limits::PAYLOAD_BYTES_SKIPPED_MAX,
    ) {
        let bytes = crate::nbd::testing::header(command, flags, cookie, offset, length);
        prop_assert_eq!(request(&bytes), Ok(Some(Request { flags, command, cookie, offset, length })));
        for short in 0..bytes.len() {
            prop_assert_eq!(request(&bytes[..short]), Ok(None));
        }
    }

    #[test]
    fn a_request_is_encoded_as_it_is_read(
        flags: u16, command: u16, cookie: u64, offset: u64, length in 0..limits::PAYLOAD_BYTES_SKIPPED_MAX,
    ) {
        let asked = Request { flags, command, cookie, offset, length };
        prop_assert_eq!(request(&request_head(&asked)), Ok(Some(asked)));
        let by_client = crate::nbd::testing::header(command, flags, cookie, offset, length);
        prop_assert_eq!(&request_head(&asked)[..], &by_client[..]);
    }

    #[test]
    fn replies_survive_the_wire(cookie: u64, errno: u32, kind: u16, length: u32) {
        let simple = simple_reply(cookie, errno);
        prop_assert_eq!(reply_head(&simple), Ok(Some(ReplyHead::Simple { cookie, errno })));
        let chunk = last_chunk(cookie, kind, length);
        prop_assert_eq!(reply_head(&chunk), Ok(Some(ReplyHead::Chunk { cookie, kind, length })));
        for short in 0..chunk.len() {
            prop_assert_eq!(reply_head(&chunk[..short]), Ok(None));
        }
    }

    #[test]
    fn queries_survive_the_wire(name in "[a-zé]{0,20}", items: Vec<u16>, queries: Vec<String>) {
        let data = crate::nbd::testing::query(&name, &items);
        let query = export_query(&data).unwrap();
        prop_assert_eq!(query.name, &name);
        prop_assert!(items.iter().all(|&item| query.wants(item)));
        let texts: Vec<&str> = queries.iter().map(|query| &**query).collect();
        let data = crate::nbd::testing::meta(&name, &texts);
        let query = meta_query(&data).unwrap();
        prop_assert_eq!(query.name, &name);
        prop_assert!(query.iter().eq(texts));
    }

    #[test]
    fn text_is_clipped_between_characters(text: String, bytes_max in 0usize..40) {
        let clipped = clip(&text, bytes_max);
        prop_assert!(clipped.len() <= bytes_max && text.starts_with(clipped));
        prop_assert!(clipped == text || clipped.len() + 4 > bytes_max);
    }
}

#[test]
fn what_can_only_be_garbage_is_called_so() {
    assert_eq!(client_flags(&[0, 0, 0, 4]), Err(Garbage::ClientFlags(4)));
    assert_eq!(request(&[0; 28]), Err(Garbage::Request(0)));
    assert_eq!(
        request(&crate::nbd::testing::header(1, 0, 0, 0, u32::MAX)),
        Err(Garbage::Payload(u32::MAX))
    );
    assert!(request(&crate::nbd::testing::header(0, 0, 0, 0, u32::MAX)).is_ok());
    assert_eq!(option_header(&[0; 16]), Err(Garbage::Option(0)));
    let huge = [&b"IHAVEOPT\0\0\0\x03"[..], &[0xff; 4]].concat();
    assert_eq!(option_header(&huge), Err(Garbage::OptionLength { option: 3, length: u32::MAX }));
}

#[test]
fn heads_are_laid_out_as_the_protocol_says() {
    assert_eq!(simple_reply(0x0102, 5), *b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\x01\x02");
    let chunk = data_chunk(7, 9, 4096);
    assert_eq!(
        chunk[..],
        *b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x10\x08\0\0\0\0\0\0\0\x09"
    );
    assert_eq!(
        option_reply(7, reply::ERR_UNKNOWN, 3)[..],
        *b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x03"
    );
}
