//! The cluster, for other nodes and for users.

use super::follow;
use super::forward::{label_of, name_of};
use super::guests::{self, Heir};
use super::left;
use super::named::{conflict, invalid, meant, member_of};
use super::visitors::{self, ForOthers};
use crate::assemble::Node;
use crate::cluster::member_file::MemberFile;
use crate::cluster::{Joined, Member, open_holder, record};
use crate::guests::Guest as State;
use crate::health;
use crate::record::NodeRecord;
use crate::service::Service;
use crate::{Error, limits};
use futures_util::future::join_all;
use rekindle_base::{Kind, Life, NodeId};
use rekindle_cluster::machine::holder;
use rekindle_cluster::machine::owner::Stand;
use rekindle_cluster::owner::View;
use rekindle_cluster::roster::{Entry, Roster};
use rekindle_cluster::watch::Watch;
use rekindle_cluster::{Desk, HeldNode, Secret};
use rekindle_env::{Address, BoxFuture};
use rekindle_front::http::api::{ApiError, Cluster, ClusterNode, CopiesHolder, Guest, HeldCopies};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Begins the node's part in its cluster, if it is in one, and starts the guests that it had.
pub async fn begin(service: &Service, node: &Arc<Node>) -> Result<(), Error> {
    service.inner.recoveries.load(&node.env, &node.config.dir).await;
    take_part(service, node).await?;
    guests::start(service, node).await;
    left::begin(service, node).await?;
    Ok(())
}

/// Lets other nodes call, and has lost ones taken over.
async fn take_part(service: &Service, node: &Arc<Node>) -> Result<(), Error> {
    let Some(membership) = node.membership() else { return Ok(()) };
    let member = membership.member.clone();
    let contact = member.contact();
    let acceptor = node.env.net().listen(&contact.address).await.map_err(|error| {
        Error::Usage(format!("other nodes cannot be heard at {}: {error}", contact.address))
    })?;
    let (weak, met) = (Arc::downgrade(node), Arc::downgrade(node));
    let meeting = service.clone();
    let desk = Desk {
        calls: member.calls.clone(),
        holder: member.holder.clone(),
        met: Box::new(move || {
            let nodes = met.upgrade().into_iter().chain(meeting.guests().serving());
            for node in nodes {
                node.membership().inspect(|membership| membership.keeping.met());
            }
        }),
        drain: Box::new(move |on| -> BoxFuture<'static, Result<(), String>> {
            let node = weak.clone();
            Box::pin(async move {
                let node = node.upgrade().ok_or("the node is stopping")?;
                set_draining(&node, on).await
            })
        }),
        volumes: Arc::new(ForOthers { service: service.clone() }),
    };
    node.env.spawn_foreground("cluster-serve", rekindle_cluster::serve(acceptor, Arc::new(desk)));
    node.env.spawn_foreground("cluster-watch", watch(service, node, &member).run());
    let measured = member.holder.clone();
    if let Some(after) = node.config.cluster.follow_clients {
        let following = follow::follow(service.clone(), Arc::downgrade(node), after);
        node.env.spawn("follow-clients", following);
    }
    node.env.spawn("cluster-measure", async move { measured.measure().await });
    node.env.spawn("cluster-greet", greet(member.clone()));
    node.env.spawn("cluster-keys", renew_keys(service.clone(), Arc::downgrade(node)));
    Ok(())
}

/// The watch over the owners of the copies here.
fn watch(service: &Service, node: &Arc<Node>, member: &Member) -> Watch {
    let heir = Heir { service: service.clone(), host: Arc::downgrade(node) };
    Watch {
        calls: member.calls.clone(),
        holder: member.holder.clone(),
        successor: Arc::new(heir),
        pace: member.pace,
    }
}

/// Tells all other nodes that this one has news.
async fn greet(member: Arc<Member>) {
    let all = match member.roster.read_all().await {
        Ok(all) => all,
        Err(why) => return tracing::debug!(why, "the other nodes are not known yet"),
    };
    let me = member.calls.home.node;
    let others = all.iter().filter(|entry| entry.node == entry.host && entry.node != me);
    let greeted =
        others.filter(|entry| entry.contact.is_some() && !entry.is_removed).map(|entry| {
            let member = member.clone();
            async move {
                if let Err(why) = member.calls.greet(entry.node, limits::ANSWER_WAIT).await {
                    tracing::debug!(node = %entry.node, why, "a node was not greeted");
                }
            }
        });
    join_all(greeted).await;
}

/// Replaces the key of this host before its time is over.
async fn renew_keys(service: Service, node: Weak<Node>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let member = node.membership().map(|membership| membership.member.clone());
        if let Some(member) = member
            && member.needs_key().await
            && let Err(error) = rotate(&service, &node).await
        {
            tracing::warn!(error = error.message, "the key of this host is not renewed");
        }
        let env = node.env.clone();
        drop(node);
        env.sleep(limits::KEY_LOOK_INTERVAL).await;
    }
}

async fn set_draining(node: &Arc<Node>, on: bool) -> Result<(), String> {
    node.own.change(|record| record.draining = on).await?;
    if let Some(membership) = node.membership() {
        node.env.spawn("cluster-greet", greet(membership.member.clone()));
    }
    Ok(())
}

/// Tells the holders of a node's copies, and the store, that it stops in good order: it is not
/// taken over.
pub(crate) async fn rest(node: &Node) {
    let Some(membership) = node.membership() else { return };
    let noted = node.own.change(|record| record.resting = true);
    match node.env.timeout(limits::LEAVE_WAIT, noted).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::debug!(why, "this node has another life"),
        Err(_) => tracing::debug!("the store does not know that this node stops"),
    }
    membership.keeping.rest().await;
}

/// The answer to a command about a volume whose owner runs at another host.
pub(super) async fn at_another_host(member: &Member, volume: &str, owner: NodeId) -> ApiError {
    let entry = match member.roster.read(owner).await {
        Ok(entry) => entry,
        Err(_) => member.roster.find(owner),
    };
    let host = entry.as_ref().map(|entry| label_of(member, entry.host));
    let contact = entry.as_ref().and_then(|entry| Some((entry.host, entry.contact.as_ref()?)));
    let place = match contact {
        Some((host, contact)) if host == owner => format!("{} ({})", contact.name, contact.address),
        Some((host, contact)) => {
            format!("{} ({}), as a guest", label_of(member, host), contact.address)
        }
        None => "which this node does not know".to_owned(),
    };
    let refused = conflict(format!(
        "volume '{volume}' is owned by node {owner}, which runs at the host {place}: give the command there"
    ));
    match host {
        Some(host) => refused.at_host(host),
        None => refused,
    }
}

/// Makes a cluster over the store, with this node as its first member.
pub(crate) async fn init(service: &Service, node: &Arc<Node>) -> Result<Cluster, ApiError> {
    let config = &node.config;
    if node.membership().is_some() {
        return Err(ApiError::new(
            Kind::Exists,
            "this node is in a cluster already: `rekindle cluster token` prints its token",
        ));
    }
    let Some(advertised) = &config.cluster.advertise else {
        return Err(invalid(
            "other nodes must know how to reach this one: start it with `rekindle up --advertise HOST:PORT`"
                .to_owned(),
        ));
    };
    let address: Address = advertised.parse().map_err(|bad| invalid(format!("{bad}")))?;
    let kept = MemberFile::read(&node.env, &config.dir).await.map_err(guests::words)?;
    let (file, secret) = match kept {
        // An earlier attempt was broken off.
        Some(file) => (file.clone(), file.secret().map_err(invalid)?),
        None => {
            let secret = Secret::new(&node.env);
            (MemberFile::new(node.identity.store, &secret), secret)
        }
    };
    // First: a cluster without a known secret would be in the way for ever.
    file.write(&node.env, &config.dir).await.map_err(guests::words)?;
    if !record::create(&node.writer, &secret).await.map_err(failed)?
        && record::is_secret(&node.writer, &secret).await.map_err(failed)? != Some(true)
    {
        return Err(ApiError::new(
            Kind::Exists,
            "the store has a cluster already: `rekindle cluster token` on one of its nodes prints the token, \
             `rekindle up --join TOKEN` joins it",
        ));
    }
    let holder = open_holder(&node.env, config, node.scale()).await.map_err(guests::words)?;
    let joined = Joined::new(&node.env, config, file, (address, holder), node.scale());
    let joined = joined.await.map_err(guests::words)?;
    let note = joined.note(node.id);
    node.own.change(|record| record.peer = Some(note.clone())).await.map_err(conflict)?;
    let home = Life { node: node.id, incarnation: node.incarnation };
    let member = joined.member(&node.writer, config, (&node.identity, node.scale()), home);
    let member = member.map_err(guests::words)?;
    let file_of_copies = node.node_file.of_copies(node.incarnation).await.map_err(guests::words)?;
    node.keep_copies(member, file_of_copies, Vec::new());
    take_part(service, node).await.map_err(guests::words)?;
    Ok(show(service, node).await)
}

fn failed(error: rekindle_datastore::Error) -> ApiError {
    ApiError::new(error.kind(), error.to_string())
}

/// Replaces the key of this host, while connections go on.
pub(crate) async fn rotate(service: &Service, node: &Arc<Node>) -> Result<(), ApiError> {
    let member = member_of(node)?.member.clone();
    member.make_key().await.map_err(guests::words)?;
    note_place(service, node, &member).await?;
    member.use_new_key().await.map_err(guests::words)?;
    // Connections that begin just now may have been begun with the old key.
    node.env.sleep(limits::KEY_OVERLAP).await;
    member.forget_old_keys().await.map_err(guests::words)?;
    note_place(service, node, &member).await
}

/// Writes the way to this host into the records of all nodes that run here.
async fn note_place(service: &Service, node: &Arc<Node>, member: &Member) -> Result<(), ApiError> {
    for node in [vec![node.clone()], service.guests().serving()].concat() {
        let note = |record: &mut NodeRecord| record.peer = Some(member.note_for(Some(record)));
        node.own.change(note).await.map_err(conflict)?;
    }
    Ok(())
}

/// Has a node take no further copies, and owners find others, or ends that.
pub(crate) async fn drain(node: &Arc<Node>, word: &str, on: bool) -> Result<(), ApiError> {
    let member = member_of(node)?.member.clone();
    let wanted = meant(&member, word).await?;
    if wanted.node == node.id {
        return set_draining(node, on).await.map_err(conflict);
    }
    let asked = member.calls.drain(wanted.host, on, limits::ANSWER_WAIT).await;
    asked.map_err(|why| ApiError::new(Kind::Unavailable, why))
}

/// Takes a node over, although it may be well.
pub(crate) async fn take_over(
    service: &Service,
    node: &Arc<Node>,
    word: &str,
) -> Result<Guest, ApiError> {
    let member = member_of(node)?.member.clone();
    let wanted = meant(&member, word).await?.node;
    watch(service, node, &member).take_over(wanted).await.map_err(conflict)?;
    guest_of(service, node, wanted, "is no guest any more")
}

/// Goes on with the node of a folder that a user has found.
pub(crate) async fn adopt(
    service: &Service,
    node: &Arc<Node>,
    folder: PathBuf,
) -> Result<Guest, ApiError> {
    let id = guests::adopt(service, node, folder).await?;
    guest_of(service, node, id, "is this node itself")
}

/// A guest as a user sees it. `else_it`: what a node is that is no guest.
fn guest_of(service: &Service, host: &Node, id: NodeId, else_it: &str) -> Result<Guest, ApiError> {
    match service.guests().all().get(&id) {
        Some(guest) => Ok(describe(host, id, guest)),
        None => Err(conflict(format!("node {id} {else_it}"))),
    }
}

/// Removes a node for ever that is gone for good: it is not started any more, and no sweep waits
/// for it.
pub(crate) async fn remove(
    service: &Service,
    node: &Arc<Node>,
    word: &str,
) -> Result<(), ApiError> {
    let member = member_of(node)?.member.clone();
    let wanted = meant(&member, word).await?;
    let id = wanted.node;
    if id == node.id {
        return Err(conflict(format!("node {id} runs here: stop it first")));
    }
    let guest = service.guests().all().remove(&id);
    if guest.is_none() && member.calls.offer(wanted.host, limits::ANSWER_WAIT).await.is_ok() {
        return Err(conflict(match wanted.host == id {
            true => format!("node {id} answers: stop it first"),
            false => format!("node {id} goes on at node {}: remove it there", wanted.host),
        }));
    }
    let volumes = node.volumes.list().await?;
    let owned: Vec<_> = volumes.iter().filter(|info| info.vault.owner == Some(id)).collect();
    if let Some(first) = owned.first() {
        return Err(conflict(format!(
            "node {id} has {} volume(s), '{}' among them: its copies or its folder go on with them, see `rekindle cluster \
             takeover --help` and `rekindle cluster adopt --help`",
            owned.len(),
            first.vault.name
        )));
    }
    let writer = node.writer_of(id);
    let held = crate::record::read(&writer).await.map_err(failed)?;
    let held = held.ok_or_else(|| conflict(format!("node {id} has no record any more")))?;
    let mut removed = held.value.clone();
    removed.removed = true;
    let signed = writer.with_incarnation(held.value.incarnation);
    signed.replace(&held, removed).await.map_err(failed)?;
    if let Some(State::Serving(guest)) = guest {
        guest.doubt.notify_one();
    }
    let dismissed = node.sweeper.dismiss(id).await;
    dismissed.map(drop).map_err(|error| ApiError::new(error.kind(), error.to_string()))
}

/// The cluster as a user sees it. Asks all nodes whether they are there.
pub(crate) async fn show(service: &Service, node: &Arc<Node>) -> Cluster {
    let guests = service.guests().all();
    let described = guests.iter().map(|(id, guest)| describe(node, *id, guest)).collect::<Vec<_>>();
    let Some(membership) = node.membership() else {
        return Cluster { node: node.id.to_string(), guests: described, ..Cluster::default() };
    };
    let member = &membership.member;
    let contact = member.contact();
    let all = member.roster.read_all().await;
    let problem = all.as_ref().err().cloned();
    let all = all.unwrap_or_else(|_| member.roster.known());
    let shown = all.iter().map(async |entry| node_of(node, member, entry).await);
    let held = member.holder.list().await;
    let (forwarded, visitors) = visitors::view(service, member, node.env.now());
    Cluster {
        member: true,
        node: node.id.to_string(),
        name: contact.name,
        address: contact.address.to_string(),
        domain: contact.domain,
        problem,
        nodes: join_all(shown).await,
        holders: membership.keeping.view().iter().map(holder_words).collect(),
        held: held.iter().map(|one| held_words(node, member, one)).collect(),
        guests: described,
        forwarded,
        visitors,
    }
}

async fn node_of(node: &Node, member: &Member, entry: &Arc<Entry>) -> ClusterNode {
    let contact = entry.contact.clone();
    let is_here = entry.host == node.id;
    let answers = match &contact {
        _ if is_here => true,
        Some(_) if !entry.is_removed => {
            member.calls.offer(entry.host, limits::ANSWER_WAIT).await.is_ok()
        }
        _ => false,
    };
    let state = match entry {
        entry if entry.is_removed => "removed",
        entry if entry.contact.is_none() => "no member",
        entry if entry.is_resting => "stopped",
        _ if !answers => "silent",
        entry if entry.host != entry.node => "taken over",
        entry if entry.is_draining => "draining",
        _ => "well",
    };
    let (name, address, domain) = contact.map_or_else(Default::default, |contact| {
        (contact.name, contact.address.to_string(), contact.domain)
    });
    ClusterNode {
        node: entry.node.to_string(),
        name,
        address,
        domain,
        state: state.to_owned(),
        host: entry.host.to_string(),
        incarnation: entry.incarnation.0,
        epoch: entry.holders.epoch,
        holders: entry.holders.nodes.iter().map(|holder| holder.node.to_string()).collect(),
    }
}

fn holder_words(view: &View) -> CopiesHolder {
    let state = match view.stand {
        Stand::Following => "follows",
        Stand::Required { .. } => "joins",
        Stand::Recorded { .. } => "holds",
        Stand::Leaving { .. } => "leaves",
    };
    CopiesHolder {
        node: view.node.to_string(),
        name: view.name.clone(),
        state: state.to_owned(),
        ready: view.stand.is_ready(),
        lacks_bytes: view.lacks,
        problem: view.problem.clone(),
        since_ms: u64::try_from(view.since.as_millis()).unwrap_or(u64::MAX),
    }
}

fn held_words(node: &Node, member: &Member, one: &HeldNode) -> HeldCopies {
    let state = match one.state {
        holder::State::Keeping => "keeps",
        holder::State::Resting => "rests",
        holder::State::Suspecting { .. } => "suspects",
        holder::State::Taking => "takes over",
        holder::State::Guest => "goes on here",
    };
    HeldCopies {
        node: one.node.to_string(),
        name: name_of(member, one.node),
        folder: guests::copies_folder(&node.config, one.node).display().to_string(),
        bytes: one.held.map_or(0, |held| held.bytes),
        segments: one.held.map_or(0, |held| held.segments as u64),
        incarnation: one.held.and_then(|held| held.newest).unwrap_or_default().0,
        last_copy: one.last_copy.map(|at| at.0),
        state: state.to_owned(),
        silent_ms: one
            .silence
            .map(|silence| u64::try_from(silence.as_millis()).unwrap_or(u64::MAX)),
    }
}

fn describe(host: &Node, id: NodeId, guest: &State) -> Guest {
    let folder = guests::copies_folder(&host.config, id).display().to_string();
    let empty = Guest { node: id.to_string(), folder, ..Guest::default() };
    match guest {
        State::Starting(reason) => {
            Guest { state: "starting".to_owned(), reason: reason.clone(), ..empty }
        }
        State::Replaced(reason) => {
            Guest { state: "replaced".to_owned(), reason: Some(reason.clone()), ..empty }
        }
        State::Serving(node) => {
            let volumes = node.staging.volumes();
            let owed = volumes.iter().map(|staged| health::acknowledged(staged, &staged.backlog()));
            let holders = node.membership().map(|membership| membership.keeping.view());
            Guest {
                state: "serving".to_owned(),
                folder: node.config.dir.display().to_string(),
                incarnation: node.incarnation.0,
                start_us: node.phases.iter().map(|(_, time)| time).sum(),
                log_bytes: node.log.usage().flash_bytes,
                volumes: volumes.len() as u64,
                backlog_bytes: owed.sum(),
                holders: holders.iter().flatten().map(holder_words).collect(),
                ..empty
            }
        }
    }
}
