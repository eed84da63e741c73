//! Access control lists as an attribute, and what they let callers do.

use super::*;
use crate::nfs::handle::Handle;
use crate::nfs::testing::user;
use crate::nfs::v4::codec::Read as _;
use rekindle_file::{Rights, Seal};

/// Rights as tools of Linux write them: `rwatTcCy`, `rwatcy`, `rtcy`, `tcy`.
const OF_OWNER: u32 = 0x16_0187;
const READ_WRITE: u32 = 0x12_0087;
const READ_ONLY: u32 = 0x12_0081;
const NOTHING: u32 = 0x12_0080;
/// Flags: of a group; for new files and directories only.
const OF_GROUP: u32 = 0x40;
const FOR_NEW: u32 = 1 | 2 | 8;

/// `u::rw-,u:1001:rw-,g::---,g:77:r--,m::rw-,o::---`
const NAMED: [AclWords<'static>; 8] = [
    (0, 0, OF_OWNER, "OWNER@"),
    (0, 0, READ_WRITE, "1001"),
    (0, OF_GROUP, NOTHING, "GROUP@"),
    (0, OF_GROUP, READ_ONLY, "77"),
    (0, 0, NOTHING, "EVERYONE@"),
    (0, FOR_NEW, READ_WRITE, "OWNER@"),
    (0, FOR_NEW, READ_WRITE, "1001"),
    (0, FOR_NEW | OF_GROUP, READ_ONLY, "GROUP@"),
];
const OF_FILE: &[AclWords<'static>] = NAMED.split_at(5).0;

fn counted(bytes: &[u8]) -> Vec<u8> {
    let mut counted = Vec::new();
    counted.put_opaque(bytes);
    counted
}

/// The values of attributes.
async fn values(caller: &mut Caller, of: Ops, which: &[u32]) -> Vec<u8> {
    let told = caller.done(of.attributes(which)).await;
    let mut args = told.of(Op::GETATTR);
    args.bitmap().unwrap();
    args.opaque(1 << 20).unwrap().to_vec()
}

async fn mode(caller: &mut Caller, file: &[u8]) -> u32 {
    let told = values(caller, ops().at(file), &[words::MODE]).await;
    u32::from_be_bytes(told.try_into().unwrap())
}

fn rights(site: &Site, handle: &[u8]) -> Rights {
    let inode = Handle::decode(handle, &Seal::with_secret(5)).unwrap().ino;
    site.files("one").look(|state| rekindle_file::Sight::rights(state, inode)).unwrap()
}

/// OPEN or CREATE of a name, with attributes.
fn make(name: &str, how: u32, which: &[u32], values: &[u8]) -> Ops {
    let attributes = |out: &mut Vec<u8>| {
        out.put_bitmap(&Bitmap::of(which));
        out.put_opaque(values);
    };
    ops().root("one").open_as("a", RW, |out| {
        out.put_u32(1);
        out.put_u32(how);
        if how > 1 {
            out.put_plain(&[7; 8]);
        }
        attributes(out);
        out.put_u32(0);
        out.put_opaque(name.as_bytes());
    })
}

fn make_other(name: &str, kind: u32, which: &[u32], values: &[u8]) -> Ops {
    ops().root("one").op(Op::CREATE, |out| {
        out.put_u32(kind);
        if kind == 5 {
            out.put_opaque(b"target");
        }
        out.put_opaque(name.as_bytes());
        out.put_bitmap(&Bitmap::of(which));
        out.put_opaque(values);
    })
}

#[test]
fn lists_are_shown_set_and_compared() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, _) = made(&mut caller).await;
        let of_mode = acl(&[
            (0, 0, OF_OWNER, "OWNER@"),
            (0, OF_GROUP, READ_ONLY, "GROUP@"),
            (0, 0, READ_ONLY, "EVERYONE@"),
        ]);
        let at = || ops().at(&file);
        let told = values(&mut caller, at(), &[words::ACL, 13]).await;
        assert_eq!(told, [&of_mode[..], &[0, 0, 0, 3]].concat());
        let compare = |op: Op, list: &[u8]| {
            at().op(op, |out| {
                out.put_bitmap(&Bitmap::of(&[words::ACL]));
                out.put_opaque(list);
            })
        };
        assert_eq!(caller.status(compare(Op::VERIFY, &of_mode)).await, Status::OK);
        let told = caller.done(at().set(&[words::ACL], &acl(OF_FILE))).await;
        assert_eq!(told.of(Op::SETATTR).bitmap(), Ok(Bitmap::of(&[words::ACL])));
        assert_eq!(mode(&mut caller, &file).await, 0o660);
        let kept = rights(site, &file).acl.expect("more than a mode");
        let bits: Vec<_> = kept.entries().iter().map(|entry| entry.1).collect();
        assert_eq!(bits, [6, 6, 0, 4, 6, 0]);
        let shown = values(&mut caller, at(), &[words::ACL]).await;
        for (op, list, status) in [
            (Op::VERIFY, &shown, Status::OK),
            (Op::NVERIFY, &shown, Status::SAME),
            (Op::VERIFY, &of_mode, Status::NOT_SAME),
            (Op::NVERIFY, &of_mode, Status::OK),
        ] {
            assert_eq!(caller.status(compare(op, list)).await, status);
        }
        // What is shown can be set, and changes nothing.
        caller.done(at().set(&[words::ACL], &shown)).await;
        assert_eq!(rights(site, &file).acl, Some(kept.clone()));
        // A mode that comes with a list counts for what no list says.
        let both = [&acl(OF_FILE)[..], &0o4111_u32.to_be_bytes()].concat();
        let told = caller.done(at().set(&[words::ACL, words::MODE], &both)).await;
        let all = Bitmap::of(&[words::ACL, words::MODE]);
        assert_eq!(told.of(Op::SETATTR).bitmap(), Ok(all));
        assert_eq!(mode(&mut caller, &file).await, 0o4660);
        caller.done(at().set(&[words::ACL], &of_mode)).await;
        assert!(rights(site, &file).acl.is_none_or(|acl| acl.is_a_mode()));
        assert_eq!(mode(&mut caller, &file).await, 0o4644);
        let exports = ops().plain(Op::PUTROOTFH);
        let told = values(&mut caller, exports, &[words::ACL]).await;
        assert_eq!(told[..4], 3_u32.to_be_bytes());
    });
}

#[test]
fn what_is_new_has_the_list_of_its_maker_once() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let which = [words::ACL, words::MODE];
        let values_of =
            |list: &[AclWords<'_>]| [&acl(list)[..], &0o1777_u32.to_be_bytes()].concat();
        let of_dir = make_other("d", 2, &which, &values_of(&NAMED)).handle();
        let dir = caller.done(of_dir).await.handle();
        assert_eq!(mode(&mut caller, &dir).await, 0o1660);
        let shown = values(&mut caller, ops().at(&dir), &[words::ACL]).await;
        assert!(shown.len() > acl(&NAMED).len());
        // A list without entries for what is new takes the other one.
        caller.done(ops().at(&dir).set(&[words::ACL], &acl(OF_FILE))).await;
        let shown = values(&mut caller, ops().at(&dir), &[words::ACL]).await;
        assert_eq!(shown[..4], 5_u32.to_be_bytes());
        let of_file = make("f", 1, &which, &values_of(OF_FILE)).handle();
        let file = caller.done(of_file.clone()).await.handle();
        assert_eq!((mode(&mut caller, &file).await, rights(site, &file).mode), (0o1660, 0o1660));
        // The request comes again after a restart: its list is not set once more.
        let made_so = caller.sequence - 1;
        let closed = acl(&[(0, 0, OF_OWNER, "OWNER@")]);
        let set = caller.in_slot(1, 1, &ops().at(&file).set(&[words::ACL], &closed));
        assert_eq!(ask(&mut caller.client, 1, &set).await.status, Status::OK);
        site.restart(Settings::default());
        caller.reconnect(site);
        let again = caller.in_slot(0, made_so, &of_file);
        let told = ask(&mut caller.client, 1, &again).await;
        assert_eq!((told.status, told.handle()), (Status::OK, file.clone()));
        assert_eq!(rights(site, &file).mode, 0o1600);
        // A file that is there is left alone; its verifier would not say whether its list has come.
        let there = make("f", 0, &which, &values_of(OF_FILE));
        caller.sequence = made_so;
        caller.done(there).await;
        assert_eq!(rights(site, &file).mode, 0o1600);
        let exclusive = make("x", 3, &which, &values_of(OF_FILE));
        assert_eq!(caller.status(exclusive).await, Status::INVAL);
    });
}

#[test]
fn lists_that_cannot_be_had_are_refused_before_anything_is_done() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, _) = made(&mut caller).await;
        let audit = acl(&[(2, 0, READ_ONLY, "OWNER@")]);
        let alice = acl(&[(0, 0, READ_ONLY, "alice@example.org")]);
        let lots = u32::MAX.to_be_bytes();
        for (list, status) in [
            (&audit[..], Status::ATTRNOTSUPP),
            (&alice, Status::BADOWNER),
            (&acl(&NAMED), Status::ATTRNOTSUPP),
            (&lots, Status::BADXDR),
            (&acl(OF_FILE)[..40], Status::BADXDR),
        ] {
            let which = [words::ACL, words::MODE];
            let values = [list, &0o777_u32.to_be_bytes()].concat();
            let told = caller.ask(ops().at(&file).set(&which, &values)).await;
            assert_eq!(told.status, status);
            assert_eq!(told.of(Op::SETATTR).bitmap(), Ok(Bitmap::default()));
            assert_eq!(caller.status(make("g", 0, &which, &values)).await, status);
            assert_eq!(caller.status(ops().root("one").look_up("g")).await, Status::NOENT);
        }
        assert_eq!(mode(&mut caller, &file).await, 0o644);
        // A symlink has none.
        let link = make_other("s", 5, &[words::ACL], &acl(OF_FILE));
        assert_eq!(caller.status(link).await, Status::ATTRNOTSUPP);
        let link = caller.done(make_other("s", 5, &[], &[]).handle()).await.handle();
        let told = caller.done(ops().at(&link).attributes(&[1, words::ACL])).await;
        assert_eq!(told.of(Op::GETATTR).bitmap(), Ok(Bitmap::of(&[1])));
        let set = ops().at(&link).set(&[words::ACL], &acl(OF_FILE));
        assert_eq!(caller.status(set).await, Status::ATTRNOTSUPP);
        let verify = ops().at(&link).op(Op::VERIFY, |out| {
            out.put_bitmap(&Bitmap::of(&[words::ACL]));
            out.put_opaque(&acl(OF_FILE));
        });
        assert_eq!(caller.status(verify).await, Status::ATTRNOTSUPP);
    });
}

#[test]
fn only_an_owner_sets_a_list_and_it_binds_others() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, _) = made(&mut caller).await;
        let owners = [words::MODE, words::OWNER, words::OWNER_GROUP];
        let of_1000 = [&0o2640_u32.to_be_bytes()[..], &counted(b"1000"), &counted(b"5")].concat();
        caller.done(ops().at(&file).set(&owners, &of_1000)).await;
        let set = || ops().at(&file).set(&[words::ACL], &acl(OF_FILE));
        caller.client.caller = Some(user(1001));
        assert_eq!(caller.status(set()).await.0, 1, "PERM");
        let both = [&acl(OF_FILE)[..], &0o777_u32.to_be_bytes()].concat();
        let with_mode = ops().at(&file).set(&[words::ACL, words::MODE], &both);
        assert_eq!(caller.status(with_mode).await.0, 1, "PERM");
        caller.client.caller = Some(user(1000));
        caller.done(set()).await;
        assert_eq!(rights(site, &file).mode, 0o660, "the owner is not in the group");
        for (caller_id, reads, writes) in
            [(1000, true, true), (1001, true, true), (77, true, false), (5, false, false)]
        {
            caller.client.caller = Some(user(caller_id));
            for (access, may) in [(READ, reads), (WRITE, writes)] {
                let owner = format!("{caller_id} {access}");
                let open = ops().root("one").open(&owner, (access.into(), 0), "f");
                let wanted = if may { Status::OK } else { Status::ACCESS };
                assert_eq!(caller.status(open).await, wanted, "{owner}");
            }
        }
    });
}

#[test]
fn lists_take_their_share_of_a_reply() {
    served(async |site| {
        let [call, reply, cached, _, slots] = BOUNDS;
        let bounds = [call, reply, cached, limits::OPS_MAX, slots];
        let mut caller = Caller::bounded(site, "host", 1, bounds).await;
        let (file, open) = made(&mut caller).await;
        let names: Vec<String> = (1000..1500).map(|id| id.to_string()).collect();
        let mut list: Vec<_> = names.iter().map(|name| (0, 0, READ_WRITE, &name[..])).collect();
        list.push((0, OF_GROUP, NOTHING, "GROUP@"));
        caller.done(ops().at(&file).set(&[words::ACL], &acl(&list))).await;
        let shown = values(&mut caller, ops().at(&file), &[words::ACL]).await;
        assert!(shown.len() > 10_000 && shown.len() < limits::ACL_BYTES_MAX);
        // Each counts, also where the data of a READ was counted.
        let of = ops().at(&file).attributes(&[words::ACL]).read(&open, 0, 1 << 20);
        caller.done(of).await;
        let many = (0..40).fold(ops().at(&file), |of, _| of.attributes(&[words::ACL]));
        caller.done(many).await;
        let hidden = ops().at(&file).set(&[], &[]);
        let many = (0..10).fold(hidden, |of, _| of.attributes(&[words::ACL]));
        assert_eq!(caller.status(many).await, Status::REP_TOO_BIG);
        let all = ops().root("one").op(Op::READDIR, |out| {
            [0, 0, 0, 0, 8192, 1 << 16].iter().for_each(|word| out.put_u32(*word));
            out.put_bitmap(&Bitmap::of(&[words::ACL]));
        });
        let told = caller.done(all).await;
        let bytes = told.of(Op::READDIR).0.to_vec();
        assert!(bytes.windows(shown.len()).any(|window| window == shown));
    });
}
