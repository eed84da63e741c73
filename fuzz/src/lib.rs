//! One function for each kind of bytes from outside. Each must return whatever the bytes are: no
//! panic, no endless loop, no allocation that the length of the input does not pay for. Where there
//! is only one encoding, decoded bytes must encode to the same bytes again.

use rekindle_env::{BoxFuture, Moment};
use rekindle_front::nbd::wire;
use rekindle_volume::Error;
use std::sync::Arc;

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
    // As a mount sends it on, of which a daemon understands as much.
    let _ = wire::for_any_daemon(data.to_vec().into());
    // An access control list.
    if let Ok(acl) = rekindle_file::Acl::parse(data) {
        assert_eq!(rekindle_file::Acl::parse(&acl.format()), Ok(acl));
    }
}

/// A call of an NFS client, answered by a server without volumes: each procedure reads its
/// arguments, and refuses the handle.
pub fn nfs_call(data: &[u8]) {
    use rekindle_env::sim::{Faults, World};
    use rekindle_front::nfs::{Desk, Peer, Server, Settings, handle, rpc};
    let seal = rekindle_file::Seal::with_secret(1);
    if let Some(handle) = handle::Handle::decode(data, &seal) {
        assert_eq!(handle.encode(&seal).data.to_vec(), data, "a handle has one encoding");
    }
    let _ = rpc::call(data);
    // The first byte is the procedure, so that each is reached soon.
    let Some((&procedure, args)) = data.split_first() else { return };
    let program = [100_003, 100_227, 100_005, 100_005][usize::from(procedure >> 6)];
    let head = [1, 0, 2, program, 3, u32::from(procedure & 0x1f), 0, 0, 0, 0];
    let call = head.iter().flat_map(|word: &u32| word.to_be_bytes()).chain(args.iter().copied());
    let call: Vec<u8> = call.collect();
    let world = World::new(1, Faults::none());
    let server = Server::new(world.env(), Arc::new(NoVolumes), Settings::default());
    let desk = Desk::new(Arc::new(server), Peer::Here);
    let reply = world.block_on(async { desk.answer(&call).await }).unwrap_or_default();
    assert!(reply.len() >= 24 && reply.len() < 1024, "a reply of {} bytes", reply.len());
}

/// A COMPOUND of NFS 4.1, in a session of a server without volumes: each operation reads its
/// arguments, and refuses the place. What is held of a file, and an access control list, out of any
/// bytes.
pub fn nfs4_compound(data: &[u8]) {
    use rekindle_env::sim::{Faults, World};
    use rekindle_front::held::Held;
    use rekindle_front::nfs::v4::acl::{self, Lists};
    use rekindle_front::nfs::v4::clients::SessionId;
    use rekindle_front::nfs::xdr::Args;
    use rekindle_front::nfs::{Desk, Peer, Server, Settings};
    for (is_dir, entries) in [false, true].map(|is_dir| (is_dir, acl::read(&mut Args(data)))) {
        if let Some(lists) = entries.ok().and_then(|entries| Lists::of(&entries, is_dir).ok()) {
            let mut bytes = Vec::new();
            lists.put(&mut bytes, is_dir);
            let again = acl::read(&mut Args(&bytes)).and_then(|all| Ok(Lists::of(&all, is_dir)?));
            assert_eq!(again, Ok(lists), "a list that was taken is shown");
        }
    }
    let volume = rekindle_base::VolumeId([7; 16]);
    if let Ok(held) = Held::decode(Some(data), volume)
        && let Some(bytes) = held.encode(volume)
    {
        assert_eq!(Held::decode(Some(&bytes), volume), Ok(held), "what is held survives");
    }
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    let call = |count: u32, ops: &[u8]| {
        let head = words(&[1, 0, 2, 100_003, 4, 1, 0, 0, 0, 0, 0, 1, count]);
        [&head, ops].concat()
    };
    let world = World::new(1, Faults::none());
    let server = Arc::new(Server::new(world.env(), Arc::new(NoVolumes), Settings::default()));
    let desk = Desk::new(server, Peer::Here);
    let ask = |count, ops: &[u8]| {
        world.block_on(async { desk.answer(&call(count, ops)).await }).unwrap_or_default()
    };
    let told = ask(1, &words(&[42, 0, 0, 0, 0, 0, 0]));
    let channel = [0, 1 << 20, 1 << 20, 4096, 16, 16, 0];
    let client = [44, 48].map(|at: usize| {
        told.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
    });
    let create = [&[43, client[0], client[1], 1, 0][..], &channel, &channel, &[0, 0]].concat();
    let told = ask(1, &words(&create));
    let session: SessionId = told[44..60].try_into().expect("a session was made");
    let sequence = words(&[1, 0, 0, 1, 24]);
    let begin = [&[0, 0, 0, 53][..], &session, &sequence].concat();
    // The first byte is the operation, so that each is reached soon; then any ones follow.
    let Some((&op, rest)) = data.split_first() else { return };
    let ops = [&begin[..], &[0, 0, 0, op & 0x3f], rest].concat();
    let reply = ask(12, &ops);
    assert!(reply.len() >= 24 && reply.len() < 64 << 10, "a reply of {} bytes", reply.len());
    let again = ask(12, &ops);
    assert_eq!(reply.len(), again.len(), "the same request has the same reply");
}

/// A node without file volumes.
struct NoVolumes;

impl rekindle_front::nfs::Exports for NoVolumes {
    type Files = rekindle_file::Files;

    fn seal(&self) -> BoxFuture<'_, Result<rekindle_file::Seal, Error>> {
        Box::pin(async { Ok(rekindle_file::Seal::with_secret(1)) })
    }
    fn host(&self) -> BoxFuture<'_, Result<[u8; 16], Error>> {
        Box::pin(async { Ok([1; 16]) })
    }
    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, Error>> {
        Box::pin(async { Ok(Arc::default()) })
    }
    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Export, Error>> {
        Box::pin(async { Err(Error::NotFound(name.to_owned())) })
    }
    fn find(&self, id: rekindle_base::VolumeId) -> BoxFuture<'_, Result<Export, Error>> {
        Box::pin(async move { Err(Error::NotFound(id.to_string())) })
    }
    fn has_mount_gone(&self, _: rekindle_base::VolumeId, _: u64, _: Moment) -> bool {
        false
    }
    fn remember(&self, _: Vec<u8>) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
    fn remembered(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async { Ok(None) })
    }
    fn is_stopping(&self) -> bool {
        false
    }
    fn way(&self, _: &str, _: &str) -> std::sync::Arc<dyn rekindle_front::nfs::forward::Way> {
        unreachable!("no volume is elsewhere")
    }
}

type Export = rekindle_front::nfs::Export<rekindle_file::Files>;

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

/// A segment file of the log, or the record of its end.
pub fn segment(data: &[u8]) {
    if let Ok(found) = rekindle_log::inspect::segment(data) {
        let _ = format!("{found:?}").len();
    }
    let _ = rekindle_log::inspect::known_end(data);
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
