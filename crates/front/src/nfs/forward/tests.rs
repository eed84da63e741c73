//! Two hosts: the client comes to one, and its volumes are at the other.

use crate::nfs::settings::Settings;
use crate::nfs::testing::{root_of, with_site};
use nfs3_types::nfs3::{nfsstat3, stable_how};
use std::sync::atomic::Ordering;

#[test]
fn calls_of_version_3_go_on_where_the_volume_goes() {
    with_site(Settings::default(), async |site| {
        let mut client = site.connect();
        let root = client.mount("/one").await.unwrap();
        let file = client.create(&root, "f", 0o644).await;
        let there = site.move_away(Settings::default());
        // The volume that is kept in service here is left, as after a move.
        site.server.forget(&root.data);
        client.write(&file, 0, b"forwarded", stable_how::FILE_SYNC).await.unwrap();
        assert_eq!(client.read(&file, 0, 100).await.unwrap().0, b"forwarded");
        assert_eq!(client.mount("/one").await.unwrap(), root);
        let again = client.call(nfs3_types::nfs3::PROGRAM, 3, b"");
        client.send(&again).await;
        assert_eq!(client.reply().await.1.unwrap_err(), "GARBAGE_ARGS");
        assert_eq!(client.look_up(&root_of("one"), "no").await, Err(nfsstat3::NFS3ERR_NOENT));
        assert_eq!(site.shelf.opened.load(Ordering::Relaxed), 1, "one line for all");
        assert_eq!(there.volumes.lock().len(), 2);
        // It comes back.
        *there.other.lock() = Some(site.server.clone());
        let volumes = std::mem::take(&mut *there.volumes.lock());
        site.shelf.other.lock().as_ref().unwrap().forget(&root.data);
        *site.shelf.volumes.lock() = volumes;
        assert_eq!(client.read(&file, 0, 100).await.unwrap().0, b"forwarded");
        client.remove(&root, "f").await.unwrap();
        // It goes there once more, where it was last known to be here.
        *there.volumes.lock() = std::mem::take(&mut *site.shelf.volumes.lock());
        site.server.forget(&root.data);
        client.make_dir(&root, "d", 0o755).await.unwrap();
    });
}

#[test]
fn the_rules_are_those_of_the_clients_host() {
    let read_only = Settings { read_only: vec!["one".to_owned()], ..Settings::default() };
    with_site(read_only, async |site| {
        site.move_away(Settings::default());
        let mut client = site.connect();
        let root = client.mount("/one").await.unwrap();
        let refused = client.make_dir(&root, "d", 0o755).await;
        assert_eq!(refused, Err(nfsstat3::NFS3ERR_ROFS));
    });
    with_site(Settings::default(), async |site| {
        site.move_away(Settings { read_only: vec!["*".to_owned()], ..Settings::default() });
        let mut client = site.connect();
        let root = client.mount("/one").await.unwrap();
        client.make_dir(&root, "d", 0o755).await.unwrap();
    });
}
