//! Clients that lie, stop in the middle, or never take a reply: an error for them only.

use super::*;
use crate::nfs::rpc::LAST_FRAGMENT;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

/// A call that gets a reply from a server that is well.
async fn is_well(site: &Site) {
    site.connect().attributes(&root_of("one")).await.unwrap();
}

#[test]
fn a_client_that_lies_about_sizes_is_hung_up_on() {
    served(async |site| {
        for bytes in [
            // Longer than any call, at once and in pieces.
            vec![LAST_FRAGMENT | 0x7fff_ffff],
            vec![limits::RECORD_BYTES_MAX as u32 + 1],
            // No call at all.
            vec![LAST_FRAGMENT],
            vec![LAST_FRAGMENT | 8, 1, 1],
            // Fragments without an end.
            vec![0; limits::FRAGMENTS_MAX],
        ] {
            let mut client = site.connect();
            for word in &bytes {
                client.pipe.write_all(&word.to_be_bytes()).await.unwrap();
            }
            assert!(client.is_over().await, "{bytes:x?}");
        }
        is_well(site).await;
    });
}

#[test]
fn lengths_in_a_call_are_not_believed() {
    served(async |site| {
        let mut client = site.connect();
        let root = packed(&root_of("one"));
        let word = |word: u32| word.to_be_bytes().to_vec();
        let lots = u32::MAX;
        for (procedure, args) in [
            (1, word(lots)),
            (1, word(65)),
            (3, [root.clone(), word(lots)].concat()),
            (3, [root.clone(), word(10), b"abc".to_vec()].concat()),
            (7, [root.clone(), vec![0; 8], word(4), word(2), word(lots)].concat()),
            (7, [root.clone(), vec![0; 8], word(4), word(7), word(0)].concat()),
            (8, [root.clone(), word(1), b"a\0\0\0".to_vec(), word(9)].concat()),
            (10, [root.clone(), word(1), b"a\0\0\0".to_vec(), vec![0; 24], word(lots)].concat()),
        ] {
            let told = client.heard(nfs3::PROGRAM, procedure, &args).await;
            assert_eq!(told, Err("GARBAGE_ARGS".to_owned()), "procedure {procedure}");
        }
        let path = [word(lots), b"/one".to_vec()].concat();
        let told = client.heard(mount::PROGRAM, 1, &path).await;
        assert_eq!(told, Err("GARBAGE_ARGS".to_owned()));
        // Fewer bytes than it says, and more.
        let file = client.create(&root_of("one"), "f", 0o644).await;
        for (count, outcome) in [(5, Err(nfsstat3::NFS3ERR_INVAL)), (2, Ok(2))] {
            let (stable, data) = (stable_how::UNSTABLE, Opaque::borrowed(b"abc"));
            let args = nfs3::WRITE3args { file: file.clone(), offset: 0, count, stable, data };
            let wrote: nfs3::WRITE3res = client.ask(NFS_PROGRAM::NFSPROC3_WRITE, &args).await;
            assert_eq!(done(wrote).map(|wrote| wrote.count), outcome, "{count}");
        }
        assert_eq!(client.read(&file, 0, u32::MAX).await.unwrap().0, b"ab");
        let long = "n".repeat(256);
        let told = client.look_up(&root_of("one"), &long).await.unwrap_err();
        assert!(matches!(told, nfsstat3::NFS3ERR_NAMETOOLONG | nfsstat3::NFS3ERR_NOENT));
    });
}

#[test]
fn a_client_that_stops_amid_a_call_is_hung_up_on() {
    served(async |site| {
        let mut client = site.connect();
        let record = client.call(nfs3::PROGRAM, 1, &packed(&root_of("one")));
        let mark = record.len() as u32 | LAST_FRAGMENT;
        client.pipe.write_all(&mark.to_be_bytes()).await.unwrap();
        client.pipe.write_all(&record[..20]).await.unwrap();
        is_well(site).await;
        site.env.sleep(limits::RECORD_TIME_MAX).await;
        assert!(client.is_over().await);
    });
}

#[test]
fn a_call_in_fragments_is_one() {
    served(async |site| {
        let mut client = site.connect();
        let record = client.call(nfs3::PROGRAM, 1, &packed(&root_of("one")));
        let (first, rest) = record.split_at(10);
        client.pipe.write_all(&(first.len() as u32).to_be_bytes()).await.unwrap();
        client.pipe.write_all(first).await.unwrap();
        client.send(rest).await;
        let (xid, heard) = client.reply().await;
        assert_eq!((xid, heard.unwrap()[..4].to_vec()), (client.xid, vec![0; 4]));
    });
}

/// A client, and a call of it that waits for a sync, which does not come before the bell is rung.
async fn stuck_commit(site: &Site) -> (Client, Vec<u8>, Arc<Notify>) {
    let stuck = Arc::new(Notify::new());
    let mut client = site.connect();
    let file = client.create(&root_of("one"), "f", 0o644).await;
    site.files("one").look(|state| state.stuck = Some(stuck.clone()));
    let args = nfs3::COMMIT3args { file, offset: 0, count: 0 };
    let commit = client.call(nfs3::PROGRAM, 21, &packed(&args));
    (client, commit, stuck)
}

fn go_on(site: &Site, stuck: &Notify) {
    site.files("one").look(|state| state.stuck = None);
    stuck.notify_waiters();
}

#[test]
fn calls_of_a_flood_wait_in_the_socket() {
    served(async |site| {
        let (mut client, commit, stuck) = stuck_commit(site).await;
        let most = limits::UNDER_WAY_BYTES_MAX / limits::CALL_COUNTS;
        let asked = |site: &Site| site.files("one").look(|state| state.syncs_asked);
        let before = asked(site);
        for _ in 0..most + 10 {
            client.send(&commit).await;
        }
        site.env.sleep(limits::RECORD_TIME_MAX * 2).await;
        assert_eq!(asked(site) - before, most as u64, "the rest is in the socket");
        // A call of another client goes on.
        is_well(site).await;
        go_on(site, &stuck);
        for _ in 0..most + 10 {
            client.reply().await.1.unwrap();
        }
    });
}

#[test]
fn calls_of_a_client_that_has_gone_are_cut_off() {
    served(async |site| {
        let (mut client, commit, stuck) = stuck_commit(site).await;
        let before = site.files("one").look(|state| state.syncs);
        client.send(&commit).await;
        site.env.sleep(limits::IDLE_LOOK).await;
        // Not asked to finish: gone.
        let _stop = client.stop.take();
        drop(client);
        site.env.sleep(limits::IDLE_LOOK).await;
        go_on(site, &stuck);
        site.env.sleep(limits::IDLE_LOOK).await;
        assert_eq!(site.files("one").look(|state| state.syncs), before);
    });
}

#[test]
fn a_session_that_is_stopped_answers_what_it_has_begun() {
    served(async |site| {
        let (mut client, commit, stuck) = stuck_commit(site).await;
        client.send(&commit).await;
        site.env.sleep(limits::IDLE_LOOK).await;
        client.stop.take();
        site.env.sleep(limits::IDLE_LOOK).await;
        go_on(site, &stuck);
        client.reply().await.1.unwrap();
        assert!(client.is_over().await);
    });
}
