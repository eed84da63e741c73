//! Exports in memory, and a client that speaks with the codec of `nfs3_types`.

use super::forward::Way;
use super::forward::testing::{Aside, Cable};
use super::permission::Credentials;
use super::rpc::LAST_FRAGMENT;
use super::server::Server;
use super::session::{self, Line};
use super::settings::{Peer, Settings};
use super::target::{Export, Exports};
use crate::conn::{Connections, Stop};
use crate::target::testing::Memory;
use nfs3_types::mount::{self, MOUNT_PROGRAM};
use nfs3_types::nfs3::{
    self, NFS_PROGRAM, Nfs3Option, Nfs3Result, createhow3, diropargs3, filename3, nfs_fh3,
    nfsstat3, sattr3,
};
use nfs3_types::rpc::{accept_stat_data, accepted_reply, rejected_reply};
use nfs3_types::rpc::{auth_unix, call_body, msg_body, opaque_auth, reply_body, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use parking_lot::Mutex;
use rekindle_base::{NodeId, VolumeId};
use rekindle_env::sim::{Faults, World};
use rekindle_env::{BoxFuture, Env, Moment};
use rekindle_file::{ROOT, Seal};
use rekindle_volume::Error;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;

/// Volumes in memory.
#[derive(Default)]
pub(super) struct Shelf {
    pub(super) volumes: Mutex<BTreeMap<String, (VolumeId, Memory)>>,
    /// The life that serves them.
    pub(super) life: AtomicU64,
    /// How often volumes came into service.
    pub(super) attached: AtomicU64,
    pub(super) is_stopping: AtomicBool,
    pub(super) is_on_its_way: AtomicBool,
    /// The server of the other host, which owns the rest; and the lines to it.
    pub(super) other: Mutex<Option<Arc<Server<Shelf>>>>,
    pub(super) lines: Arc<Cable>,
    /// Mounts that have gone.
    pub(super) mounts_gone: Mutex<Vec<u64>>,
    /// What was kept of the clients' whereabouts.
    pub(super) remembered: Mutex<Option<Vec<u8>>>,
}

pub(super) fn id(name: &str) -> VolumeId {
    let mut id = VolumeId([7; 16]);
    id.0[..name.len()].copy_from_slice(name.as_bytes());
    id
}

impl Shelf {
    fn export(&self, found: Option<(String, VolumeId, Memory)>) -> Result<Export<Memory>, Error> {
        if self.is_on_its_way.load(Ordering::Relaxed) {
            return Err(Error::Stopping);
        }
        let (name, id, files) = found.ok_or_else(|| match &*self.other.lock() {
            Some(_) => Error::Elsewhere("one".to_owned(), NodeId([2; 16])),
            None => Error::NotFound("it".to_owned()),
        })?;
        self.attached.fetch_add(1, Ordering::Relaxed);
        let verifier = self.life.load(Ordering::Relaxed).to_be_bytes();
        Ok(Export { id, name, files, verifier })
    }
}

impl Exports for Shelf {
    type Files = Memory;

    fn seal(&self) -> BoxFuture<'_, Result<Seal, Error>> {
        Box::pin(async { Ok(Seal::with_secret(5)) })
    }

    fn host(&self) -> BoxFuture<'_, Result<[u8; 16], Error>> {
        Box::pin(async { Ok([3; 16]) })
    }

    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, Error>> {
        Box::pin(async { Ok(self.volumes.lock().keys().cloned().collect()) })
    }

    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Export<Memory>, Error>> {
        let found = self.volumes.lock().get(name).cloned();
        Box::pin(async move { self.export(found.map(|(id, files)| (name.to_owned(), id, files))) })
    }

    fn find(&self, id: VolumeId) -> BoxFuture<'_, Result<Export<Memory>, Error>> {
        let volumes = self.volumes.lock();
        let found = volumes.iter().find(|(_, (other, _))| *other == id);
        let found = found.map(|(name, (id, files))| (name.clone(), *id, files.clone()));
        Box::pin(async move { self.export(found) })
    }

    fn remember(&self, bytes: Vec<u8>) -> BoxFuture<'_, ()> {
        *self.remembered.lock() = Some(bytes);
        Box::pin(async {})
    }

    fn remembered(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async { Ok(self.remembered.lock().clone()) })
    }

    fn has_mount_gone(&self, _: VolumeId, mount: u64, _: Moment) -> bool {
        self.mounts_gone.lock().contains(&mount)
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    fn way(&self, _: &str, volume: &str) -> Arc<dyn Way> {
        let (other, cable) = (self.other.lock().clone(), self.lines.clone());
        Arc::new(Aside { volume: id(volume), other, cable })
    }
}

/// A server with two volumes, `one` and `two`, whose roots belong to root.
pub(super) struct Site {
    pub(super) env: Env,
    pub(super) shelf: Arc<Shelf>,
    pub(super) server: Arc<Server<Shelf>>,
    connections: Connections,
}

pub(super) fn with_site(settings: Settings, story: impl AsyncFnOnce(&mut Site)) {
    let world = World::new(5, Faults::none());
    let env = world.env();
    let volumes = ["one", "two"].map(|name| (name.to_owned(), (id(name), Memory::new())));
    let (volumes, life) = (Mutex::new(volumes.into()), AtomicU64::new(1));
    let shelf = Arc::new(Shelf { volumes, life, ..Shelf::default() });
    let server = Arc::new(Server::new(env.clone(), shelf.clone(), settings));
    let connections = Connections::new("nfs", 4);
    let mut site = Site { env, shelf, server, connections };
    world.block_on(async { story(&mut site).await });
}

impl Site {
    pub(super) fn files(&self, name: &str) -> Memory {
        self.shelf.volumes.lock()[name].1.clone()
    }

    /// Begins another life of the server, over the same volumes.
    pub(super) fn restart(&mut self, settings: Settings) {
        self.shelf.life.fetch_add(1, Ordering::Relaxed);
        self.server = Arc::new(Server::new(self.env.clone(), self.shelf.clone(), settings));
    }

    /// Its volumes go to another host, with a server of its own: this one forwards. Returns what
    /// is at the other one.
    pub(super) fn move_away(&mut self, settings: Settings) -> Arc<Shelf> {
        let shelf = Arc::new(Shelf {
            volumes: Mutex::new(std::mem::take(&mut *self.shelf.volumes.lock())),
            life: AtomicU64::new(self.shelf.life.load(Ordering::Relaxed) + 1),
            ..Shelf::default()
        });
        let server = Server::new(self.env.clone(), shelf.clone(), settings);
        *self.shelf.other.lock() = Some(Arc::new(server));
        shelf
    }

    /// The other host's server begins anew.
    pub(super) fn new_server_there(&self) -> Arc<Server<Shelf>> {
        let mut other = self.shelf.other.lock();
        let exports = other.as_ref().expect("it is there").exports.clone();
        let new = Arc::new(Server::new(self.env.clone(), exports, Settings::default()));
        *other = Some(new.clone());
        new
    }

    /// Ends all lines. New ones are opened for the calls that follow.
    pub(super) async fn break_lines(&self) {
        self.shelf.lines.breaks.notify_waiters();
        self.env.sleep(Duration::from_millis(10)).await;
    }

    /// Connects root of this machine.
    pub(super) fn connect(&self) -> Client {
        self.connect_from(Peer::Here, Some(root()))
    }

    pub(super) fn connect_from(&self, peer: Peer, caller: Option<Credentials>) -> Client {
        let (pipe, theirs) = tokio::io::duplex(4 << 20);
        let budget = self.connections.budget().clone();
        let line = Line { server: self.server.clone(), peer, budget };
        let (stop, stopped) = Stop::pair();
        self.env.spawn("nfs", async move { drop(session::run(line, theirs, stopped).await) });
        Client { pipe, caller, xid: 100, stop: Some(stop) }
    }
}

pub(super) fn root() -> Credentials {
    user(0)
}

pub(super) fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Vec::new() }
}

/// A client's end of a connection.
pub(super) struct Client {
    pub(super) pipe: DuplexStream,
    pub(super) caller: Option<Credentials>,
    pub(super) xid: u32,
    /// Asks the session to finish when it is dropped.
    pub(super) stop: Option<oneshot::Sender<()>>,
}

/// What became of a call, beside its results.
pub(super) type Heard = Result<Vec<u8>, String>;

impl Client {
    pub(super) fn call(&mut self, program: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
        self.xid += 1;
        let version = 3;
        self.record(self.xid, (program, version, procedure), args)
    }

    pub(super) fn record(&self, xid: u32, what: (u32, u32, u32), args: &[u8]) -> Vec<u8> {
        let cred = match &self.caller {
            None => opaque_auth::default(),
            Some(caller) => opaque_auth::auth_unix(&auth_unix {
                stamp: 0,
                machinename: Opaque::borrowed(b"test"),
                uid: caller.uid,
                gid: caller.gid,
                gids: caller.groups.clone(),
            }),
        };
        let (prog, vers, proc) = what;
        let body = call_body { rpcvers: 2, prog, vers, proc, cred, verf: opaque_auth::default() };
        let message = rpc_msg { xid, body: msg_body::CALL(body) };
        [packed(&message), args.to_vec()].concat()
    }

    pub(super) async fn send(&mut self, record: &[u8]) {
        let mark = record.len() as u32 | LAST_FRAGMENT;
        self.pipe.write_all(&mark.to_be_bytes()).await.unwrap();
        self.pipe.write_all(record).await.unwrap();
    }

    /// Returns the xid of the next reply, and its results.
    pub(super) async fn reply(&mut self) -> (u32, Heard) {
        let mark = self.pipe.read_u32().await.unwrap();
        let mut record = vec![0; (mark & !LAST_FRAGMENT) as usize];
        self.pipe.read_exact(&mut record).await.unwrap();
        let mut rest = &record[..];
        let (message, _) = rpc_msg::unpack(&mut rest).unwrap();
        let msg_body::REPLY(body) = message.body else { panic!("a reply is no call") };
        let heard = match body {
            reply_body::MSG_ACCEPTED(accepted_reply { reply_data, .. }) => match reply_data {
                accept_stat_data::SUCCESS => Ok(rest.to_vec()),
                other => Err(format!("{other:?}")),
            },
            reply_body::MSG_DENIED(rejected_reply::AUTH_ERROR(why)) => Err(why.to_string()),
            reply_body::MSG_DENIED(other) => Err(format!("{other:?}")),
        };
        (message.xid, heard)
    }

    pub(super) async fn heard(&mut self, program: u32, procedure: u32, args: &[u8]) -> Heard {
        let record = self.call(program, procedure, args);
        self.send(&record).await;
        let (xid, heard) = self.reply().await;
        assert_eq!(xid, self.xid);
        heard
    }

    /// Calls, and returns the results, which end where the reply does.
    pub(super) async fn ask<T: Unpack>(&mut self, procedure: NFS_PROGRAM, args: &impl Pack) -> T {
        let heard = self.heard(nfs3::PROGRAM, procedure as u32, &packed(args)).await;
        whole(&heard.unwrap())
    }

    pub(super) async fn mount(&mut self, path: &str) -> Result<nfs_fh3, mount::mountstat3> {
        let (mnt, path) = (MOUNT_PROGRAM::MOUNTPROC3_MNT, Opaque::borrowed(path.as_bytes()));
        let heard = self.heard(mount::PROGRAM, mnt as u32, &packed(&path)).await;
        match whole(&heard.unwrap()) {
            mount::mountres3::Ok(ok) => Ok(nfs_fh3 { data: Opaque::owned(ok.fhandle.0.to_vec()) }),
            mount::mountres3::Err(status) => Err(status),
        }
    }

    /// Makes a file by CREATE.
    pub(super) async fn create(&mut self, dir: &nfs_fh3, name: &str, mode: u32) -> nfs_fh3 {
        let how = createhow3::GUARDED(sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() });
        let args = nfs3::CREATE3args { where_: at(dir, name), how };
        let made: nfs3::CREATE3res = self.ask(NFS_PROGRAM::NFSPROC3_CREATE, &args).await;
        made.unwrap().obj.unwrap()
    }

    pub(super) async fn make_dir(
        &mut self,
        dir: &nfs_fh3,
        name: &str,
        mode: u32,
    ) -> Result<nfs_fh3, nfsstat3> {
        let attributes = sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() };
        let args = nfs3::MKDIR3args { where_: at(dir, name), attributes };
        let made: nfs3::MKDIR3res = self.ask(NFS_PROGRAM::NFSPROC3_MKDIR, &args).await;
        done(made).map(|made| made.obj.unwrap())
    }

    pub(super) async fn look_up(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let args = nfs3::LOOKUP3args { what: at(dir, name) };
        let found: nfs3::LOOKUP3res = self.ask(NFS_PROGRAM::NFSPROC3_LOOKUP, &args).await;
        done(found).map(|found| found.object)
    }

    pub(super) async fn remove(&mut self, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let args = nfs3::REMOVE3args { object: at(dir, name) };
        let removed: nfs3::REMOVE3res = self.ask(NFS_PROGRAM::NFSPROC3_REMOVE, &args).await;
        done(removed).map(drop)
    }

    pub(super) async fn attributes(&mut self, object: &nfs_fh3) -> Result<nfs3::fattr3, nfsstat3> {
        let args = nfs3::GETATTR3args { object: object.clone() };
        let found: nfs3::GETATTR3res = self.ask(NFS_PROGRAM::NFSPROC3_GETATTR, &args).await;
        done(found).map(|found| found.obj_attributes)
    }

    pub(super) async fn set(
        &mut self,
        object: &nfs_fh3,
        new_attributes: sattr3,
    ) -> Result<nfs3::SETATTR3resok, nfsstat3> {
        let guard = Nfs3Option::None;
        let args = nfs3::SETATTR3args { object: object.clone(), new_attributes, guard };
        done(self.ask::<nfs3::SETATTR3res>(NFS_PROGRAM::NFSPROC3_SETATTR, &args).await)
    }

    pub(super) async fn write(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: nfs3::stable_how,
    ) -> Result<nfs3::WRITE3resok, nfsstat3> {
        let (file, count) = (file.clone(), data.len() as u32);
        let args = nfs3::WRITE3args { file, offset, count, stable, data: Opaque::borrowed(data) };
        done(self.ask::<nfs3::WRITE3res>(NFS_PROGRAM::NFSPROC3_WRITE, &args).await)
    }

    pub(super) async fn read(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), nfsstat3> {
        let args = nfs3::READ3args { file: file.clone(), offset, count };
        let heard = self.heard(nfs3::PROGRAM, 6, &packed(&args)).await.unwrap();
        let read: Nfs3Result<nfs3::READ3resok<'static>, nfs3::READ3resfail> = whole(&heard);
        done(read).map(|read| (read.data.to_vec(), read.eof))
    }

    /// Whether the server has hung up.
    pub(super) async fn is_over(&mut self) -> bool {
        self.pipe.read(&mut [0]).await.is_ok_and(|count| count == 0)
    }
}

pub(super) fn at<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) }
}

pub(super) fn packed(of: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    of.pack(&mut bytes).unwrap();
    bytes
}

pub(super) fn whole<T: Unpack>(bytes: &[u8]) -> T {
    let mut rest = bytes;
    let (value, _) = T::unpack(&mut rest).unwrap();
    assert!(rest.is_empty(), "the reply has {} bytes more", rest.len());
    value
}

pub(super) fn done<T, F>(result: Nfs3Result<T, F>) -> Result<T, nfsstat3> {
    match result {
        Nfs3Result::Ok(done) => Ok(done),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// Returns the handle of a volume's root, without asking.
pub(super) fn root_of(volume: &str) -> nfs_fh3 {
    super::handle::Handle { volume: id(volume), ino: ROOT }.encode(&Seal::with_secret(5))
}
