//! Names, attributes, bytes and the list of exports.

use super::*;

#[test]
fn a_file_is_made_written_read_and_removed() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        caller.done(ops().at(&file).write(&open, 0, b"hello")).await;
        let told = caller.done(ops().at(&file).read(&open, 1, 100)).await;
        assert_eq!(told.data(), (b"ello".to_vec(), true));
        caller.done(ops().at(&file).close(&open)).await;
        let told = caller.done(ops().at(&file).read(&NONE, 0, 2)).await;
        assert_eq!(told.data(), (b"he".to_vec(), false));
        assert_eq!(caller.status(ops().at(&file).read(&open, 0, 2)).await, Status::BAD_STATEID);
        caller.done(ops().root("one").remove("f")).await;
        let gone = caller.status(ops().root("one").look_up("f")).await;
        assert_eq!(gone, Status::NOENT);
        assert_eq!(caller.status(ops().at(&file).attributes(&[1])).await, Status::STALE);
    });
}

#[test]
fn other_minor_versions_are_refused() {
    served(async |site| {
        let mut client = site.connect();
        for minor in [0, 2, u32::MAX] {
            let told = ask(&mut client, minor, &exchange_id("host", 1)).await;
            assert_eq!((told.status, told.results.len()), (Status::MINOR_VERS_MISMATCH, 0));
        }
        assert_eq!(ask(&mut client, 1, &exchange_id("host", 1)).await.status, Status::OK);
    });
}

#[test]
fn the_root_lists_the_exports() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let list = |cookie: u64, bytes: u32| {
            ops().plain(Op::PUTROOTFH).op(Op::READDIR, |out| {
                out.put_u64(cookie);
                out.put_u64(0);
                out.put_u32(bytes);
                out.put_u32(bytes);
                out.put_bitmap(&Bitmap::of(&[1, words::RDATTR_ERROR, 8]));
            })
        };
        let told = caller.done(list(0, 4096)).await;
        let bytes = told.of(Op::READDIR).0.to_vec();
        for name in [&b"\0\0\0\x03one\0"[..], b"\0\0\0\x03two\0"] {
            assert!(bytes.windows(name.len()).any(|window| window == name), "{bytes:?}");
        }
        let attached = site.shelf.attached.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(attached, 0, "no volume came into service for it");
        assert_eq!(caller.status(list(0, 16)).await, Status::TOOSMALL);
        assert_eq!(caller.status(list(1, 4096)).await, Status::BAD_COOKIE);
        assert_eq!(caller.status(ops().root("three")).await, Status::NOENT);
        let up = ops().root("one").plain(Op::LOOKUPP).handle();
        let root = caller.done(ops().plain(Op::PUTROOTFH).handle()).await.handle();
        assert_eq!(caller.done(up).await.handle(), root);
        assert_eq!(
            caller.status(ops().plain(Op::PUTROOTFH).plain(Op::LOOKUPP)).await,
            Status::NOENT
        );
        assert_eq!(caller.status(ops().plain(Op::PUTROOTFH).remove("one")).await, Status::ROFS);
        let make = ops().plain(Op::PUTROOTFH).make("a", RW, 0, "f");
        assert_eq!(caller.status(make).await, Status::ROFS);
        let told = caller.done(ops().at(&root).attributes(&[1, 33])).await;
        assert_eq!(told.of(Op::GETATTR).0[12..], [0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 1, 0o155]);
    });
}

#[test]
fn names_are_made_moved_and_linked() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        made(&mut caller).await;
        let dir = |name: &str| {
            ops().root("one").op(Op::CREATE, |out| {
                out.put_u32(2);
                out.put_opaque(name.as_bytes());
                out.put_bitmap(&Bitmap::of(&[words::MODE]));
                out.put_opaque(&0o755_u32.to_be_bytes());
            })
        };
        let made = caller.done(dir("d").handle()).await;
        assert_eq!(caller.status(dir("d")).await, Status::EXIST);
        assert_eq!(caller.status(dir("..")).await, Status::BADNAME);
        let both = |out: &mut Vec<u8>, from: &str, to: &str| {
            out.put_opaque(from.as_bytes());
            out.put_opaque(to.as_bytes());
        };
        let rename = ops().root("one").plain(Op::SAVEFH).at(&made.handle());
        caller.done(rename.op(Op::RENAME, |out| both(out, "f", "g"))).await;
        let link = ops().root("one").look_up("d").look_up("g").plain(Op::SAVEFH).root("one");
        caller.done(link.op(Op::LINK, |out| out.put_opaque(b"h"))).await;
        let told = caller.done(ops().root("one").look_up("h").attributes(&[35])).await;
        assert_eq!(told.of(Op::GETATTR).0[16..], 2_u32.to_be_bytes());
        let beyond = ops().root("one").plain(Op::SAVEFH).root("two");
        let beyond = beyond.op(Op::RENAME, |out| both(out, "h", "h"));
        assert_eq!(caller.status(beyond).await.0, 18, "XDEV");
        assert_eq!(caller.status(ops().root("one").remove("d")).await, Status::NOTEMPTY);
        let link = ops().root("one").op(Op::CREATE, |out| {
            out.put_u32(5);
            out.put_opaque(b"target");
            out.put_opaque(b"s");
            out.put_bitmap(&Bitmap::default());
            out.put_opaque(b"");
        });
        let told = caller.done(link.plain(Op::READLINK)).await;
        assert_eq!(told.of(Op::READLINK).opaque(99), Ok(&b"target"[..]));
        assert_eq!(caller.status(ops().root("one").open("a", RW, "s")).await, Status::SYMLINK);
        assert_eq!(caller.status(ops().root("one").open("a", RW, "d")).await, Status::ISDIR);
    });
}

#[test]
fn attributes_are_set_and_compared() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        caller.done(ops().at(&file).write(&open, 0, b"hello")).await;
        let set = |stateid: &Stateid, which: &[u32], values: &[u8]| {
            let (stateid, which, values) = (*stateid, Bitmap::of(which), values.to_vec());
            ops().at(&file).op(Op::SETATTR, move |out| {
                out.put_stateid(&stateid);
                out.put_bitmap(&which);
                out.put_opaque(&values);
            })
        };
        caller.done(set(&open, &[words::SIZE], &2_u64.to_be_bytes())).await;
        caller.done(set(&NONE, &[words::MODE], &0o600_u32.to_be_bytes())).await;
        let size = 2_u64.to_be_bytes();
        let told = caller.done(ops().at(&file).attributes(&[words::SIZE, words::MODE])).await;
        let values = [&size[..], &0o600_u32.to_be_bytes()].concat();
        assert_eq!(told.of(Op::GETATTR).0[12 + 4..], values);
        let told = caller.ask(set(&NONE, &[14], b"")).await;
        assert_eq!(told.status, Status::ATTRNOTSUPP);
        let verify = |op: Op, size: u64| {
            ops().at(&file).op(op, |out| {
                out.put_bitmap(&Bitmap::of(&[words::SIZE]));
                out.put_opaque(&size.to_be_bytes());
            })
        };
        assert_eq!(caller.status(verify(Op::VERIFY, 2)).await, Status::OK);
        assert_eq!(caller.status(verify(Op::VERIFY, 3)).await, Status::NOT_SAME);
        assert_eq!(caller.status(verify(Op::NVERIFY, 2)).await, Status::SAME);
        assert_eq!(caller.status(verify(Op::NVERIFY, 3)).await, Status::OK);
    });
}

#[test]
fn creates_are_guarded_or_exclusive_or_neither() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        made(&mut caller).await;
        let make = |how| ops().root("one").make("a", RW, how, "f");
        assert_eq!(caller.status(make(0)).await, Status::OK);
        assert_eq!(caller.status(make(1)).await, Status::EXIST);
        let exclusive = |verifier: u8| {
            ops().root("one").open_as("a", RW, move |out| {
                out.put_u32(1);
                out.put_u32(3);
                out.put_plain(&[verifier; 8]);
                out.put_bitmap(&Bitmap::of(&[words::MODE]));
                out.put_opaque(&0o640_u32.to_be_bytes());
                out.put_u32(0);
                out.put_opaque(b"x");
            })
        };
        caller.done(exclusive(1)).await;
        caller.done(exclusive(1)).await;
        assert_eq!(caller.status(exclusive(2)).await, Status::EXIST);
        let told = caller.done(ops().root("one").look_up("x").attributes(&[words::MODE])).await;
        assert_eq!(told.of(Op::GETATTR).0[16..], 0o640_u32.to_be_bytes());
    });
}

#[test]
fn read_only_volumes_are_only_read() {
    let settings = Settings { read_only: vec!["one".to_owned()], ..Settings::default() };
    with_site(settings, async |site| {
        let mut caller = Caller::new(site, "host").await;
        let make = ops().root("one").make("a", RW, 0, "f");
        assert_eq!(caller.status(make).await, Status::ROFS);
        assert_eq!(caller.status(ops().root("one").remove("f")).await, Status::ROFS);
        let access = ops().root("one").op(Op::ACCESS, |out| out.put_u32(0x3f));
        let told = caller.done(access).await;
        assert_eq!(told.of(Op::ACCESS).0[4..], 3_u32.to_be_bytes(), "to read and to look up");
    });
}
