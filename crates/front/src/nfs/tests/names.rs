//! Calls about names: they are judged in the turn of the change.

use super::*;
use nfs3_types::nfs3::{
    createhow3, createverf3, devicedata3, entry3, filename3, ftype3, mknoddata3, nfspath3,
    specdata3, symlinkdata3,
};

async fn rename(
    client: &mut Client,
    from: (&nfs_fh3, &str),
    to: (&nfs_fh3, &str),
) -> Result<nfs3::RENAME3resok, nfsstat3> {
    let args = nfs3::RENAME3args { from: at(from.0, from.1), to: at(to.0, to.1) };
    done(client.ask::<nfs3::RENAME3res>(NFS_PROGRAM::NFSPROC3_RENAME, &args).await)
}

async fn remove_dir(client: &mut Client, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
    let args = nfs3::RMDIR3args { object: at(dir, name) };
    done(client.ask::<nfs3::RMDIR3res>(NFS_PROGRAM::NFSPROC3_RMDIR, &args).await).map(drop)
}

async fn create(
    client: &mut Client,
    name: &str,
    how: createhow3,
) -> Result<nfs3::CREATE3resok, nfsstat3> {
    let args = nfs3::CREATE3args { where_: at(&root_of("one"), name), how };
    done(client.ask::<nfs3::CREATE3res>(NFS_PROGRAM::NFSPROC3_CREATE, &args).await)
}

#[test]
fn names_are_made_found_moved_and_removed() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let dir = client.make_dir(&root, "d", 0o755).await.unwrap();
        let file = client.create(&root, "f", 0o644).await;
        assert_eq!(client.look_up(&root, "f").await.unwrap(), file);
        assert_eq!(client.look_up(&dir, "..").await.unwrap(), root);
        assert_eq!(client.look_up(&dir, ".").await.unwrap(), dir);
        let link = nfs3::LINK3args { file: file.clone(), link: at(&dir, "g") };
        let linked: nfs3::LINK3res = client.ask(NFS_PROGRAM::NFSPROC3_LINK, &link).await;
        assert!(linked.unwrap().linkdir_wcc.before.is_some());
        assert_eq!(client.attributes(&file).await.unwrap().nlink, 2);
        let moved = rename(&mut client, (&root, "f"), (&dir, "h")).await.unwrap();
        assert!(moved.fromdir_wcc.after.is_some() && moved.todir_wcc.before.is_some());
        assert_eq!(client.look_up(&root, "f").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
        assert_eq!(client.look_up(&dir, "h").await.unwrap(), file);
        let full = remove_dir(&mut client, &root, "d").await.unwrap_err();
        assert_eq!(full, nfsstat3::NFS3ERR_NOTEMPTY);
        for name in ["g", "h"] {
            client.remove(&dir, name).await.unwrap();
        }
        assert_eq!(client.remove(&dir, "h").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
        assert_eq!(client.remove(&root, "d").await.unwrap_err(), nfsstat3::NFS3ERR_ISDIR);
        remove_dir(&mut client, &root, "d").await.unwrap();
    });
}

#[test]
fn every_type_is_made() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let target = nfspath3(Opaque::borrowed(b"some/where"));
        let symlink = symlinkdata3 { symlink_attributes: mode(0), symlink_data: target };
        let args = nfs3::SYMLINK3args { where_: at(&root, "s"), symlink };
        let made: nfs3::SYMLINK3res = client.ask(NFS_PROGRAM::NFSPROC3_SYMLINK, &args).await;
        let link = made.unwrap().obj.unwrap();
        let args = nfs3::READLINK3args { symlink: link.clone() };
        let heard = client.heard(nfs3::PROGRAM, 5, &packed(&args)).await.unwrap();
        let read: nfs3::READLINK3res<'static> = whole(&heard);
        assert_eq!(read.unwrap().data.0.to_vec(), b"some/where");
        let device = || devicedata3 {
            dev_attributes: mode(0o600),
            spec: specdata3 { specdata1: 4, specdata2: 300 },
        };
        for (name, what, kind) in [
            ("c", mknoddata3::NF3CHR(device()), ftype3::NF3CHR),
            ("b", mknoddata3::NF3BLK(device()), ftype3::NF3BLK),
            ("p", mknoddata3::NF3FIFO(mode(0o600)), ftype3::NF3FIFO),
            ("k", mknoddata3::NF3SOCK(mode(0o600)), ftype3::NF3SOCK),
        ] {
            let args = nfs3::MKNOD3args { where_: at(&root, name), what };
            let made: nfs3::MKNOD3res = client.ask(NFS_PROGRAM::NFSPROC3_MKNOD, &args).await;
            let made = made.unwrap().obj_attributes.unwrap();
            assert_eq!((made.type_, made.mode), (kind, 0o600));
            if kind == ftype3::NF3CHR {
                assert_eq!((made.rdev.specdata1, made.rdev.specdata2), (4, 300));
            }
        }
        let args = [packed(&at(&root, "x")), packed(&ftype3::NF3REG)].concat();
        let heard = client.heard(nfs3::PROGRAM, 11, &args).await.unwrap();
        assert_eq!(heard[..4], (nfsstat3::NFS3ERR_BADTYPE as u32).to_be_bytes());
        let mut user = site.connect_from(Peer::Here, Some(user(7)));
        client.set(&root, mode(0o777)).await.unwrap();
        let what = mknoddata3::NF3CHR(device());
        let args = nfs3::MKNOD3args { where_: at(&root, "y"), what };
        let made: nfs3::MKNOD3res = user.ask(NFS_PROGRAM::NFSPROC3_MKNOD, &args).await;
        assert_eq!(done(made).unwrap_err(), nfsstat3::NFS3ERR_PERM);
    });
}

#[test]
fn a_file_is_created_in_three_ways() {
    served(async |site| {
        let mut client = site.connect();
        let exists = nfsstat3::NFS3ERR_EXIST;
        let size = |size| sattr3 { size: Nfs3Option::Some(size), ..mode(0o600) };
        let made = create(&mut client, "a", createhow3::UNCHECKED(size(5))).await.unwrap();
        assert_eq!(made.obj_attributes.unwrap().size, 5);
        let file = made.obj.unwrap();
        let again = create(&mut client, "a", createhow3::UNCHECKED(mode(0o777))).await.unwrap();
        let found = again.obj_attributes.unwrap();
        assert_eq!((found.size, found.mode), (5, 0o600), "what exists stays");
        assert_eq!(again.obj.unwrap(), file);
        let again = create(&mut client, "a", createhow3::UNCHECKED(size(0))).await.unwrap();
        assert_eq!(again.obj_attributes.unwrap().size, 0);
        let again = create(&mut client, "a", createhow3::GUARDED(size(0))).await.unwrap_err();
        assert_eq!(again, exists);
        let with = |byte| createhow3::EXCLUSIVE(createverf3([byte; 8]));
        let made = create(&mut client, "b", with(1)).await.unwrap().obj.unwrap();
        // The same client asks again, in another life of the server and by another call.
        site.restart(Settings::default());
        let mut client = site.connect();
        assert_eq!(create(&mut client, "b", with(1)).await.unwrap().obj.unwrap(), made);
        assert_eq!(create(&mut client, "b", with(2)).await.unwrap_err(), exists);
        // It sets the times, and so shows that it knows.
        let times = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
        client.set(&made, times).await.unwrap();
        assert_eq!(create(&mut client, "b", with(1)).await.unwrap_err(), exists);
        client.make_dir(&root_of("one"), "d", 0o755).await.unwrap();
        let dir = create(&mut client, "d", createhow3::UNCHECKED(mode(0))).await.unwrap_err();
        assert_eq!(dir, exists);
    });
}

#[test]
fn names_are_changed_by_those_who_may() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let shared = client.make_dir(&root, "shared", 0o1777).await.unwrap();
        client.create(&shared, "roots", 0o666).await;
        let mut other = site.connect_from(Peer::Here, Some(user(7)));
        let (acces, perm) = (nfsstat3::NFS3ERR_ACCES, nfsstat3::NFS3ERR_PERM);
        assert_eq!(other.make_dir(&root, "x", 0o755).await.unwrap_err(), acces);
        assert_eq!(other.remove(&shared, "roots").await.unwrap_err(), perm);
        let stolen = rename(&mut other, (&shared, "roots"), (&shared, "x")).await;
        assert_eq!(stolen.unwrap_err(), perm);
        let mine = other.create(&shared, "mine", 0o4755).await;
        let found = other.attributes(&mine).await.unwrap();
        assert_eq!((found.uid, found.gid, found.mode), (7, 7, 0o4755));
        other.write(&mine, 0, b"x", stable_how::UNSTABLE).await.unwrap();
        assert_eq!(other.attributes(&mine).await.unwrap().mode, 0o755, "set-user-id goes");
        let given = sattr3 { uid: Nfs3Option::Some(8), ..sattr3::default() };
        assert_eq!(other.set(&mine, given).await.unwrap_err(), perm);
        let taken = rename(&mut other, (&shared, "mine"), (&shared, "roots")).await;
        assert_eq!(taken.unwrap_err(), perm, "what is there belongs to another");
        other.remove(&shared, "mine").await.unwrap();
        let secret = client.make_dir(&root, "secret", 0o700).await.unwrap();
        client.create(&secret, "f", 0o666).await;
        assert_eq!(other.look_up(&secret, "f").await.unwrap_err(), acces);
        assert_eq!(names(&mut other, &secret, 0, 4096).await.unwrap_err(), acces);
    });
}

async fn page(
    client: &mut Client,
    dir: &nfs_fh3,
    cookie: u64,
    count: u32,
) -> Result<(Vec<entry3<'static>>, bool), nfsstat3> {
    let cookieverf = nfs3::cookieverf3([0; 8]);
    let args = nfs3::READDIR3args { dir: dir.clone(), cookie, cookieverf, count };
    let heard = client.heard(nfs3::PROGRAM, 16, &packed(&args)).await.unwrap();
    assert!(heard.len() <= count as usize, "{} bytes for {count}", heard.len());
    let listed: nfs3::READDIR3res<'static> = whole(&heard);
    done(listed).map(|listed| (listed.reply.entries.0, listed.reply.eof))
}

async fn names(
    client: &mut Client,
    dir: &nfs_fh3,
    cookie: u64,
    count: u32,
) -> Result<Vec<String>, nfsstat3> {
    let (mut cookie, mut names) = (cookie, Vec::new());
    loop {
        let (entries, eof) = page(client, dir, cookie, count).await?;
        for entry in entries {
            cookie = entry.cookie;
            names.push(String::from_utf8(entry.name.0.to_vec()).unwrap());
        }
        if eof {
            return Ok(names);
        }
    }
}

#[test]
fn a_listing_goes_on_where_it_ended_whatever_changes() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        for number in 0..50 {
            client.create(&root, &format!("name-{number}"), 0o644).await;
        }
        let all = names(&mut client, &root, 0, 4096).await.unwrap();
        assert_eq!((all.len(), &all[..2]), (52, &[".".to_owned(), "..".to_owned()][..]));
        assert_eq!(names(&mut client, &root, 0, 260).await.unwrap(), all, "in small pieces");
        let (first, eof) = page(&mut client, &root, 0, 500).await.unwrap();
        assert!(!eof && first.len() > 2);
        let last = first.last().unwrap();
        let name = String::from_utf8(last.name.0.to_vec()).unwrap();
        client.remove(&root, &name).await.unwrap();
        client.create(&root, "late", 0o644).await;
        site.restart(Settings::default());
        let mut client = site.connect();
        let rest = names(&mut client, &root, last.cookie, 500).await.unwrap();
        assert_eq!(rest.len(), 52 - first.len() + 1);
        assert_eq!(rest[..rest.len() - 1], all[first.len()..]);
        let small = page(&mut client, &root, 0, 100).await.unwrap_err();
        assert_eq!(small, nfsstat3::NFS3ERR_TOOSMALL);
        let bad = nfsstat3::NFS3ERR_BAD_COOKIE;
        assert_eq!(page(&mut client, &root, u64::MAX, 4096).await.unwrap_err(), bad);
        let (beyond, eof) = page(&mut client, &root, 1 << 62, 4096).await.unwrap();
        assert!(beyond.is_empty() && eof, "a made-up place is a place");
    });
}

#[test]
fn a_listing_with_attributes_has_handles() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let file = client.create(&root, "f", 0o640).await;
        for number in 0..40 {
            client.create(&root, &format!("name-{number}"), 0o644).await;
        }
        let plus = async |client: &mut Client, cookie, dircount, maxcount| {
            let cookieverf = nfs3::cookieverf3([0; 8]);
            let dir = root.clone();
            let args = nfs3::READDIRPLUS3args { dir, cookie, cookieverf, dircount, maxcount };
            let heard = client.heard(nfs3::PROGRAM, 17, &packed(&args)).await.unwrap();
            assert!(heard.len() <= maxcount as usize);
            let listed: nfs3::READDIRPLUS3res<'static> = whole(&heard);
            listed.unwrap().reply
        };
        let listed = plus(&mut client, 0, 8192, 32768).await;
        assert!(listed.eof && listed.entries.0.len() == 43);
        let is_it = |name: &filename3<'_>| name.0.to_vec() == b"f";
        let found = listed.entries.0.iter().find(|entry| is_it(&entry.name)).unwrap();
        let Nfs3Option::Some(handle) = &found.name_handle else { panic!("it has a handle") };
        assert_eq!(handle, &file);
        let Nfs3Option::Some(attributes) = &found.name_attributes else { panic!("it has some") };
        assert_eq!((attributes.mode, attributes.fileid), (0o640, found.fileid));
        for (dircount, maxcount) in [(200, 32768), (8192, 1000)] {
            let listed = plus(&mut client, 0, dircount, maxcount).await;
            assert!(!listed.eof && listed.entries.0.len() > 2 && listed.entries.0.len() < 20);
        }
        // A directory that may be listed and not searched.
        client.set(&root, mode(0o704)).await.unwrap();
        let mut other = site.connect_from(Peer::Here, Some(user(7)));
        let listed = plus(&mut other, 0, 8192, 32768).await;
        let has_handle = |entry: &nfs3::entryplus3<'_>| entry.name_handle.is_some();
        assert!(listed.entries.0.len() == 43 && !listed.entries.0.iter().any(has_handle));
    });
}
