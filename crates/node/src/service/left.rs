//! Brings back the volumes that only a log has which a node has left at this host
//! ([`crate::remains`]): in the background, after each start, until none is left.

use super::Service;
use crate::assemble::Node;
use crate::cluster::left;
use crate::recoveries::phase;
use crate::remains::Remains;
use crate::{Error, limits};
use futures_util::{StreamExt, stream};
use rekindle_base::{NodeId, VolumeId};
use rekindle_env::Moment;
use rekindle_front::http::api::Recovery;
use rekindle_staging::{Vault, VaultState};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// The outcome of one look at a log that was left behind.
enum Looked {
    /// Nothing shows that it is the last one of its node.
    Unproven,
    /// No volume needs it.
    Unneeded,
    /// Volumes still need it: how many are not back that should be, and why the first one is not.
    Needed(Option<(usize, String)>),
}

/// Begins to bring back what the nodes have left that this host had before.
pub(super) async fn begin(service: &Service, host: &Arc<Node>) -> Result<(), Error> {
    if host.membership().is_none() {
        return Ok(());
    }
    for node in left::nodes(&host.env, &host.config.dir).await? {
        if left::has_log(&host.env, &host.config.dir, node).await {
            let work = bring_back(service.clone(), Arc::downgrade(host), node);
            host.env.spawn("left-behind", work);
        }
    }
    Ok(())
}

async fn bring_back(service: Service, host: Weak<Node>, node: NodeId) {
    let Some((env, mut pause)) =
        host.upgrade().map(|host| (host.env.clone(), host.scale().clients_first))
    else {
        return;
    };
    loop {
        env.sleep(pause).await;
        let Some(host) = host.upgrade() else { return };
        let looked = tokio::select! {
            looked = look(&service, &host, node) => looked,
            _ = service.shutdown_asked() => return,
        };
        match looked {
            Ok(Looked::Unneeded) => {
                host.left_behind.forget(node);
                match left::clear(&env, &host.config.dir, node).await {
                    Ok(()) => {
                        return tracing::info!(%node, "the log that this node has left is not needed any more");
                    }
                    Err(error) => {
                        tracing::warn!(%node, %error, "the log that this node has left cannot be removed now")
                    }
                }
            }
            Ok(Looked::Unproven) => {
                return tracing::warn!(
                    %node,
                    "the log that this node has left is not read: its record does not say that it is the last one"
                );
            }
            Ok(Looked::Needed(Some((count, why)))) => host.left_behind.note(node, count, why),
            // In the trash: such a volume is for the next look once it is restored.
            Ok(Looked::Needed(None)) => host.left_behind.forget(node),
            Err(error) => {
                tracing::warn!(%node, %error, "the log that this node has left cannot be read now");
            }
        }
        pause = (pause * 2).max(limits::LEFT_AGAIN).min(limits::LEFT_AGAIN_MAX);
    }
}

/// Hands over all volumes that can be.
async fn look(service: &Service, host: &Arc<Node>, node: NodeId) -> Result<Looked, Error> {
    let began = host.env.now();
    let folder = left::folder(&host.config.dir, node);
    let Some(remains) = Remains::open(host, &folder).await? else {
        return Ok(Looked::Unproven);
    };
    let opened = host.env.now();
    let looked = hand_over(host, &remains).await;
    if let Ok((handed, _)) = &looked
        && *handed > 0
    {
        report(service, host, &remains, (began, opened)).await;
    }
    let is_needed = !matches!(looked, Ok((_, Looked::Unneeded)));
    remains.close(host, is_needed).await;
    Ok(looked?.1)
}

/// Hands over all volumes that can be. Returns how many were, and what is left.
async fn hand_over(host: &Arc<Node>, remains: &Remains) -> Result<(usize, Looked), Error> {
    let mut owned = host.volumes.owned_by(remains.node).await?;
    owned.retain(|vault| remains.has(vault));
    if !owned.is_empty() {
        remains.tell_damage();
    }
    // Those with changes in the log first: their clients were there last.
    let changed: BTreeSet<VolumeId> = remains.unfinished().await?;
    owned.sort_by_key(|vault| !changed.contains(&vault.id));
    let is_live = |vault: &&Vault| vault.state == VaultState::Live;
    let give = async |vault: &Vault| match remains.give(host, &vault.name).await {
        Ok(()) => {
            tracing::info!(volume = vault.name, node = %remains.node, "is back: the log that its node had left here has all of it");
            None
        }
        Err(error) => Some(format!("volume '{}': {error}", vault.name)),
    };
    let live = stream::iter(owned.iter().filter(is_live));
    let outcomes: Vec<Option<String>> =
        live.map(give).buffered(limits::LEFT_AT_ONCE).collect().await;
    let handed = outcomes.iter().filter(|why| why.is_none()).count();
    let mut kept = outcomes.into_iter().flatten();
    let looked = match kept.next() {
        Some(first) => Looked::Needed(Some((1 + kept.count(), first))),
        None if handed < owned.len() => Looked::Needed(None),
        None => Looked::Unneeded,
    };
    Ok((handed, looked))
}

async fn report(
    service: &Service,
    host: &Arc<Node>,
    remains: &Remains,
    (began, opened): (Moment, Moment),
) {
    let (env, ended) = (&host.env, host.env.now());
    let since = u64::try_from(ended.since(began).as_micros()).unwrap_or(u64::MAX);
    let report = Recovery {
        node: remains.node.to_string(),
        how: "return".to_owned(),
        at: env.wall_clock().0.saturating_sub(since),
        incarnation: remains.last.0,
        log_bytes: remains.log_bytes(),
        phases: vec![phase("log", began, began, opened), phase("volumes", began, opened, ended)],
        ..Recovery::default()
    };
    service.inner.recoveries.note(began, report);
    service.inner.recoveries.keep(env, &host.config.dir).await;
}
