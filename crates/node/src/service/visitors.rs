//! Clients of other hosts, whose volumes this host serves. Each has a session as any client has,
//! over the connection of its host.
//!
//! A client has one session: the next one begins when the last has ended, with all changes that it
//! has begun. Else a change that lies in the buffers of a connection that is over could come after
//! a newer one. A host that has begun anew has other clients than before, and the same machines
//! behind them: its first session begins when all of its earlier life have ended.

use super::Service;
use super::forward::{Row, label_of, name_of};
use super::words::unavailable;
use crate::cluster::Member;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use rekindle_base::{Incarnation, Kind, Life, NodeId};
use rekindle_block::Device;
use rekindle_cluster::forward::{Opened, Session, Volumes};
use rekindle_cluster::wire::{ClientId, Protocol, Serve, Served, Unserved};
use rekindle_env::{BoxFuture, Env, Moment, Stream};
use rekindle_file::Files;
use rekindle_front::conn::{Entered, Stop};
use rekindle_front::http::api::ForwardedClient;
use rekindle_front::nbd::{ExportError, serve_device};
use rekindle_front::{fuse, nfs};
use rekindle_volume::Error;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// The clients of other hosts.
#[derive(Default)]
pub(crate) struct Visitors {
    all: Mutex<Present>,
    /// Rung when one has left.
    left: Notify,
}

#[derive(Default)]
struct Present {
    clients: BTreeMap<ClientId, Visitor>,
    /// The latest life of each host that has asked for a session, by its home node.
    hosts: BTreeMap<NodeId, Incarnation>,
}

struct Visitor {
    row: Row,
    /// The life of its host.
    from: Life,
    /// Whether the volume counts it among its clients. It comes first, and waits for the volume.
    has_volume: bool,
    /// Asks the session to finish; `None` once asked.
    finish: Option<oneshot::Sender<()>>,
}

/// The row of a client; its drop removes it.
struct Enrolled {
    service: Service,
    client: ClientId,
}

/// A client of another host, as [`super::follow`] sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) client: ClientId,
    /// The home node of the client's host.
    pub(super) host: NodeId,
    /// The moment when it came.
    pub(super) since: Moment,
    /// Whether it has come through to the volume.
    pub(super) has_volume: bool,
}

impl Present {
    /// Lets a client in, if no session is there that must end before.
    fn admit(&mut self, from: Life, request: &Serve, now: Moment) -> Admission {
        let latest = self.hosts.entry(from.node).or_insert(from.incarnation);
        if from.incarnation < *latest {
            return Admission::Outlived;
        }
        *latest = from.incarnation;
        let must_end = |client: &ClientId, one: &Visitor| {
            *client == request.client || (one.from.node == from.node && one.from != from)
        };
        let mut waits = false;
        for (_, earlier) in self.clients.iter_mut().filter(|(client, one)| must_end(client, one)) {
            waits = true;
            drop(earlier.finish.take());
        }
        if waits {
            return Admission::Waits;
        }
        let (finish, finished) = oneshot::channel();
        let volume = request.volume.clone();
        let row = Row { volume, host: Some(from.node), waits: None, since: now };
        let visitor = Visitor { row, from, has_volume: false, finish: Some(finish) };
        self.clients.insert(request.client, visitor);
        Admission::Admitted(finished)
    }
}

enum Admission {
    /// The future completes when a later session of the client wants to begin.
    Admitted(oneshot::Receiver<()>),
    /// Earlier sessions have been asked to end.
    Waits,
    /// The client's host has begun anew since.
    Outlived,
}

impl Enrolled {
    fn has_volume(&self) {
        let mut all = self.service.inner.visitors.all.lock();
        if let Some(visitor) = all.clients.get_mut(&self.client) {
            visitor.has_volume = true;
        }
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        let visitors = &self.service.inner.visitors;
        visitors.all.lock().clients.remove(&self.client);
        visitors.left.notify_waiters();
    }
}

impl Visitors {
    /// The clients by their volumes.
    pub(super) fn of_volumes(&self) -> BTreeMap<String, Vec<Visit>> {
        let mut volumes = BTreeMap::<_, Vec<_>>::new();
        for (&client, &Visitor { ref row, from, has_volume, .. }) in &self.all.lock().clients {
            let visit = Visit { client, host: from.node, since: row.since, has_volume };
            volumes.entry(row.volume.clone()).or_default().push(visit);
        }
        volumes
    }

    /// The clients as a user sees them. `name` gives the name of a node.
    pub(crate) fn view(
        &self,
        now: Moment,
        name: impl Fn(NodeId) -> String,
    ) -> Vec<ForwardedClient> {
        self.all.lock().clients.values().map(|visitor| visitor.row.view(now, &name)).collect()
    }
}

/// Lets a client in, once the sessions have ended that must end before. `None`: its host has begun
/// anew since it asked.
async fn enroll(
    service: &Service,
    env: &Env,
    from: Life,
    request: &Serve,
) -> Option<(Enrolled, oneshot::Receiver<()>)> {
    let visitors = &service.inner.visitors;
    loop {
        let mut left = pin!(visitors.left.notified());
        // Before the look: no end after it is missed.
        left.as_mut().enable();
        let admission = visitors.all.lock().admit(from, request, env.now());
        match admission {
            Admission::Admitted(later) => {
                let client = request.client;
                return Some((Enrolled { service: service.clone(), client }, later));
            }
            Admission::Outlived => return None,
            Admission::Waits => left.await,
        }
    }
}

/// Brings a volume of a node that runs here into service for a client of another host. A volume of
/// any other node is refused: what comes from another host is never forwarded.
pub(super) async fn open(
    service: &Service,
    from: Life,
    request: Serve,
) -> Result<Opened, Unserved> {
    let node = service.node().await.map_err(|error| refusal(error.kind, error.message))?;
    let env = node.env.clone();
    let Some((enrolled, mut later)) = enroll(service, &env, from, &request).await else {
        return Err(refusal(Kind::Conflict, "its client's host has begun anew since".to_owned()));
    };
    let attached = {
        match select(pin!(attach(service, &request)), &mut later).await {
            Either::Left((attached, _)) => attached,
            Either::Right(_) => {
                let reason = "its client has a later session".to_owned();
                return Err(refusal(Kind::Conflict, reason));
            }
        }
    };
    let volume = match attached {
        Ok(Ok(volume)) => volume,
        Ok(Err(elsewhere @ Error::Elsewhere(..))) => {
            return Err(Unserved { kind: None, reason: elsewhere.to_string() });
        }
        Ok(Err(error)) => {
            let ExportError { kind, message } = error.into();
            return Err(refusal(kind, message));
        }
        Err(ExportError { kind, message }) => return Err(refusal(kind, message)),
    };
    enrolled.has_volume();
    let membership = node.membership();
    let address = membership.map(|membership| membership.member.contact().address);
    let entered = address.and_then(|address| service.sessions().enter(&env, &address));
    let entered = entered.ok_or_else(|| {
        let reason = "its owner's host has too many clients, or stops".to_owned();
        refusal(Kind::Unavailable, reason)
    })?;
    let served = volume.facts();
    let host = membership.map(|membership| label_of(&membership.member, from.node));
    let host = host.unwrap_or_else(|| from.node.to_string());
    tracing::info!(volume = request.volume, host, "serving a client of another host");
    let service = service.clone();
    let session: Session = Box::new(move |stream| {
        Box::pin(async move {
            let _enrolled = enrolled;
            run(env, stream, entered, later, |env, stream, stop| async move {
                match volume {
                    Volume::Disk(device) => {
                        let serve = (request.volume, device.clone(), service.meters_of(&device));
                        let budget = service.sessions().budget().clone();
                        drop(device);
                        serve_device(&env, stream, stop, serve, budget).await;
                    }
                    Volume::Files(files) => {
                        let mount = service.mount_of(files, false);
                        fuse::serve(&env, stream, mount, stop).await;
                    }
                    Volume::Exported(files, server) => {
                        let (id, budget) =
                            (files.handle().vault().id, service.nfs_sessions().budget().clone());
                        nfs::forward::serve(server, id, budget, stream, stop).await;
                        drop(files);
                    }
                }
            })
            .await;
        })
    });
    Ok(Opened { served, session })
}

/// A volume in service for a client of another host.
enum Volume {
    Disk(Device),
    Files(Files),
    Exported(Files, Arc<nfs::Server<Service>>),
}

impl Volume {
    fn facts(&self) -> Served {
        match self {
            Volume::Disk(device) => Served {
                volume: device.handle().vault().id,
                size: device.size(),
                block_size: device.block_size(),
            },
            Volume::Files(files) | Volume::Exported(files, _) => {
                let vault = files.handle().vault();
                Served { volume: vault.id, size: vault.size, block_size: 0 }
            }
        }
    }
}

async fn attach(service: &Service, request: &Serve) -> Result<Result<Volume, Error>, ExportError> {
    Ok(match request.protocol {
        Protocol::Nbd => service.attached(&request.volume).await?.map(Volume::Disk),
        Protocol::Fuse => {
            let files = service.files(&request.volume).await.map_err(unavailable)?;
            files.map(|(_, files)| Volume::Files(files))
        }
        Protocol::Nfs => {
            let Some(server) = service.inner.nfs_server.get().cloned() else {
                let message = "the owner's host does not serve yet".to_owned();
                return Err(ExportError { kind: Kind::Unavailable, message });
            };
            let files = service.files(&request.volume).await.map_err(unavailable)?;
            files.map(|(_, files)| Volume::Exported(files, server))
        }
    })
}

/// Runs a session until it ends: by itself, with the daemon, or for a later session of its client.
async fn run<F: Future<Output = ()>>(
    env: Env,
    stream: Box<dyn Stream>,
    entered: Entered,
    later: oneshot::Receiver<()>,
    serve: impl FnOnce(Env, Box<dyn Stream>, Stop) -> F,
) {
    entered
        .run(|stop| async move {
            let (finish, finished) = Stop::pair();
            let asked = async move {
                select(stop, later).await;
                drop(finish);
                std::future::pending::<()>().await
            };
            select(pin!(serve(env, stream, finished)), pin!(asked)).await;
        })
        .await;
}

fn refusal(kind: Kind, reason: String) -> Unserved {
    Unserved { kind: Some(kind), reason }
}

/// The volumes of this host, for other hosts.
pub(super) struct ForOthers {
    pub(super) service: Service,
}

impl Volumes for ForOthers {
    fn open(&self, from: Life, request: Serve) -> BoxFuture<'_, Result<Opened, Unserved>> {
        Box::pin(open(&self.service, from, request))
    }
}

/// The clients that go through this host or come from others, as a user sees them: those of this
/// host at others, and those of others here.
pub(super) fn view(
    service: &Service,
    member: &Member,
    now: Moment,
) -> (Vec<ForwardedClient>, Vec<ForwardedClient>) {
    let name = |node| name_of(member, node);
    (service.inner.forwards.view(now, name), service.inner.visitors.view(now, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_env::sim::{Faults, World};
    use rekindle_front::conn::Connections;
    use std::time::Duration;

    fn request(client: u8) -> Serve {
        Serve { client: [client; 16], volume: "vm1".to_owned(), protocol: Protocol::Nbd }
    }

    fn life(host: u8, incarnation: u64) -> Life {
        Life { node: NodeId([host; 16]), incarnation: Incarnation(incarnation) }
    }

    #[test]
    fn a_later_session_of_a_client_begins_when_the_earlier_one_has_ended() {
        let world = World::new(1, Faults::none());
        let env = world.env();
        let service = Service::new(env.clone(), vec![], vec![], Connections::new("nbd", 1));
        let from = life(3, 1);
        world.block_on(async {
            let first = enroll(&service, &env, from, &request(1)).await;
            let (first, asked) = first.expect("its host lives");
            let _other = enroll(&service, &env, from, &request(2)).await.expect("its host lives");
            let (one, other) = (request(1), Duration::from_secs(60));
            let mut later = pin!(enroll(&service, &env, from, &one));
            assert!(env.timeout(other, &mut later).await.is_err(), "the first has not ended");
            assert!(asked.await.is_err(), "it is asked to");
            assert_eq!(service.inner.visitors.view(env.now(), |_| String::new()).len(), 2);
            drop(first);
            drop(later.await.expect("its host lives"));
            assert_eq!(service.inner.visitors.view(env.now(), |_| String::new()).len(), 1);
        });
    }

    #[test]
    fn a_host_that_begins_anew_waits_for_the_sessions_of_its_earlier_life() {
        let world = World::new(1, Faults::none());
        let env = world.env();
        let service = Service::new(env.clone(), vec![], vec![], Connections::new("nbd", 1));
        world.block_on(async {
            let earlier = enroll(&service, &env, life(3, 1), &request(1)).await;
            let (earlier, asked) = earlier.expect("its host lives");
            let other = enroll(&service, &env, life(4, 9), &request(2)).await;
            let (_other, mut is_left_alone) = other.expect("its host lives");
            let (anew, minute) = (request(3), Duration::from_secs(60));
            let mut later = pin!(enroll(&service, &env, life(3, 2), &anew));
            assert!(env.timeout(minute, &mut later).await.is_err(), "the earlier has not ended");
            assert!(asked.await.is_err(), "it is asked to");
            assert!(is_left_alone.try_recv() == Err(oneshot::error::TryRecvError::Empty));
            drop(earlier);
            let _later = later.await.expect("its host lives");
            // What the earlier life asked comes late.
            assert!(enroll(&service, &env, life(3, 1), &request(4)).await.is_none());
        });
    }
}
