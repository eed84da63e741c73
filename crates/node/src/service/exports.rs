//! The NBD exports: block volumes by name.

use super::Service;
use rekindle_block::KIND;
use rekindle_env::BoxFuture;
use rekindle_front::http::api::ApiError;
use rekindle_front::nbd::{ExportError, Exports, VolumeMeters};
use rekindle_volume::Error;
use std::sync::Arc;

impl Exports for Service {
    type Device = rekindle_block::Device;

    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, ExportError>> {
        Box::pin(async move {
            let node = self.node().await.map_err(unavailable)?;
            Ok(node.volumes.names(KIND).await?)
        })
    }

    fn meters(&self, device: &rekindle_block::Device) -> Arc<VolumeMeters> {
        let vault = device.handle().vault();
        self.inner.meters.of(vault.id, &vault.name)
    }

    fn attach<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<rekindle_block::Device, ExportError>> {
        Box::pin(async move {
            let node = self.node().await.map_err(unavailable)?;
            let attached = rekindle_block::Device::attach(&node.volumes, name).await;
            let (node, device) = match attached {
                Err(Error::Elsewhere(name, owner)) => {
                    let guest = self.guests().find(owner).await.map_err(unavailable)?;
                    let guest = guest.ok_or(Error::Elsewhere(name.clone(), owner))?;
                    let device = rekindle_block::Device::attach(&guest.volumes, &name).await?;
                    (guest, device)
                }
                attached => (node, attached?),
            };
            node.volumes.client_is_back(name);
            Ok(device)
        })
    }
}

fn unavailable(error: ApiError) -> ExportError {
    ExportError { kind: error.kind, message: error.message }
}
