//! The exports of NBD: volumes by their names.

use super::Service;
use env::BoxFuture;
use front::http::api::ApiError;
use front::nbd::{Export, ExportError, Exports};

impl Exports for Service {
    type Device = block::Device;

    fn list(&self) -> BoxFuture<'_, Result<Vec<Export>, ExportError>> {
        Box::pin(async move {
            let infos = self.node().await.map_err(unavailable)?.volumes.list().await?;
            let exports = infos.into_iter().map(|info| Export {
                description: format!("{} volume, {}", info.vault.kind, info.state.as_str()),
                name: info.vault.name,
                size: info.vault.size,
            });
            Ok(exports.collect())
        })
    }

    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<block::Device, ExportError>> {
        Box::pin(async move {
            let node = self.node().await.map_err(unavailable)?;
            Ok(block::Device::new(node.volumes.attach(name).await?))
        })
    }
}

fn unavailable(error: ApiError) -> ExportError {
    ExportError { kind: error.kind, message: error.message }
}
