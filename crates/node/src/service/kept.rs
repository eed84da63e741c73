//! The HTTP API of snapshots, versions and the trash, and of names and sizes of volumes.

use super::Service;
use rekindle_front::http::api::kept::{
    CloneVolume, Keep, Rename, Resize, Restore, Rollback, TakeSnapshot,
};
use rekindle_front::http::api::{Answer, Volume};
use rekindle_volume::{TrashedVolume, VolumeSnapshot, VolumeVersion, WriteSettings};

impl Keep for Service {
    fn rename_volume<'a>(&'a self, name: &'a str, request: Rename) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            let renamed = node.volumes.rename(name, &request.name).await?;
            self.inner.meters.rename(name, &request.name);
            Ok(self.words(renamed))
        })
    }

    fn resize_volume<'a>(&'a self, name: &'a str, request: Resize) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            Ok(self.words(node.volumes.resize(name, request.size, request.shrink).await?))
        })
    }

    fn set_volume<'a>(&'a self, name: &'a str, settings: WriteSettings) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            Ok(self.words(node.volumes.set(name, settings).await?))
        })
    }

    fn versions<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeVersion>> {
        Box::pin(async move {
            let node = self.node_of(name).await?;
            Ok(self.while_it_answers(&node, node.volumes.versions(name)).await??)
        })
    }

    fn rollback_volume<'a>(&'a self, name: &'a str, request: Rollback) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            Ok(self.words(node.volumes.rollback(name, &request.version, request.discard).await?))
        })
    }

    fn snapshots<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeSnapshot>> {
        Box::pin(async move {
            let node = self.node_of(name).await?;
            Ok(self.while_it_answers(&node, node.volumes.snapshots(name)).await??)
        })
    }

    fn take_snapshot<'a>(
        &'a self,
        name: &'a str,
        request: TakeSnapshot,
    ) -> Answer<'a, VolumeSnapshot> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            Ok(node.volumes.take_snapshot(name, &request.name).await?)
        })
    }

    fn remove_snapshot<'a>(&'a self, name: &'a str, snapshot: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            Ok(node.volumes.remove_snapshot(name, snapshot).await?)
        })
    }

    fn clone_volume<'a>(&'a self, name: &'a str, request: CloneVolume) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            let CloneVolume { snapshot, name: new_name } = request;
            Ok(self.words(node.volumes.clone_of(name, &snapshot, &new_name).await?))
        })
    }

    fn trash(&self) -> Answer<'_, Vec<TrashedVolume>> {
        Box::pin(async move {
            let node = self.node().await?;
            Ok(self.while_it_answers(&node, node.volumes.trashed()).await??)
        })
    }

    fn restore_volume<'a>(&'a self, name: &'a str, request: Restore) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.reachable().await?;
            Ok(self.words(node.volumes.restore(name, request.name.as_deref()).await?))
        })
    }

    fn purge_volume<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let node = self.reachable().await?;
            node.volumes.purge(name).await?;
            Ok(())
        })
    }
}
