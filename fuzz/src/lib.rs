//! One function for each kind of bytes from outside. Each must return whatever the bytes are: no
//! panic, no endless loop, no allocation that the length of the input does not pay for. Where there
//! is only one encoding, decoded bytes must encode to the same bytes again.

use rekindle_front::nbd::wire;

/// A client before transmission: flags, then options.
pub fn nbd_handshake(data: &[u8]) {
    let _ = wire::client_flags(data);
    if let Ok(Some(header)) = wire::option_header(data) {
        let _ = format!("{header:?}");
    }
    if let Some(query) = wire::export_query(data) {
        for item in 0..8 {
            let _ = query.wants(item);
        }
    }
    if let Some(query) = wire::meta_query(data) {
        assert!(query.iter().map(str::len).sum::<usize>() <= data.len());
    }
    if let Some(name) = wire::export_name(data) {
        assert_eq!(name.as_bytes(), data);
    }
}

/// A client in transmission.
pub fn nbd_request(data: &[u8]) {
    if let Ok(Some(request)) = wire::request(data) {
        let _ = request.payload_bytes();
        let _ = request.has_only(3);
    }
    // The other direction, as a host reads it that forwards requests.
    let _ = wire::reply_head(data);
    let _ = wire::error_payload(data);
    if let Some(spans) = wire::status_payload(data) {
        assert!(spans.len() <= data.len() / 8, "more spans than bytes");
    }
}

/// A request of the kernel, and the frame that a mount sends it in.
pub fn fuse_request(data: &[u8]) {
    use rekindle_front::fuse::frame::{FRAME_BYTES, Frame, HELLO_BYTES, Hello};
    use rekindle_front::fuse::wire;
    if let Some((head, _)) = data.split_first_chunk::<HELLO_BYTES>() {
        let _ = Hello::decode(*head);
    }
    if let Some((head, _)) = data.split_first_chunk::<FRAME_BYTES>() {
        let _ = Frame::decode(*head);
    }
    let _ = wire::header(data);
    // The first byte is the opcode, so that each is reached soon.
    if let Some((&opcode, body)) = data.split_first() {
        let _ = wire::op(u32::from(opcode), body);
    }
}

/// A pack and its parts.
pub fn pack(data: &[u8]) {
    let _ = rekindle_content::format::pack::decode(data);
    let _ = rekindle_content::format::parity::decode(data);
    if let Some(layout) = rekindle_content::pack::parity::find(None, data) {
        let healed = rekindle_content::pack::parity::heal(data, &layout);
        assert_eq!(healed.covered.len(), layout.covered, "bytes from nowhere");
        assert!(layout.covered <= data.len());
    }
    let found = rekindle_content::pack::scan(None, data);
    assert!(found.len() <= data.len(), "more blobs than bytes");
    if let Ok(entries) = rekindle_content::format::footer::decode(data) {
        assert!(entries.len() <= data.len(), "more entries than bytes");
    }
}

/// A blob header, and the tree node in it; the header of a bundle.
pub fn blob_and_node(data: &[u8]) {
    let _ = rekindle_content::format::blob::decode(data);
    if let Ok(bundle) = rekindle_content::format::bundle::decode(data) {
        assert!(bundle.head() <= data.len(), "lengths from nowhere");
        let mut again = vec![0; bundle.head()];
        rekindle_content::format::bundle::encode(&bundle, &mut again);
        assert!(again[12..] == data[12..again.len()], "other lengths");
    }
    if let Some((&children, body)) = data.split_first() {
        let _ = rekindle_content::format::node::decode(body, u32::from(children));
    }
}

/// A note on chunks that moved.
pub fn moved_note(data: &[u8]) {
    let _ = rekindle_content::format::moved::decode(data);
}

/// A pointer as a record has it.
pub fn pointer_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(pointer) = text.parse::<rekindle_content::Pointer>() {
        assert_eq!(pointer.to_string().parse::<rekindle_content::Pointer>().ok(), Some(pointer));
    }
}

/// A record of the datastore.
pub fn record(data: &[u8]) {
    let _ = rekindle_datastore::record::decode("volumes/fuzz", data);
}

/// A segment file of the log.
pub fn segment(data: &[u8]) {
    if let Ok(found) = rekindle_log::inspect::segment(data) {
        let _ = format!("{found:?}").len();
    }
}

/// A frame between a peer and a holder of copies.
pub fn peer(data: &[u8]) {
    use rekindle_cluster::wire::{HEADER_BYTES, Header, Message};
    let Some((head, payload)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::decode(head) else { return };
    assert_eq!(header.encode(), *head);
    let Some(payload) = payload.get(..header.length as usize) else { return };
    if let Ok(message) = Message::decode(&header, payload) {
        let mut again = Vec::new();
        message.encode(header.number, &mut again);
        assert_eq!(again, data[..again.len()]);
    }
}

/// The record of a sync of copies that ends.
pub fn copies(data: &[u8]) {
    if let Ok(ending) = rekindle_cluster::Ending::decode(data) {
        assert_eq!(ending.encode(), data);
    }
}

/// A warm arena, and its frames: the part is whatever follows the header page.
pub fn warm_arena(data: &[u8]) {
    let _ = rekindle_warm::inspect::arena(data);
    if let Ok(Some(part)) = rekindle_warm::inspect::frames(data) {
        let found = part.count(data.get(4096..).unwrap_or_default());
        assert!(found.damaged <= found.frames.iter().sum());
    }
}

/// Words that users type: sizes, names, addresses, store URLs, fault plans, identifiers.
pub fn words(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(bytes) = rekindle_base::units::parse_size(text) {
        let _ = rekindle_base::units::format_size(bytes);
    }
    if rekindle_base::names::check(text).is_ok() {
        assert_eq!(
            rekindle_datastore::name_of_key(&rekindle_datastore::name_key(text)).as_deref(),
            Some(text)
        );
    }
    let _ = text.parse::<rekindle_base::VolumeId>();
    let _ = text.parse::<rekindle_env::Address>();
    let _ = text.parse::<rekindle_datastore::Url>();
    let _ = text.parse::<rekindle_datastore::layer::fault::Plan>();
}
