//! File volumes for NFS clients.

use super::Service;
use super::forward::Forward;
use rekindle_base::{Kind, VolumeId};
use rekindle_cluster::wire::Protocol;
use rekindle_env::{Acceptor, BoxFuture, Moment, Stream};
use rekindle_file::{Files, KIND, Seal};
use rekindle_front::http::api::ApiError;
use rekindle_front::nbd::forward::Way as _;
use rekindle_front::nfs::forward::Way;
use rekindle_front::nfs::{self, Export, Exports, Settings};
use rekindle_staging::Beginning;
use rekindle_volume::Error;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The file in the node's folder that says which clients are in which volumes, and its longest
/// accepted length in bytes. Page: docs/format/nfs.md.
const CLIENTS: &str = "nfs-clients.json";
const CLIENTS_BYTES_MAX: u64 = 4 << 20;

impl Service {
    /// Accepts NFS clients.
    pub(crate) fn start_nfs(&self, acceptors: Vec<Box<dyn Acceptor>>, settings: Settings) {
        let places = acceptors.iter().map(|acceptor| acceptor.address()).collect();
        // A service is started once.
        let _ = self.inner.nfs_places.set(places);
        let exports = Arc::new(self.clone());
        let begin = || Arc::new(nfs::Server::new(self.inner.env.clone(), exports, settings));
        let server = self.inner.nfs_server.get_or_init(begin);
        nfs::serve(&self.inner.env, acceptors, server, self.nfs_sessions());
    }

    async fn export(&self, name: &str) -> Result<Export<Files>, Error> {
        let (node, files) = match self.files(name).await.map_err(of_volume)? {
            Err(Error::Elsewhere(name, owner)) => {
                let node = self.node().await.map_err(of_volume)?;
                // A node in no cluster knows no way to another one.
                let has_way = node.membership().is_some();
                return Err(if has_way { Error::Elsewhere(name, owner) } else { Error::Stopping });
            }
            files => files.map_err(|error| of_volume(error.into()))?,
        };
        let vault = files.handle().vault();
        let Beginning { node: first, incarnation, generation } =
            files.handle().staged().beginning();
        let began = [&first.0[..], &incarnation.0.to_le_bytes(), &generation.0.to_le_bytes()];
        let verifier = Seal::of(&node.content).check(&began.concat()).to_be_bytes();
        Ok(Export { id: vault.id, name: vault.name.clone(), files, verifier })
    }
}

/// Returns an error as one of volumes.
fn of_volume(error: ApiError) -> Error {
    match error.kind {
        Kind::NotFound => Error::NotFound(error.message),
        Kind::Unavailable | Kind::Fenced | Kind::Conflict => Error::Stopping,
        _ => Error::Invalid(error.message),
    }
}

impl Exports for Service {
    type Files = Files;

    fn seal(&self) -> BoxFuture<'_, Result<Seal, Error>> {
        Box::pin(async { Ok(Seal::of(&self.node().await.map_err(of_volume)?.content)) })
    }

    fn host(&self) -> BoxFuture<'_, Result<[u8; 16], Error>> {
        Box::pin(async { Ok(self.node().await.map_err(of_volume)?.id.0) })
    }

    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, Error>> {
        Box::pin(async { self.node().await.map_err(of_volume)?.volumes.names(KIND).await })
    }

    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Export<Files>, Error>> {
        Box::pin(async move { self.export(name).await })
    }

    fn find(&self, id: VolumeId) -> BoxFuture<'_, Result<Export<Files>, Error>> {
        Box::pin(async move {
            let node = self.node().await.map_err(of_volume)?;
            let name = node.volumes.name_of(id).await?;
            let export = self.export(&name).await?;
            // The name may have gone to another volume meanwhile.
            if export.id == id { Ok(export) } else { Err(Error::NotFound(name)) }
        })
    }

    fn has_mount_gone(&self, volume: VolumeId, mount: u64, since: Moment) -> bool {
        self.inner.mounts.has_gone((volume, mount), since, self.inner.env.now())
    }

    fn is_stopping(&self) -> bool {
        self.inner.shutdown.borrow().is_some()
    }

    fn remember(&self, bytes: Vec<u8>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Ok(node) = self.node().await else { return };
            let written = node.env.replace_file(&node.config.dir, CLIENTS, &bytes).await;
            if let Err(error) = written {
                tracing::warn!(%error, "which NFS clients are where is in memory only: {CLIENTS}");
            }
        })
    }

    fn remembered(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async {
            let node = self.node().await.map_err(|error| error.message)?;
            match node.env.read_file(&node.config.dir.join(CLIENTS), CLIENTS_BYTES_MAX).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => {
                    tracing::warn!(%error, "where NFS clients were is not known: {CLIENTS}");
                    Ok(None)
                }
            }
        })
    }

    fn way(&self, machine: &str, volume: &str) -> Arc<dyn Way> {
        let (machine, volume) = (machine.to_owned(), volume.to_owned());
        Arc::new(ToOwner { service: self.clone(), machine, volume, forward: OnceCell::new() })
    }
}

/// The way of a machine's calls to the host at which a volume's owner runs.
struct ToOwner {
    service: Service,
    machine: String,
    volume: String,
    forward: OnceCell<Forward>,
}

impl ToOwner {
    /// The machine is one client at the owner's host, however often it comes: its next line begins
    /// when the last one has ended, with all changes that it has begun.
    async fn forward(&self) -> Result<&Forward, ApiError> {
        let begin = async || {
            let node = self.service.node().await?;
            let words = [self.machine.as_bytes(), &[0], self.volume.as_bytes(), &node.id.0];
            let seal = Seal::of(&node.content);
            let half = |name: &[u8]| seal.check(&[name, &words.concat()].concat()).to_be_bytes();
            let client = [half(b"nfs line 1"), half(b"nfs line 2")].concat();
            let client = client.try_into().expect("two halves of 8 bytes");
            Ok::<_, ApiError>(Forward::of(&self.service, &node, &self.volume, client))
        };
        self.forward.get_or_try_init(begin).await
    }
}

impl Way for ToOwner {
    fn open(&self) -> BoxFuture<'_, Result<Box<dyn Stream>, String>> {
        Box::pin(async {
            let forward = self.forward().await.map_err(|error| error.message)?;
            forward.open_files(Protocol::Nfs).await.map_err(|error| error.message)
        })
    }

    fn has_moved(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            match self.forward.get() {
                Some(forward) => forward.has_moved().await,
                None => false,
            }
        })
    }
}
