//! Two hosts: the client comes to one, and its volumes are at the other.

use super::testing::Trouble;
use crate::nfs::settings::{Peer, Settings, Squash};
use crate::nfs::testing::{Client, packed, root, root_of, with_site};
use nfs3_types::nfs3::{COMMIT3args, nfsstat3, stable_how};
use rekindle_env::Address;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;

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
        assert_eq!(site.shelf.lines.opened.load(Ordering::Relaxed), 1, "one line for all");
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

#[test]
fn users_are_squashed_by_the_clients_host_alone() {
    let open = || Settings { squash: Squash::None, ..Settings::default() };
    let all = || Settings { squash: Squash::All, ..Settings::default() };
    let peer = || Peer::of(&Address::Tcp(([0; 4], 1).into()), "10.0.0.9:700");
    let made = |own: Settings, there: Settings, is_fine: bool| {
        with_site(own, async |site| {
            site.move_away(there);
            let mut client = site.connect_from(peer(), Some(root()));
            let root = client.mount("/one").await.unwrap();
            let made = client.make_dir(&root, "d", 0o755).await;
            let refused = Err(nfsstat3::NFS3ERR_ACCES);
            if is_fine { assert!(made.is_ok(), "{made:?}") } else { assert_eq!(made, refused) }
        });
    };
    made(Settings::default(), open(), false);
    made(open(), Settings::default(), true);
    made(open(), all(), true);
    made(all(), open(), false);
}

#[test]
fn a_change_whose_reply_is_lost_is_carried_out_once_however_long_it_takes() {
    with_site(Settings::default(), async |site| {
        let mut client = site.connect();
        let root = client.mount("/one").await.unwrap();
        site.move_away(Settings::default());
        site.server.forget(&root.data);
        *site.shelf.lines.trouble.lock() = Trouble::LosesReplies;
        let (env, cable) = (site.env.clone(), site.shelf.lines.clone());
        site.env.spawn("heal", async move {
            env.sleep(Duration::from_secs(60)).await;
            *cable.trouble.lock() = Trouble::None;
        });
        client.make_dir(&root, "d", 0o755).await.unwrap();
        assert!(site.shelf.lines.opened.load(Ordering::Relaxed) > 100);
        // One that has got nowhere is told to come later.
        *site.shelf.lines.trouble.lock() = Trouble::Shut;
        site.break_lines().await;
        let later = client.make_dir(&root, "e", 0o755).await;
        assert_eq!(later, Err(nfsstat3::NFS3ERR_JUKEBOX));
    });
}

#[test]
fn a_mount_waits_for_a_volume_on_its_way() {
    with_site(Settings::default(), async |site| {
        site.shelf.is_on_its_way.store(true, Ordering::Relaxed);
        let (env, shelf) = (site.env.clone(), site.shelf.clone());
        site.env.spawn("arrive", async move {
            env.sleep(Duration::from_secs(10)).await;
            shelf.is_on_its_way.store(false, Ordering::Relaxed);
        });
        site.connect().mount("/one").await.unwrap();
    });
}

#[test]
fn a_call_whose_client_has_gone_is_cut_off_at_the_owners_host() {
    with_site(Settings::default(), async |site| {
        let files = site.files("one");
        let mut client = site.connect();
        let root = client.mount("/one").await.unwrap();
        let file = client.create(&root, "f", 0o644).await;
        site.move_away(Settings::default());
        site.server.forget(&root.data);
        let stuck = Arc::new(Notify::new());
        let (asked, synced) = files.look(|state| {
            state.stuck = Some(stuck.clone());
            (state.syncs_asked, state.syncs)
        });
        let args = packed(&COMMIT3args { file, offset: 0, count: 0 });
        let commit = client.call(nfs3_types::nfs3::PROGRAM, 21, &args);
        client.send(&commit).await;
        let time = Duration::from_millis(50);
        site.env.sleep(time).await;
        assert_eq!(files.look(|state| state.syncs_asked), asked + 1, "it has come there");
        // The session is not asked to end in good order.
        let Client { pipe, stop: _stop, .. } = client;
        drop(pipe);
        site.env.sleep(time).await;
        files.look(|state| state.stuck = None);
        stuck.notify_waiters();
        site.env.sleep(time).await;
        assert_eq!(files.look(|state| state.syncs), synced, "it goes on without a client");
    });
}
