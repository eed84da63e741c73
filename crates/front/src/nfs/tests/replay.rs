//! Calls that come again are carried out once, over restarts, too.

use super::*;

#[test]
fn a_call_that_comes_again_is_carried_out_once() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let how = nfs3::createhow3::GUARDED(mode(0o644));
        let create = packed(&nfs3::CREATE3args { where_: at(&root, "f"), how });
        let create = client.call(nfs3::PROGRAM, 8, &create);
        let made = repeated(&mut client, &create).await;
        let made: nfs3::CREATE3resok = done(whole::<nfs3::CREATE3res>(&made)).unwrap();
        let file = made.obj.unwrap();
        // The reply is lost with the server.
        site.restart(Settings::default());
        let mut client = site.connect();
        let again = repeated(&mut client, &create).await;
        let again = done(whole::<nfs3::CREATE3res>(&again)).unwrap();
        assert_eq!(again.obj.unwrap(), file);
        assert!(again.dir_wcc.before.is_none(), "nothing is known of before");
        let remove = packed(&nfs3::REMOVE3args { object: at(&root, "f") });
        let remove = client.call(nfs3::PROGRAM, 12, &remove);
        done(whole::<nfs3::REMOVE3res>(&repeated(&mut client, &remove).await)).unwrap();
        // Meanwhile, another file has the name: it is not for the late call.
        client.create(&root, "f", 0o600).await;
        done(whole::<nfs3::REMOVE3res>(&repeated(&mut client, &remove).await)).unwrap();
        client.look_up(&root, "f").await.unwrap();
        // The file of the first call is gone, and its reply has no handle.
        client.remove(&root, "f").await.unwrap();
        let again = done(whole::<nfs3::CREATE3res>(&repeated(&mut client, &create).await));
        assert!(again.unwrap().obj.is_none());
        // Another call of the same content is a call.
        assert_eq!(client.remove(&root, "f").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
    });
}

async fn repeated(client: &mut Client, record: &[u8]) -> Vec<u8> {
    client.send(record).await;
    client.reply().await.1.unwrap()
}

#[test]
fn all_calls_that_change_names_or_attributes_are_known_again() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        let file = client.create(&root, "f", 0o644).await;
        let link = packed(&nfs3::LINK3args { file: file.clone(), link: at(&root, "g") });
        let rename = packed(&nfs3::RENAME3args { from: at(&root, "g"), to: at(&root, "h") });
        let mkdir = packed(&nfs3::MKDIR3args { where_: at(&root, "d"), attributes: mode(0o755) });
        let rmdir = packed(&nfs3::RMDIR3args { object: at(&root, "d") });
        let guard = Nfs3Option::Some(client.attributes(&file).await.unwrap().ctime);
        let set = nfs3::SETATTR3args { object: file.clone(), new_attributes: mode(0o600), guard };
        let nfs_symlink = nfs3::symlinkdata3 {
            symlink_attributes: mode(0),
            symlink_data: nfs3::nfspath3(Opaque::borrowed(b"t")),
        };
        let symlink = packed(&nfs3::SYMLINK3args { where_: at(&root, "s"), symlink: nfs_symlink });
        let what = nfs3::mknoddata3::NF3FIFO(mode(0o600));
        let mknod = packed(&nfs3::MKNOD3args { where_: at(&root, "p"), what });
        for (procedure, args) in [
            (2, packed(&set)),
            (15, link),
            (14, rename),
            (9, mkdir),
            (13, rmdir),
            (10, symlink),
            (11, mknod),
        ] {
            let record = client.call(nfs3::PROGRAM, procedure, &args);
            for time in ["first", "second"] {
                let results = repeated(&mut client, &record).await;
                assert_eq!(results[..4], [0; 4], "procedure {procedure}, the {time} time");
            }
        }
        assert_eq!(client.attributes(&file).await.unwrap().nlink, 2);
        let syncs = site.files("one").look(|state| state.syncs);
        assert!(syncs >= 15, "each reply, the second ones too, says that it is durable: {syncs}");
    });
}

#[test]
fn clients_have_calls_of_their_own() {
    served(async |site| {
        let mut client = site.connect();
        let root = root_of("one");
        client.set(&root, mode(0o777)).await.unwrap();
        let remove = packed(&nfs3::REMOVE3args { object: at(&root, "f") });
        client.create(&root, "f", 0o644).await;
        let record = client.call(nfs3::PROGRAM, 12, &remove);
        assert_eq!(repeated(&mut client, &record).await[..4], [0; 4]);
        client.create(&root, "f", 0o644).await;
        // Another machine, with the same xid and the same call.
        let peer = Peer::At("127.0.0.1:700".parse().unwrap());
        let mut other = site.connect_from(peer, client.caller.clone());
        assert_eq!(repeated(&mut other, &record).await[..4], [0; 4]);
        assert_eq!(client.look_up(&root, "f").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
    });
}
