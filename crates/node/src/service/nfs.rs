//! File volumes for NFS clients.

use super::Service;
use rekindle_base::{Kind, VolumeId};
use rekindle_env::{Acceptor, BoxFuture};
use rekindle_file::{Files, KIND, Seal};
use rekindle_front::http::api::ApiError;
use rekindle_front::nfs::{self, Export, Exports, Settings};
use rekindle_volume::Error;
use std::sync::Arc;

impl Service {
    /// Accepts NFS clients.
    pub(crate) fn start_nfs(&self, acceptors: Vec<Box<dyn Acceptor>>, settings: Settings) {
        let places = acceptors.iter().map(|acceptor| acceptor.address()).collect();
        // A service is started once.
        let _ = self.inner.nfs_places.set(places);
        let exports = Arc::new(self.clone());
        nfs::serve(&self.inner.env, acceptors, exports, settings, self.nfs_sessions());
    }

    async fn export(&self, name: &str) -> Result<Export<Files>, ApiError> {
        let (node, files) = self.files(name).await??;
        let vault = files.handle().vault();
        // Acknowledged and not synced is what this life of the owner has in its memory.
        let life =
            [&node.id.0[..], &node.incarnation.0.to_le_bytes(), &vault.generation.0.to_le_bytes()];
        let life = Seal::of(&node.content).check(&life.concat()).to_be_bytes();
        Ok(Export { id: vault.id, name: vault.name.clone(), files, life })
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
        Box::pin(async move { self.export(name).await.map_err(of_volume) })
    }

    fn find(&self, id: VolumeId) -> BoxFuture<'_, Result<Export<Files>, Error>> {
        Box::pin(async move {
            let node = self.node().await.map_err(of_volume)?;
            let name = node.volumes.name_of(id).await?;
            let export = self.export(&name).await.map_err(of_volume)?;
            // The name may have gone to another volume meanwhile.
            if export.id == id { Ok(export) } else { Err(Error::NotFound(name)) }
        })
    }
}
