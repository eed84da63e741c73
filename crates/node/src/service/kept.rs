//! The HTTP API of versions and the trash, and of names and sizes of volumes.

use super::Service;
use super::words::refused;
use rekindle_front::http::api::kept::{Keep, Rename, Resize, Restore, Rollback};
use rekindle_front::http::api::{Answer, Volume};
use rekindle_volume::{TrashedVolume, VolumeVersion};

impl Service {
    fn shown(
        &self,
        outcome: Result<rekindle_volume::Info, rekindle_volume::Error>,
    ) -> Result<Volume, rekindle_front::http::api::ApiError> {
        outcome.map(|info| self.words(info)).map_err(|error| refused(&error))
    }
}

impl Keep for Service {
    fn rename_volume<'a>(&'a self, name: &'a str, request: Rename) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable().await?;
            let renamed = node.volumes.rename(name, &request.name).await;
            if renamed.is_ok() {
                self.inner.meters.rename(name, &request.name);
            }
            self.shown(renamed)
        })
    }

    fn resize_volume<'a>(&'a self, name: &'a str, request: Resize) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable().await?;
            self.shown(node.volumes.resize(name, request.size, request.shrink).await)
        })
    }

    fn versions<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeVersion>> {
        Box::pin(async move {
            let node = self.node().await?;
            let found = self.while_it_answers(&node, node.volumes.versions(name)).await?;
            found.map_err(|error| refused(&error))
        })
    }

    fn rollback_volume<'a>(&'a self, name: &'a str, request: Rollback) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable().await?;
            self.shown(node.volumes.rollback(name, &request.version, request.discard).await)
        })
    }

    fn trash(&self) -> Answer<'_, Vec<TrashedVolume>> {
        Box::pin(async move {
            let node = self.node().await?;
            let found = self.while_it_answers(&node, node.volumes.trashed()).await?;
            found.map_err(|error| refused(&error))
        })
    }

    fn restore_volume<'a>(&'a self, name: &'a str, request: Restore) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable().await?;
            self.shown(node.volumes.restore(name, request.name.as_deref()).await)
        })
    }

    fn purge_volume<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let node = self.reachable().await?;
            let purged = node.volumes.purge(name).await;
            purged.map(drop).map_err(|error| refused(&error))
        })
    }
}
