//! The HTTP API of snapshots, versions and the trash, and of names and sizes of volumes.

use super::Service;
use super::cluster::at_another_host;
use crate::assemble::Node;
use crate::limits;
use rekindle_base::Kind;
use rekindle_front::http::api::kept::{
    CloneVolume, Keep, Rename, Resize, Restore, Rollback, TakeSnapshot,
};
use rekindle_front::http::api::{Answer, ApiError, Volume};
use rekindle_volume::{
    Error as VolumeError, TrashedVolume, VolumeSnapshot, VolumeVersion, WriteSettings,
};
use std::sync::Arc;

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
            let new_name = request.name;
            let restore = |node: Arc<Node>| {
                let new_name = new_name.clone();
                async move { node.volumes.restore(name, new_name.as_deref()).await }
            };
            Ok(self.words(self.at_its_owner(name, restore).await?))
        })
    }

    fn purge_volume<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let purge = |node: Arc<Node>| async move { node.volumes.purge(name).await };
            self.at_its_owner(name, purge).await.map(drop)
        })
    }
}

impl Service {
    /// Does work on volumes in the trash: here, or at the guest that owns them. The name of a
    /// volume in the trash is free, so it leads to no owner; the work finds that.
    async fn at_its_owner<T, F: Future<Output = Result<T, VolumeError>>>(
        &self,
        name: &str,
        work: impl Fn(Arc<Node>) -> F,
    ) -> Result<T, ApiError> {
        let home = self.reachable().await?;
        let mut node = home.clone();
        // Volumes of one name may have several owners, who take turns.
        for _ in 0..limits::OWNERS_OF_A_NAME_MAX {
            let owner = match work(node.clone()).await {
                Err(VolumeError::Elsewhere(_, owner)) => owner,
                done => return Ok(done?),
            };
            match self.nodes().into_iter().find(|guest| guest.id == owner) {
                Some(guest) => node = guest,
                None => match home.membership() {
                    Some(membership) => {
                        return Err(at_another_host(&membership.member, name, owner).await);
                    }
                    None => return Err(VolumeError::Elsewhere(name.to_owned(), owner).into()),
                },
            }
        }
        let message = format!("the owners of '{name}' change all the time: try again");
        Err(ApiError::new(Kind::Unavailable, message))
    }
}
