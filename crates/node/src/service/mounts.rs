//! File volumes for mounts. A mount comes to any host: when the volume's owner runs at another one,
//! its bytes go there.

use super::Service;
use super::forward::Forward;
use crate::assemble::Node;
use rekindle_base::Kind;
use rekindle_cluster::wire::Protocol;
use rekindle_env::{Address, Env};
use rekindle_file::Files;
use rekindle_front::conn::{Entered, Stop};
use rekindle_front::fuse::wire::Memory;
use rekindle_front::fuse::{self, Clients, End, HasGone, Mount};
use rekindle_front::http::Leaving;
use rekindle_front::http::api::ApiError;
use rekindle_front::nbd::forward::Way;
use rekindle_front::nfs::LEASE;
use rekindle_staging::Vault;
use rekindle_volume::Error;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The mounts that this host serves.
pub(crate) type Mounts = Clients<Files>;

impl Service {
    /// Brings a file volume of this node or a guest into service, with the node that serves it; the
    /// inner error is of the volume.
    pub(super) async fn files(
        &self,
        name: &str,
    ) -> Result<Result<(Arc<Node>, Files), Error>, ApiError> {
        let node = self.node().await?;
        let (node, files) = match Files::attach(&node.volumes, name).await {
            Err(Error::Elsewhere(name, owner)) => {
                let Some(guest) = self.guests().find(owner).await? else {
                    self.inner.arrivals.is_elsewhere(&name);
                    return Ok(Err(Error::Elsewhere(name, owner)));
                };
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
        if files.is_ok() {
            self.inner.arrivals.is_here(name, self.inner.env.now());
            node.volumes.client_is_back(name);
        }
        Ok(files.map(|files| (node, files)))
    }

    /// Brings a file volume of this node or a guest into service.
    pub async fn files_here(&self, name: &str) -> Result<Files, ApiError> {
        Ok(self.files(name).await??.1)
    }

    /// A mount of files that this host serves. `is_near`: the mount is at this host.
    pub(super) fn mount_of(&self, files: Files, is_near: bool) -> Mount<Files> {
        let vault = files.handle().vault();
        let (node, since) = files.handle().staged().memory();
        Mount {
            volume: vault.name.clone(),
            id: vault.id,
            // What is not durable may be gone with the daemon, with the machine, or when another
            // host takes its log over. A mount that outlives that must not have been told of it.
            durably: !is_near || vault.copies > 0 || !files.handle().staged().outlives_process(),
            memory: Memory { node: node.0, since: since.0 },
            target: files,
            clients: self.inner.mounts.clone(),
            budget: self.sessions().budget().clone(),
            has_gone: self.gone_clients(),
        }
    }

    /// Says of clients of NFS that they have gone.
    fn gone_clients(&self) -> Arc<HasGone> {
        let (service, env) = (self.clone(), self.inner.env.clone());
        Arc::new(move |holder, since| match service.inner.nfs_server.get() {
            Some(server) => server.has_gone(holder, since),
            None => env.now() - since > LEASE,
        })
    }

    /// Serves a mount over a connection that leaves HTTP. A mount that comes back says what it is
    /// `of`.
    pub(super) async fn serve_mount(
        &self,
        name: &str,
        of: Option<String>,
        connection: Leaving,
    ) -> Result<String, ApiError> {
        let files = match self.files(name).await? {
            Ok((_, files)) => files,
            Err(elsewhere @ Error::Elsewhere(..)) => {
                let node = self.node().await?;
                if node.membership().is_none() {
                    return Err(elsewhere.into());
                }
                let of = same_content(&node.volumes.show(name).await?.vault, of)?;
                self.pass_mount(&node, name, connection).await?;
                return Ok(of);
            }
            Err(error) => return Err(error.into()),
        };
        let of = same_content(files.handle().vault(), of)?;
        let (env, entered) = (self.inner.env.clone(), self.enter_mount()?);
        let mount = self.mount_of(files, true);
        env.clone().spawn_foreground("fuse", async move {
            entered
                .run(|stop| async move {
                    match connection.await {
                        Ok(pipe) => fuse::serve(&env, pipe, mount, stop).await,
                        Err(error) => tracing::debug!(%error, "a mount went before it began"),
                    }
                })
                .await;
        });
        Ok(of)
    }

    fn enter_mount(&self) -> Result<Entered, ApiError> {
        let here = Address::Unix("mount".into());
        self.sessions().enter(&self.inner.env, &here).ok_or_else(|| {
            let message = "the daemon has too many clients, or stops: try again";
            ApiError::new(Kind::Unavailable, message)
        })
    }

    /// Carries a mount's bytes to the host at which the volume's owner runs.
    async fn pass_mount(
        &self,
        node: &Arc<Node>,
        name: &str,
        connection: Leaving,
    ) -> Result<(), ApiError> {
        let entered = self.enter_mount()?;
        let way = Forward::new(self, node, name);
        let (told, opened) = oneshot::channel();
        let (env, volume) = (node.env.clone(), name.to_owned());
        node.env.spawn_foreground("fuse-forwarded", async move {
            entered.run(|stop| pass(env, volume, way, (told, connection), stop)).await;
        });
        opened
            .await
            .unwrap_or_else(|_| Err(ApiError::new(Kind::Unavailable, "the daemon is stopping")))
    }
}

/// Says what a mount of a volume is of. One that comes back is refused if that is something else by
/// now: numbers of inodes that it holds would be other files.
fn same_content(vault: &Vault, of: Option<String>) -> Result<String, ApiError> {
    let rewound = vault.rewound.map_or(0, |generation| generation.0);
    let now = format!("{}-{rewound}", vault.id);
    match of {
        Some(before) if before != now => {
            let id = vault.id.to_string();
            let what = match before.starts_with(&id) {
                true => "went back to an earlier content since it was mounted",
                false => "is not the one that was mounted: that one was removed",
            };
            Err(ApiError::new(Kind::Invalid, format!("volume '{}' {what}", vault.name)))
        }
        _ => Ok(now),
    }
}

/// Opens a passage, tells whether that has worked, and carries the mount's bytes over it.
async fn pass(
    env: Env,
    volume: String,
    way: Forward,
    (told, connection): (oneshot::Sender<Result<(), ApiError>>, Leaving),
    stop: Stop,
) {
    let far = match way.open_files(Protocol::Fuse).await {
        Ok(far) => far,
        // The mount may have gone.
        Err(error) => return drop(told.send(Err(error))),
    };
    if told.send(Ok(())).is_err() {
        return;
    }
    let near = match connection.await {
        Ok(near) => near,
        Err(error) => return tracing::debug!(%error, "a mount went before it began"),
    };
    tracing::info!(volume, "mount connected, and is served by another host");
    match fuse::carry(&env, (near, far), || way.has_moved(), stop).await {
        End::Garbage(garbage) => {
            tracing::warn!(volume, reason = %garbage, "mount hung up on");
        }
        end => tracing::info!(volume, ?end, "mount disconnected from another host"),
    }
}
