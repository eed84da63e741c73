//! Access control lists of files and directories. What becomes of them over commits, crashes,
//! power cuts and snapshots is in the model.

use super::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const OWNER: Caller<'static> = Caller { uid: 10, gid: 20, ..CALLER };

/// `u::rwx,u:11:rw-,g::r--,g:30:r-x,m::rwx,o::--x`
fn rich() -> Acl {
    acl(&[(1, 7, 0), (2, 6, 11), (4, 4, 0), (8, 5, 30), (16, 7, 0), (32, 1, 0)])
}

fn acl(entries: &[AclEntry]) -> Acl {
    Acl::new(entries).unwrap()
}

async fn add(
    files: &Files,
    dir: Ino,
    name: &str,
    (kind, mode, umask): (FileType, u16, u16),
) -> Ino {
    let target: &[u8] = if kind == FileType::Symlink { b"t" } else { b"" };
    let node = NewNode { kind, mode, umask, device: 0, target, stamps: None };
    files.create(OWNER, dir, name.as_bytes(), &node).await.unwrap().ino
}

async fn set(files: &Files, ino: Ino, name: &[u8], acl: &Acl) -> Option<Errno> {
    errno(files.set_xattr(OWNER, ino, name, &acl.format(), SetXattr::Any).await)
}

async fn list(files: &Files, ino: Ino, name: &[u8]) -> Option<Acl> {
    match files.xattr(ino, name).await {
        Ok(bytes) => Some(Acl::parse(&bytes).unwrap()),
        Err(error) => {
            assert_eq!(errno::<()>(Err(error)), Some(Errno::NODATA));
            None
        }
    }
}

async fn mode(files: &Files, ino: Ino) -> u16 {
    let (attr, rights) = (files.attr(ino).await.unwrap(), files.rights(ino).await.unwrap());
    assert_eq!((attr, list(files, ino, ACCESS).await), (rights.attr, rights.acl));
    attr.mode
}

#[test]
fn a_list_and_the_mode_change_together() {
    with_files(async |_, files| {
        let file = add(files, ROOT, "f", (FileType::Regular, 0o2640, 0)).await;
        assert_eq!(set(files, file, ACCESS, &rich()).await, None);
        assert_eq!(mode(files, file).await, 0o2771);
        assert_eq!(list(files, file, ACCESS).await, Some(rich()));
        let chmod = SetAttr { mode: Some(0o650), ..SetAttr::default() };
        files.set_attr(OWNER, file, &chmod).await.unwrap();
        drain(files).await;
        assert_eq!(mode(files, file).await, 0o650);
        let changed = list(files, file, ACCESS).await.unwrap();
        assert_eq!(changed, rich().with_mode(0o650), "the mask, and not the group's own");
        // What says no more than a mode is one.
        assert_eq!(set(files, file, ACCESS, &Acl::of_mode(0o604)).await, None);
        assert_eq!((mode(files, file).await, list(files, file, ACCESS).await), (0o604, None));
        assert!(files.list_xattrs(file).await.unwrap().is_empty());
        // A list that goes leaves the mode.
        assert_eq!(set(files, file, ACCESS, &rich()).await, None);
        files.remove_xattr(OWNER, file, ACCESS).await.unwrap();
        assert_eq!((mode(files, file).await, list(files, file, ACCESS).await), (0o771, None));
        let gone = files.remove_xattr(OWNER, file, ACCESS).await;
        assert_eq!(errno(gone), Some(Errno::NODATA));
    });
}

#[test]
fn only_what_may_have_a_list_has_one_and_only_its_owner_sets_it() {
    with_files(async |bed, files| {
        let file = add(files, ROOT, "f", (FileType::Regular, 0o640, 0)).await;
        let dir = add(files, ROOT, "d", (FileType::Directory, 0o750, 0)).await;
        let link = add(files, ROOT, "l", (FileType::Symlink, 0o777, 0)).await;
        assert_eq!(set(files, file, DEFAULT, &rich()).await, Some(Errno::ACCESS));
        assert_eq!(set(files, link, ACCESS, &rich()).await, Some(Errno::OPNOTSUPP));
        let bytes = rich().format();
        let try_as = async |uid, bytes: &[u8]| {
            let caller = Caller { uid, ..OWNER };
            errno(files.set_xattr(caller, dir, DEFAULT, bytes, SetXattr::Any).await)
        };
        assert_eq!(try_as(11, &bytes).await, Some(Errno::PERM));
        assert_eq!(try_as(10, &bytes[..43]).await, Some(Errno::INVAL));
        assert_eq!((try_as(10, &bytes).await, try_as(0, &bytes).await), (None, None));
        let other = Caller { uid: 11, ..OWNER };
        assert_eq!(errno(files.remove_xattr(other, dir, DEFAULT).await), Some(Errno::PERM));
        assert_eq!((mode(files, dir).await, mode(files, file).await), (0o750, 0o640));
        bed.volumes.take_snapshot("fs", "s").await.unwrap();
        assert_eq!(set(files, dir, ACCESS, &rich()).await, None);
        files.remove_xattr(OWNER, dir, DEFAULT).await.unwrap();
        let snapshots = files.lookup(ROOT, b".snapshots").await.unwrap().ino;
        let root = files.lookup(snapshots, b"s").await.unwrap().ino;
        let old = files.lookup(root, b"d").await.unwrap().ino;
        assert_eq!((mode(files, old).await, mode(files, dir).await), (0o750, 0o771));
        assert_eq!(list(files, old, DEFAULT).await, Some(rich()));
        assert_eq!(files.rights(old).await.unwrap().attr.ino, old);
        assert_eq!(files.rights(snapshots).await.unwrap().acl, None);
        assert_eq!(set(files, old, ACCESS, &rich()).await, Some(Errno::ROFS));
    });
}

#[test]
fn what_is_made_in_a_directory_gets_its_default_list_and_no_umask() {
    with_files(async |_, files| {
        let dir = add(files, ROOT, "d", (FileType::Directory, 0o2777, 0o22)).await;
        assert_eq!(mode(files, dir).await, 0o2755);
        assert_eq!(set(files, dir, DEFAULT, &rich()).await, None);
        assert_eq!(mode(files, dir).await, 0o2755, "it is not for the directory itself");
        for is_durable in [false, true] {
            if is_durable {
                drain(files).await;
            }
            let name = |name: &str| format!("{name} {is_durable}");
            let file = add(files, dir, &name("f"), (FileType::Regular, 0o4666, 0o77)).await;
            assert_eq!(mode(files, file).await, 0o4660);
            assert_eq!(list(files, file, ACCESS).await, Some(rich().with_mode(0o660)));
            assert_eq!(list(files, file, DEFAULT).await, None);
            let inner = add(files, dir, &name("d"), (FileType::Directory, 0o700, 0o77)).await;
            assert_eq!(mode(files, inner).await, 0o2700);
            assert_eq!(list(files, inner, ACCESS).await, Some(rich().with_mode(0o700)));
            assert_eq!(list(files, inner, DEFAULT).await, Some(rich()), "as it is");
            let link = add(files, dir, &name("l"), (FileType::Symlink, 0o777, 0)).await;
            assert_eq!((mode(files, link).await, list(files, link, ACCESS).await), (0o777, None));
            let deep = add(files, inner, "f", (FileType::Fifo, 0o666, 0o77)).await;
            assert_eq!(mode(files, deep).await, 0o660);
            assert_eq!(files.list_xattrs(inner).await.unwrap().len(), 2);
        }
        // A default list of a mode gives modes.
        assert_eq!(set(files, dir, DEFAULT, &Acl::of_mode(0o751)).await, None);
        let file = add(files, dir, "plain", (FileType::Regular, 0o666, 0o77)).await;
        assert_eq!((mode(files, file).await, list(files, file, ACCESS).await), (0o640, None));
    });
}

#[test]
fn two_lists_are_set_as_one_change() {
    with_files(async |_, files| {
        let dir = add(files, ROOT, "d", (FileType::Directory, 0o700, 0)).await;
        let file = add(files, ROOT, "f", (FileType::Regular, 0o600, 0)).await;
        let both = |access, default| [(AclOf::Access, access), (AclOf::Default, default)];
        let set = async |caller, ino, lists: &[(AclOf, Option<Acl>)]| {
            errno(files.set_acls(caller, ino, lists).await)
        };
        assert_eq!(set(OWNER, dir, &both(Some(rich()), Some(rich()))).await, None);
        assert_eq!(mode(files, dir).await, 0o771);
        assert_eq!(list(files, dir, DEFAULT).await, Some(rich()));
        let refused = set(OWNER, file, &both(Some(rich()), Some(rich()))).await;
        assert_eq!((refused, mode(files, file).await), (Some(Errno::ACCESS), 0o600));
        let other = Caller { uid: 11, ..OWNER };
        assert_eq!(set(other, dir, &both(None, None)).await, Some(Errno::PERM));
        assert_eq!(set(OWNER, dir, &both(Some(Acl::of_mode(0o750)), None)).await, None);
        assert_eq!((mode(files, dir).await, list(files, dir, DEFAULT).await), (0o750, None));
        assert!(files.list_xattrs(dir).await.unwrap().is_empty());
        assert_eq!(set(OWNER, file, &both(None, None)).await, None, "it had none");
    });
}

/// Takes set-group-id, as a front does of a caller who is not in the group.
struct Outsider;

impl Witness for Outsider {
    fn judge(&self, _sight: &dyn Sight) -> Result<(), Halt> {
        Ok(())
    }

    fn settle_mode(&self, mode: u16) -> u16 {
        mode & !0o2000
    }

    fn changed(&self, _attr: &Attr) {}
}

#[test]
fn a_witness_has_its_word_on_the_mode_of_a_list() {
    with_files(async |_, files| {
        let dir = add(files, ROOT, "d", (FileType::Directory, 0o6750, 0)).await;
        let caller = Caller { witness: Some(&Outsider), ..OWNER };
        let bytes = rich().format();
        files.set_xattr(caller, dir, DEFAULT, &bytes, SetXattr::Any).await.unwrap();
        assert_eq!(mode(files, dir).await, 0o6750, "a default list has none");
        files.set_xattr(caller, dir, ACCESS, &bytes, SetXattr::Any).await.unwrap();
        assert_eq!(mode(files, dir).await, 0o4771);
    });
}
