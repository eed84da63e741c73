//! File volumes for mounts.

use super::Service;
use crate::assemble::Node;
use rekindle_base::Kind;
use rekindle_env::Address;
use rekindle_file::Files;
use rekindle_front::fuse::{self, Clients, Mount};
use rekindle_front::http::Leaving;
use rekindle_front::http::api::ApiError;
use rekindle_volume::Error;
use std::sync::Arc;

/// The mounts that this host serves.
pub(crate) type Mounts = Clients<Files>;

impl Service {
    /// Brings a file volume of this node or a guest into service.
    pub(super) async fn files(&self, name: &str) -> Result<(Arc<Node>, Files), ApiError> {
        let node = self.node().await?;
        let (node, files) = match Files::attach(&node.volumes, name).await {
            Err(Error::Elsewhere(name, owner)) => {
                let guest = self.guests().find(owner).await?;
                let guest = guest.ok_or_else(|| Error::Elsewhere(name.clone(), owner))?;
                let began = guest.env.now();
                let files = Files::attach(&guest.volumes, &name).await;
                if let Ok(files) = &files {
                    let found = files.handle().staged().owed_bytes();
                    let times = (began, guest.env.now());
                    self.inner.recoveries.attached(owner, (&name, found), times);
                }
                (guest, files)
            }
            files => (node, files),
        };
        let files = files?;
        node.volumes.client_is_back(name);
        Ok((node, files))
    }

    /// Serves a mount over a connection that leaves HTTP.
    pub(super) async fn serve_mount(
        &self,
        name: &str,
        connection: Leaving,
    ) -> Result<(), ApiError> {
        let (_, files) = self.files(name).await?;
        let env = self.inner.env.clone();
        let here = Address::Unix("mount".into());
        let entered = self.sessions().enter(&env, &here).ok_or_else(|| {
            let message = "the daemon has too many clients, or stops: try again";
            ApiError::new(Kind::Unavailable, message)
        })?;
        let vault = files.handle().vault();
        let mount = Mount {
            volume: vault.name.clone(),
            id: vault.id,
            target: files,
            clients: self.inner.mounts.clone(),
            budget: self.sessions().budget().clone(),
        };
        env.clone().spawn("fuse", async move {
            entered
                .run(|stop| async move {
                    match connection.await {
                        Ok(pipe) => fuse::serve(&env, pipe, mount, stop).await,
                        Err(error) => tracing::debug!(%error, "a mount went before it began"),
                    }
                })
                .await;
        });
        Ok(())
    }
}
