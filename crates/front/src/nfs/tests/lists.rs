//! Access control lists by the side protocol, and what they let callers do.

use super::*;
use crate::nfs::answer::lists::{GET, PROGRAM, SET, VERSION};
use rekindle_file::{Acl, tag};

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Calls, and returns the status and the words behind the attributes.
async fn call(
    client: &mut Client,
    procedure: u32,
    handle: &nfs_fh3,
    more: &[u32],
) -> (u32, Vec<u32>) {
    let args = [packed(handle), words(more)].concat();
    let record = client.record(9, (PROGRAM, VERSION, procedure), &args);
    client.send(&record).await;
    let reply = client.reply().await.1.unwrap();
    let found: Vec<u32> =
        reply.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    // Attributes have 21 words.
    let behind = if found[1] == 1 { 2 + 21 } else { 2 };
    (found[0], found[behind..].to_vec())
}

/// A list of a call.
fn list(entries: &[(u16, u32, u16)], bit: u32) -> Vec<u32> {
    let count = entries.len() as u32;
    let entries =
        entries.iter().flat_map(|(tag, id, bits)| [u32::from(*tag) | bit, *id, u32::from(*bits)]);
    [count, count].into_iter().chain(entries).collect()
}

const NAMED: [(u16, u32, u16); 6] = [
    (tag::OWNER, 1000, 6),
    (tag::USER, 1001, 6),
    (tag::GROUP_OF_FILE, 1000, 0),
    (tag::GROUP, 77, 4),
    (tag::MASK, 0, 6),
    (tag::OTHER, 0, 0),
];

#[test]
fn lists_are_shown_and_set() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let file = client.create(&root, "f", 0o640).await;
        let attr = client.attributes(&file).await.unwrap();
        // The mode, with a mask that the protocol wants.
        let of_mode = [
            (tag::OWNER, attr.uid, 6),
            (tag::GROUP_OF_FILE, attr.gid, 4),
            (tag::MASK, 0, 4),
            (tag::OTHER, 0, 0),
        ];
        let both = [vec![5], list(&of_mode, 0), vec![0, 0]].concat();
        assert_eq!(call(&mut client, GET, &file, &[5]).await, (0, both));
        assert_eq!(call(&mut client, GET, &file, &[2]).await, (0, vec![2, 4, 0, 0, 0]));
        assert_eq!(call(&mut client, GET, &file, &[16]).await.0, nfsstat3::NFS3ERR_INVAL as u32);
        // In any order.
        let mut named = NAMED;
        named.reverse();
        let set = [vec![1], list(&named, 0), vec![0, 0]].concat();
        assert_eq!(call(&mut client, SET, &file, &set).await, (0, Vec::new()));
        assert_eq!(client.attributes(&file).await.unwrap().mode, 0o660);
        let mut shown = NAMED;
        (shown[0].1, shown[2].1) = (attr.uid, attr.gid);
        let shown = [vec![1], list(&shown, 0), vec![0, 0]].concat();
        assert_eq!(call(&mut client, GET, &file, &[1]).await, (0, shown));
        // What says a mode is one: the mask goes.
        let set = [vec![1], list(&of_mode, 0), vec![0, 0]].concat();
        assert_eq!(call(&mut client, SET, &file, &set).await.0, 0);
        let inode = Handle::decode(&file.data, &Seal::with_secret(5)).unwrap().ino;
        let rights = site.files("one").look(|state| rekindle_file::Sight::rights(state, inode));
        assert!(rights.unwrap().acl.unwrap().is_a_mode());
        // A directory has two.
        let dir = client.make_dir(&root, "d", 0o755).await.unwrap();
        let default = [vec![4], vec![0, 0], list(&NAMED, 0x1000)].concat();
        assert_eq!(call(&mut client, SET, &dir, &default).await.0, 0);
        let (_, found) = call(&mut client, GET, &dir, &[5]).await;
        assert_eq!((found[1], found.len()), (4, 1 + 2 + 12 + 2 + 18));
        assert_eq!(found[15..18], [6, 6, 0x1001]);
        assert_eq!(client.attributes(&dir).await.unwrap().mode, 0o755);
        assert_eq!(call(&mut client, SET, &dir, &[4, 0, 0, 0, 0]).await.0, 0);
        assert_eq!(call(&mut client, GET, &dir, &[12]).await.1, [12, 0, 0, 0, 0]);
        let refused = call(&mut client, SET, &file, &default).await.0;
        assert_eq!(refused, nfsstat3::NFS3ERR_ACCES as u32);
    });
}

#[test]
fn only_an_owner_sets_a_list_and_no_list_without_sense_is_set() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let file = client.create(&root, "f", 0o2640).await;
        let set = [vec![1], list(&NAMED, 0), vec![0, 0]].concat();
        let with = |change: &dyn Fn(&mut Vec<u32>)| {
            let mut set = set.clone();
            change(&mut set);
            set
        };
        let invalid = nfsstat3::NFS3ERR_INVAL as u32;
        for (name, set) in [
            ("no mask", [vec![1], list(&NAMED[..4], 0), vec![0, 0]].concat()),
            ("only a count", vec![1, 6, 0, 0, 0]),
            ("a bit", with(&|words| words[5] = 9)),
            ("a tag", with(&|words| words[3] = 64)),
            ("a list that there is not", with(&|words| words[0] = 32)),
        ] {
            assert_eq!(call(&mut client, SET, &file, &set).await.0, invalid, "{name}");
        }
        for args in [&[1, 6, 6, 1][..], &[1, 1 << 20, 1 << 20], &[]] {
            let args = [packed(&file), words(args)].concat();
            let record = client.record(9, (PROGRAM, VERSION, SET), &args);
            client.send(&record).await;
            assert_eq!(client.reply().await.1.unwrap_err(), "GARBAGE_ARGS");
        }
        let acl = Acl::new(&NAMED.map(|(tag, id, bits)| (tag, bits, id))).unwrap();
        assert_eq!(acl.mode(), 0o660);
        client.caller = Some(user(1001));
        assert_eq!(call(&mut client, SET, &file, &set).await.0, nfsstat3::NFS3ERR_PERM as u32);
    });
}

#[test]
fn a_list_lets_callers_do_what_the_mode_does_not() {
    served(async |site| {
        let mut client = site.connect();
        let dir = client.make_dir(&root_of("one"), "d", 0o777).await.unwrap();
        client.caller = Some(user(1000));
        let file = client.create(&dir, "f", 0o2640).await;
        let set = [vec![1], list(&NAMED, 0), vec![0, 0]].concat();
        client.caller = Some(user(0));
        let attributes = sattr3 { gid: Nfs3Option::Some(5), ..mode(0o2640) };
        let args = nfs3::SETATTR3args {
            object: file.clone(),
            new_attributes: attributes,
            guard: Nfs3Option::None,
        };
        let done_so: nfs3::SETATTR3res = client.ask(NFS_PROGRAM::NFSPROC3_SETATTR, &args).await;
        done(done_so).unwrap();
        client.caller = Some(user(1000));
        assert_eq!(call(&mut client, SET, &file, &set).await.0, 0);
        // The caller is not in the group of the file.
        assert_eq!(client.attributes(&file).await.unwrap().mode, 0o660);
        let with_group_id = nfs3::SETATTR3args {
            object: file.clone(),
            new_attributes: mode(0o2660),
            guard: Nfs3Option::None,
        };
        client.caller = Some(user(0));
        let done_so: nfs3::SETATTR3res =
            client.ask(NFS_PROGRAM::NFSPROC3_SETATTR, &with_group_id).await;
        done(done_so).unwrap();
        client.caller = Some(user(1000));
        assert_eq!(call(&mut client, SET, &file, &set).await.0, 0);
        assert_eq!(client.attributes(&file).await.unwrap().mode, 0o2660, "it was there");
        for (caller, reads, writes) in [
            (user(1000), true, true),
            (user(1001), true, true),
            (user(77), true, false),
            (user(5), false, false),
            (user(1002), false, false),
        ] {
            let uid = caller.uid;
            client.caller = Some(caller);
            let read = client.read(&file, 0, 9).await.map(drop);
            let wrote = client.write(&file, 0, b"x", stable_how::UNSTABLE).await.map(drop);
            let wanted = |may| if may { Ok(()) } else { Err(nfsstat3::NFS3ERR_ACCES) };
            assert_eq!((read, wrote), (wanted(reads), wanted(writes)), "{uid}");
            let args = nfs3::ACCESS3args { object: file.clone(), access: 0x3f };
            let told: nfs3::ACCESS3res = client.ask(NFS_PROGRAM::NFSPROC3_ACCESS, &args).await;
            let wanted = if reads { nfs3::ACCESS3_READ } else { 0 }
                | if writes { nfs3::ACCESS3_MODIFY | nfs3::ACCESS3_EXTEND } else { 0 };
            assert_eq!(done(told).unwrap().access, wanted, "{uid}");
        }
    });
}
