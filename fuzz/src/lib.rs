//! One function for each kind of bytes from outside. Each must return whatever the bytes are: no panic, no endless loop, no
//! allocation that the length of the input does not pay for. What decodes must encode to the same bytes again, where there
//! is only one encoding.

use front::nbd::wire;

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
}

/// A pack and its parts.
pub fn pack(data: &[u8]) {
    let _ = content::format::pack::decode(data);
    let _ = content::format::parity::decode(data);
    if let Some(layout) = content::pack::parity::find(None, data) {
        let healed = content::pack::parity::heal(data, &layout);
        assert_eq!(healed.covered.len(), layout.covered, "bytes from nowhere");
        assert!(layout.covered <= data.len());
    }
    let found = content::pack::scan(None, data);
    assert!(found.len() <= data.len(), "more blobs than bytes");
    if let Ok(entries) = content::format::footer::decode(data) {
        assert!(entries.len() <= data.len(), "more entries than bytes");
    }
}

/// A blob header, and the tree node in it.
pub fn blob_and_node(data: &[u8]) {
    let _ = content::format::blob::decode(data);
    if let Some((&children, body)) = data.split_first() {
        let _ = content::format::node::decode(body, u32::from(children));
    }
}

/// A note on chunks that moved.
pub fn moved_note(data: &[u8]) {
    let _ = content::format::moved::decode(data);
}

/// A pointer as a record has it.
pub fn pointer_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(pointer) = text.parse::<content::Pointer>() {
        assert_eq!(pointer.to_string().parse::<content::Pointer>().ok(), Some(pointer));
    }
}

/// A record of the datastore.
pub fn record(data: &[u8]) {
    let _ = datastore::record::decode("volumes/fuzz", data);
}

/// A segment file of the log.
pub fn segment(data: &[u8]) {
    if let Ok(found) = log::inspect::segment(data) {
        let _ = format!("{found:?}").len();
    }
}

/// A warm arena, and its frames: the part is whatever follows the header page.
pub fn warm_arena(data: &[u8]) {
    let _ = warm::inspect::arena(data);
    if let Ok(Some(part)) = warm::inspect::frames(data) {
        let found = part.count(data.get(4096..).unwrap_or_default());
        assert!(found.damaged <= found.frames.iter().sum());
    }
}

/// What people type: sizes, names, addresses, store URLs, fault plans, identifiers.
pub fn words(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(bytes) = base::units::parse_size(text) {
        let _ = base::units::format_size(bytes);
    }
    if base::names::check(text).is_ok() {
        assert_eq!(datastore::name_of_key(&datastore::name_key(text)).as_deref(), Some(text));
    }
    let _ = text.parse::<base::VolumeId>();
    let _ = text.parse::<env::Address>();
    let _ = text.parse::<datastore::Url>();
    let _ = text.parse::<datastore::layer::fault::Plan>();
}
