//! Calls of clients that the test plays, over file systems in memory.

mod hostile;
mod lists;
mod names;
mod replay;

use super::settings::{Peer, Settings, Squash};
use super::testing::{Client, Site, at, done, id, packed, root_of, user, whole, with_site};
use super::{handle::Handle, limits};
use crate::target::testing::SOME_BYTES;
use nfs3_types::mount::{self, mountstat3};
use nfs3_types::nfs3::{
    self, NFS_PROGRAM, Nfs3Option, nfs_fh3, nfsstat3, nfstime3, sattr3, set_atime, set_mtime,
    stable_how,
};
use nfs3_types::rpc::RPC_VERSION_2;
use nfs3_types::xdr_codec::Opaque;
use rekindle_file::{FILE_BYTES_MAX, Seal};
use std::sync::atomic::Ordering;

fn served(story: impl AsyncFnOnce(&mut Site)) {
    with_site(Settings::default(), story);
}

fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

#[test]
fn a_volume_is_mounted_under_its_name() {
    served(async |site| {
        let mut client = site.connect();
        let root = client.mount("/one").await.unwrap();
        assert_eq!(root, root_of("one"));
        assert_eq!(client.mount("one/").await.unwrap(), root);
        let dir = client.make_dir(&root, "d", 0o755).await.unwrap();
        assert_eq!(client.mount("/one//d/").await.unwrap(), dir);
        client.create(&root, "f", 0o644).await;
        for (path, status) in [
            ("/", mountstat3::MNT3ERR_NOENT),
            ("/none", mountstat3::MNT3ERR_NOENT),
            ("/one/none", mountstat3::MNT3ERR_NOENT),
            ("/one/f", mountstat3::MNT3ERR_NOTDIR),
        ] {
            let found = client.mount(path).await.unwrap_err();
            assert_eq!(found as u32, status as u32, "{path}");
        }
        let heard = client.heard(mount::PROGRAM, 5, b"").await.unwrap();
        let exports: mount::exports<'static, 'static> = whole(&heard);
        let names: Vec<_> = exports.0.iter().map(|node| node.ex_dir.0.to_vec()).collect();
        assert_eq!(names, [b"/one", b"/two"]);
        for (procedure, reply) in [(0, &b""[..]), (2, &[0; 4]), (3, b""), (4, b"")] {
            let path = packed(&Opaque::borrowed(b"/one"));
            assert_eq!(client.heard(mount::PROGRAM, procedure, &path).await.unwrap(), reply);
        }
    });
}

#[test]
fn what_is_not_served_is_told() {
    served(async |site| {
        let mut client = site.connect();
        let xid = 7;
        for (what, told) in [
            ((100_021, 4, 0), "PROG_UNAVAIL"),
            ((nfs3::PROGRAM, 5, 0), "PROG_MISMATCH { low: 3, high: 4 }"),
            ((nfs3::PROGRAM, 2, 0), "PROG_MISMATCH { low: 3, high: 4 }"),
            ((mount::PROGRAM, 1, 0), "PROG_MISMATCH { low: 3, high: 3 }"),
            ((nfs3::PROGRAM, 3, 22), "PROC_UNAVAIL"),
            ((mount::PROGRAM, 3, 6), "PROC_UNAVAIL"),
            ((nfs3::PROGRAM, 3, 1), "GARBAGE_ARGS"),
        ] {
            let record = client.record(xid, what, b"");
            client.send(&record).await;
            assert_eq!(client.reply().await, (xid, Err(told.to_owned())), "{what:?}");
        }
        let mut record = client.record(xid, (nfs3::PROGRAM, 3, 0), b"");
        assert_eq!(record[8..12], RPC_VERSION_2.to_be_bytes());
        record[11] = 3;
        client.send(&record).await;
        let (_, heard) = client.reply().await;
        assert_eq!(heard.unwrap_err(), "RPC_MISMATCH { low: 2, high: 2 }");
        record[11] = 2;
        // Credentials of another kind, and ones that make no sense.
        for (at, byte) in [(27, 6), (55, 200)] {
            let mut record = record.clone();
            record[at] = byte;
            client.send(&record).await;
            let (_, heard) = client.reply().await;
            assert_eq!(heard.unwrap_err(), "AUTH_BADCRED", "byte {at}");
        }
        client.send(&record).await;
        assert_eq!(client.reply().await, (xid, Ok(Vec::new())));
    });
}

#[test]
fn bytes_are_written_and_read() {
    served(async |site| {
        let mut client = site.connect();
        let file = client.create(&root_of("one"), "f", 0o640).await;
        let wrote = client.write(&file, 3, b"hello", stable_how::UNSTABLE).await.unwrap();
        assert_eq!((wrote.count, wrote.committed), (5, stable_how::UNSTABLE));
        let (before, after) = (wrote.file_wcc.before.unwrap(), wrote.file_wcc.after.unwrap());
        assert_eq!((before.size, after.size), (0, 8));
        assert_eq!(client.read(&file, 0, 100).await.unwrap(), (b"\0\0\0hello".to_vec(), true));
        assert_eq!(client.read(&file, 3, 2).await.unwrap(), (b"he".to_vec(), false));
        assert_eq!(client.read(&file, 8, 2).await.unwrap(), (b"".to_vec(), true));
        let found = client.attributes(&file).await.unwrap();
        assert_eq!((found.mode, found.size, found.nlink), (0o640, 8, 1));
        // There is room for some of it, and the client asks again for the rest.
        let long = vec![1; SOME_BYTES + 1];
        let wrote = client.write(&file, 8, &long, stable_how::UNSTABLE).await.unwrap();
        assert_eq!(wrote.count as usize, SOME_BYTES);
        let syncs = |site: &Site| site.files("one").look(|state| state.syncs);
        let unstable = syncs(site);
        let wrote = client.write(&file, 0, b"x", stable_how::DATA_SYNC).await.unwrap();
        assert_eq!((wrote.committed, syncs(site)), (stable_how::FILE_SYNC, unstable + 1));
        let args = nfs3::COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        let commit = NFS_PROGRAM::NFSPROC3_COMMIT;
        let done: nfs3::COMMIT3res = client.ask(commit, &args).await;
        assert_eq!((done.unwrap().verf, syncs(site)), (wrote.verf, unstable + 2));
        // What was written in another life may be lost: the client is to send it again.
        site.restart(Settings::default());
        let mut client = site.connect();
        let done: nfs3::COMMIT3res = client.ask(commit, &args).await;
        assert_ne!(done.unwrap().verf, wrote.verf);
        let nothing =
            client.write(&file, FILE_BYTES_MAX, b"", stable_how::FILE_SYNC).await.unwrap();
        assert_eq!(nothing.count, 0);
        let beyond = client.write(&file, u64::MAX, b"x", stable_how::FILE_SYNC).await;
        assert_eq!(beyond.unwrap_err(), nfsstat3::NFS3ERR_FBIG);
        let root = root_of("one");
        let dir = client.write(&root, 0, b"x", stable_how::FILE_SYNC).await;
        assert_eq!(dir.unwrap_err(), nfsstat3::NFS3ERR_ISDIR);
        assert_eq!(client.read(&root, 0, 1).await.unwrap_err(), nfsstat3::NFS3ERR_ISDIR);
    });
}

#[test]
fn attributes_are_set_unless_the_guard_says_no() {
    served(async |site| {
        let mut client = site.connect();
        let file = client.create(&root_of("one"), "f", 0o644).await;
        let at = nfstime3 { seconds: 5, nseconds: 6 };
        let all = sattr3 {
            uid: Nfs3Option::Some(7),
            gid: Nfs3Option::Some(8),
            size: Nfs3Option::Some(9),
            atime: set_atime::SET_TO_CLIENT_TIME(at),
            mtime: set_mtime::SET_TO_CLIENT_TIME(at),
            ..mode(0o600)
        };
        client.set(&file, all).await.unwrap();
        let found = client.attributes(&file).await.unwrap();
        assert_eq!((found.mode, found.uid, found.gid, found.size), (0o600, 7, 8, 9));
        assert_eq!((found.atime, found.mtime), (at, at));
        let guarded = async |client: &mut Client, guard, bits| {
            let (object, new_attributes) = (file.clone(), mode(bits));
            let guard = Nfs3Option::Some(guard);
            let args = nfs3::SETATTR3args { object, new_attributes, guard };
            done(client.ask::<nfs3::SETATTR3res>(NFS_PROGRAM::NFSPROC3_SETATTR, &args).await)
        };
        let wrong = nfstime3 { seconds: 1, nseconds: 1 };
        let refused = guarded(&mut client, wrong, 0o777).await.unwrap_err();
        assert_eq!(refused, nfsstat3::NFS3ERR_NOT_SYNC);
        guarded(&mut client, found.ctime, 0o700).await.unwrap();
        assert_eq!(client.attributes(&file).await.unwrap().mode, 0o700);
        let bad = nfstime3 { seconds: 1, nseconds: 1_000_000_000 };
        let bad = sattr3 { mtime: set_mtime::SET_TO_CLIENT_TIME(bad), ..sattr3::default() };
        assert_eq!(client.set(&file, bad).await.unwrap_err(), nfsstat3::NFS3ERR_INVAL);
        let huge = sattr3 { size: Nfs3Option::Some(u64::MAX), ..sattr3::default() };
        assert_eq!(client.set(&file, huge).await.unwrap_err(), nfsstat3::NFS3ERR_FBIG);
    });
}

#[test]
fn a_handle_is_good_where_it_was_given_as_long_as_its_file_exists() {
    served(async |site| {
        let mut client = site.connect();
        let (one, two) = (root_of("one"), root_of("two"));
        let file = client.create(&one, "f", 0o644).await;
        site.restart(Settings::default());
        let mut client = site.connect();
        client.attributes(&file).await.unwrap();
        client.remove(&one, "f").await.unwrap();
        let gone = async |client: &mut Client, handle: &nfs_fh3| {
            client.attributes(handle).await.unwrap_err()
        };
        assert_eq!(gone(&mut client, &file).await, nfsstat3::NFS3ERR_STALE);
        let seal = Seal::with_secret(5);
        let nowhere = Handle { volume: id("three"), ino: 1 }.encode(&seal);
        assert_eq!(gone(&mut client, &nowhere).await, nfsstat3::NFS3ERR_STALE);
        let absent = Handle { volume: id("two"), ino: 1000 }.encode(&seal);
        assert_eq!(gone(&mut client, &absent).await, nfsstat3::NFS3ERR_STALE);
        let attached = site.shelf.attached.load(Ordering::Relaxed);
        let forged = Handle { volume: id("two"), ino: 1 }.encode(&Seal::with_secret(6));
        assert_eq!(gone(&mut client, &forged).await, nfsstat3::NFS3ERR_BADHANDLE);
        for data in [vec![], vec![0; 64]] {
            let handle = nfs_fh3 { data: Opaque::owned(data) };
            assert_eq!(gone(&mut client, &handle).await, nfsstat3::NFS3ERR_BADHANDLE);
        }
        let now = site.shelf.attached.load(Ordering::Relaxed);
        assert_eq!(attached, now, "a forged handle brings no volume into service");
        let renames = nfs3::RENAME3args { from: at(&one, "a"), to: at(&two, "b") };
        let moved: nfs3::RENAME3res = client.ask(NFS_PROGRAM::NFSPROC3_RENAME, &renames).await;
        assert_eq!(done(moved).unwrap_err(), nfsstat3::NFS3ERR_XDEV);
    });
}

#[test]
fn a_volume_without_calls_is_let_go_of() {
    served(async |site| {
        let server = site.server.clone();
        crate::nfs::serve::tend(&server);
        let mut client = site.connect();
        client.attributes(&root_of("one")).await.unwrap();
        site.env.sleep(limits::IDLE / 2).await;
        client.attributes(&root_of("one")).await.unwrap();
        site.env.sleep(limits::IDLE / 2 + limits::IDLE_LOOK).await;
        assert_eq!(site.server.in_use(), 1);
        site.env.sleep(limits::IDLE).await;
        assert_eq!(site.server.in_use(), 0);
        client.attributes(&root_of("one")).await.unwrap();
        assert_eq!(site.shelf.attached.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_volume_that_is_served_no_more_is_looked_for_once_more() {
    use rekindle_file::Error;
    served(async |site| {
        let mut client = site.connect();
        client.attributes(&root_of("one")).await.unwrap();
        let gone = || Error::Volume(rekindle_volume::Error::Stopping);
        site.files("one").look(|state| state.broken = Some(gone()));
        let begun = site.env.now();
        let told = client.attributes(&root_of("one")).await.unwrap_err();
        assert_eq!(told, nfsstat3::NFS3ERR_JUKEBOX, "the client waits, and asks again");
        assert!(site.env.now() - begun >= limits::FORWARD_WAIT_MAX, "it might have come back");
        assert!(site.shelf.attached.load(Ordering::Relaxed) > 2);
        site.shelf.is_stopping.store(true, Ordering::Relaxed);
        let begun = site.env.now();
        let told = client.attributes(&root_of("one")).await.unwrap_err();
        assert_eq!(told, nfsstat3::NFS3ERR_JUKEBOX);
        assert!(site.env.now() - begun < limits::FORWARD_PAUSE, "a stop waits for no owner");
        site.shelf.is_stopping.store(false, Ordering::Relaxed);
        site.files("one").look(|state| state.broken = None);
        client.attributes(&root_of("one")).await.unwrap();
        site.shelf.volumes.lock().remove("one");
        site.server.forget(&root_of("one").data);
        let told = client.attributes(&root_of("one")).await.unwrap_err();
        assert_eq!(told, nfsstat3::NFS3ERR_STALE);
    });
}

#[test]
fn a_volume_tells_of_its_room_and_bounds() {
    served(async |site| {
        let mut client = site.connect();
        let fsroot = root_of("one");
        let args = nfs3::FSSTAT3args { fsroot: fsroot.clone() };
        let space: nfs3::FSSTAT3res = client.ask(NFS_PROGRAM::NFSPROC3_FSSTAT, &args).await;
        let space = space.unwrap();
        assert_eq!((space.tbytes, space.abytes), (1 << 40, (1 << 40) - (1 << 30)));
        let args = nfs3::FSINFO3args { fsroot: fsroot.clone() };
        let info: nfs3::FSINFO3res = client.ask(NFS_PROGRAM::NFSPROC3_FSINFO, &args).await;
        assert_eq!(info.unwrap().wtmax, limits::DATA_BYTES_MAX);
        let args = nfs3::PATHCONF3args { object: fsroot };
        let conf: nfs3::PATHCONF3res = client.ask(NFS_PROGRAM::NFSPROC3_PATHCONF, &args).await;
        assert_eq!(conf.unwrap().name_max, 255);
    });
}

#[test]
fn access_is_what_the_mode_gives() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let file = client.create(&root, "f", 0o754).await;
        let all = 0x3f;
        let access = async |caller, object: &nfs_fh3| {
            let mut client = site.connect_from(Peer::Here, caller);
            let args = nfs3::ACCESS3args { object: object.clone(), access: all };
            let found: nfs3::ACCESS3res = client.ask(NFS_PROGRAM::NFSPROC3_ACCESS, &args).await;
            found.unwrap().access
        };
        let (read, lookup, execute) =
            (nfs3::ACCESS3_READ, nfs3::ACCESS3_LOOKUP, nfs3::ACCESS3_EXECUTE);
        let changes = nfs3::ACCESS3_MODIFY | nfs3::ACCESS3_EXTEND;
        assert_eq!(access(Some(super::testing::root()), &file).await, read | changes | execute);
        assert_eq!(access(Some(user(7)), &file).await, read);
        assert_eq!(access(None, &file).await, read);
        assert_eq!(access(Some(user(7)), &root).await, read | lookup);
        let delete = nfs3::ACCESS3_DELETE;
        let of_root = access(Some(super::testing::root()), &root).await;
        assert_eq!(of_root, read | lookup | changes | delete);
    });
}

#[test]
fn settings_decide_who_comes_in_and_as_whom() {
    let at = |text: &str| Peer::At(text.parse().unwrap());
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let settings = Settings { networks, ..Settings::default() };
    with_site(settings, async |site| {
        let root = Some(super::testing::root());
        let mut near = site.connect_from(at("127.0.0.1:700"), root.clone());
        let dir = near.mount("/one").await.unwrap();
        near.make_dir(&dir, "d", 0o755).await.unwrap();
        let mut far = site.connect_from(at("10.0.0.1:700"), root.clone());
        let refused = far.make_dir(&dir, "e", 0o755).await.unwrap_err();
        assert_eq!(
            refused,
            nfsstat3::NFS3ERR_ACCES,
            "root of another machine is the anonymous user"
        );
        for peer in ["11.0.0.1:700", "10.0.0.1:1024", "127.0.0.1:2000"] {
            let mut stranger = site.connect_from(at(peer), root.clone());
            let path = packed(&Opaque::borrowed(b"/one"));
            let told = stranger.heard(mount::PROGRAM, 1, &path).await;
            assert_eq!(told, Err("AUTH_TOOWEAK".to_owned()), "{peer}");
            let told = stranger.heard(nfs3::PROGRAM, 1, &packed(&dir)).await;
            assert_eq!(told, Err("AUTH_TOOWEAK".to_owned()), "{peer}");
            assert_eq!(stranger.heard(nfs3::PROGRAM, 0, b"").await, Ok(Vec::new()), "a ping");
        }
    });
    let squash = Squash::Root;
    let settings = Settings { read_only: vec!["two".to_owned()], squash, ..Settings::default() };
    with_site(settings, async |site| {
        let mut client = site.connect();
        let refused = client.make_dir(&root_of("one"), "e", 0o755).await.unwrap_err();
        assert_eq!(refused, nfsstat3::NFS3ERR_ACCES);
        let refused = client.make_dir(&root_of("two"), "e", 0o755).await.unwrap_err();
        assert_eq!(refused, nfsstat3::NFS3ERR_ROFS);
        let refused = client.set(&root_of("two"), mode(0o777)).await.unwrap_err();
        assert_eq!(refused, nfsstat3::NFS3ERR_ROFS);
    });
}
