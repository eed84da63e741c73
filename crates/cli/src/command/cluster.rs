//! `rekindle cluster`: nodes that keep copies of one another's logs.

use super::client;
use super::timeline::{self, Timeline, milliseconds};
use crate::arguments::cluster::Recoveries;
use crate::arguments::{Cluster as Arguments, Common};
use crate::client::Client;
use crate::folder;
use rekindle_base::units::format_size;
use rekindle_front::http::api::{Cluster, ClusterNode, CopiesHolder, Guest, HeldCopies, Recovery};
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use serde_json::{Value, json};
use std::path::Path;

/// Runs the command.
pub fn run(common: &Common, arguments: &Arguments) -> Outcome<u8> {
    match arguments {
        Arguments::Init => init(common)?,
        Arguments::Token => token(common)?,
        Arguments::Ls => {
            let cluster: Cluster = client(common)?.get("/api/v1/cluster")?;
            common.shown(&cluster, || list(&cluster));
        }
        Arguments::Show(wanted) => show(common, wanted.node.as_deref())?,
        Arguments::Recoveries(wanted) => recoveries(common, wanted)?,
        Arguments::Rotate => {
            let client = client(common)?;
            client.post::<Value>("/api/v1/cluster/rotate", &json!({}))?;
            common.told(&json!({}), "other nodes know this host by a new key");
        }
        Arguments::Drain(wanted) => drain(common, &wanted.node, !wanted.off)?,
        Arguments::Remove(wanted) => {
            let path = format!("/api/v1/cluster/nodes/{}/remove", wanted.node);
            client(common)?.post::<Value>(&path, &json!({}))?;
            let told = format!("node {} is removed: no sweep waits for it", wanted.node);
            common.told(&json!({ "node": wanted.node }), &told);
        }
        Arguments::Takeover(wanted) => {
            let path = format!("/api/v1/cluster/nodes/{}/takeover", wanted.node);
            let guest: Guest = client(common)?.post(&path, &json!({}))?;
            tell_guest(common, &guest);
        }
        Arguments::Adopt(wanted) => {
            let folder = std::path::absolute(&wanted.folder).unwrap_or(wanted.folder.clone());
            let request = json!({ "folder": folder.display().to_string() });
            let guest: Guest = client(common)?.post("/api/v1/cluster/adopt", &request)?;
            tell_guest(common, &guest);
        }
    }
    Ok(0)
}

fn init(common: &Common) -> Outcome {
    let client = client(common)?;
    let cluster: Cluster = client.post("/api/v1/cluster/init", &json!({}))?;
    let token = token_of(common)?;
    common.told(
        &cluster,
        &format!(
            "the cluster has its first node, {}\n\
             next, on each other host, over the same store:\n  \
             rekindle up --store URL --advertise HOST:PORT --join {token}",
            cluster.address
        ),
    );
    Ok(())
}

/// Reads the token out of the folder: it is no matter of the network.
fn token_of(common: &Common) -> Outcome<String> {
    let dir = folder::of_server(common.dir.as_deref())?;
    token_in(&dir)?.ok_or_else(|| {
        Failure::new(format!("the node in {} is in no cluster", dir.display()))
            .next("rekindle cluster init")
    })
}

/// Reads the token of the node in a folder, if that is in a cluster.
pub(super) fn token_in(dir: &Path) -> Outcome<Option<String>> {
    let (env, runtime) = rekindle_env::real::env()?;
    let found = runtime.block_on(rekindle_node::token(&env, dir));
    found.map_err(|error| Failure::new("the token cannot be read").because(error))
}

fn token(common: &Common) -> Outcome {
    let token = token_of(common)?;
    common.shown(&json!({ "token": token }), || output::line(&token));
    Ok(())
}

fn drain(common: &Common, node: &str, on: bool) -> Outcome {
    let client = client(common)?;
    let path = format!("/api/v1/cluster/nodes/{node}/drain");
    client.post::<Value>(&path, &json!({ "on": on }))?;
    let told = match on {
        true => format!(
            "node {node} takes no further copies, and the owners of those that it has look for other holders\n\
             next: rekindle cluster show {node}"
        ),
        false => format!("node {node} takes copies again"),
    };
    common.told(&json!({ "node": node, "on": on }), &told);
    Ok(())
}

fn tell_guest(common: &Common, guest: &Guest) {
    common.told(
        guest,
        &format!(
            "node {} goes on here, as its start {}: {} of its log were read in {} ms\n\
             next: rekindle volume ls",
            guest.node,
            guest.incarnation,
            format_size(guest.log_bytes),
            guest.start_us.div_ceil(1000),
        ),
    );
}

/// The name of a node for users, or the beginning of its id.
fn short(cluster: &Cluster, id: &str) -> String {
    let named = cluster.nodes.iter().find(|node| node.node == id && has_name(node));
    named.map_or_else(|| id.get(..8).unwrap_or(id).to_owned(), |node| node.name.clone())
}

/// Whether a node goes by its name: one that was taken over has the name of the host that took it.
fn has_name(node: &ClusterNode) -> bool {
    node.host == node.node && !node.name.is_empty()
}

fn list(cluster: &Cluster) {
    if !cluster.member {
        output::line("this node is in no cluster");
        return;
    }
    if let Some(problem) = &cluster.problem {
        output::line(&format!("the store cannot be asked ({problem}): as it was known last"));
    }
    let mut table = output::table(["NODE", "ADDRESS", "DOMAIN", "STATE", "COPIES AT"]);
    for node in &cluster.nodes {
        let mark = if node.node == cluster.node { " *" } else { "" };
        let holders: Vec<_> = node.holders.iter().map(|id| short(cluster, id)).collect();
        table.add_row([
            short(cluster, &node.node) + mark,
            node.address.clone(),
            node.domain.clone(),
            state(cluster, node),
            holders.join(", "),
        ]);
    }
    output::rows(&table);
    for client in &cluster.forwarded {
        let waits = client.problem.as_ref().map(|why| format!("; it waits: {why}"));
        output::line(&format!(
            "a client of volume '{}' here is served by {}{}",
            client.volume,
            named(&client.name, &client.node),
            waits.unwrap_or_default()
        ));
    }
    for client in &cluster.visitors {
        output::line(&format!(
            "a client of volume '{}' at {} is served here",
            client.volume,
            named(&client.name, &client.node)
        ));
    }
}

/// A node's name, or the beginning of its id.
fn named<'a>(name: &'a str, id: &'a str) -> &'a str {
    if name.is_empty() { id.get(..8).unwrap_or(id) } else { name }
}

fn state(cluster: &Cluster, node: &ClusterNode) -> String {
    match node.host == node.node {
        true => node.state.clone(),
        false => format!("{} by {}", node.state, short(cluster, &node.host)),
    }
}

fn show(common: &Common, wanted: Option<&str>) -> Outcome {
    let cluster: Cluster = client(common)?.get("/api/v1/cluster")?;
    let wanted = wanted.unwrap_or(&cluster.node);
    let is_wanted = |node: &&ClusterNode| {
        node.node.starts_with(wanted) || (has_name(node) && node.name == wanted)
    };
    let node = cluster.nodes.iter().find(is_wanted).ok_or_else(|| {
        Failure::new(format!("the cluster has no node '{wanted}'")).next("rekindle cluster ls")
    })?;
    let is_here = node.node == cluster.node;
    let guest = cluster.guests.iter().find(|guest| guest.node == node.node);
    let held = cluster.held.iter().find(|held| held.node == node.node);
    common.shown(&json!({ "node": node, "guest": guest, "held": held }), || {
        let holders: Vec<_> = node.holders.iter().map(|id| short(&cluster, id)).collect();
        let mut pairs = vec![
            ("node", node.node.clone()),
            ("name", node.name.clone()),
            ("address", node.address.clone()),
            ("domain", node.domain.clone()),
            ("state", state(&cluster, node)),
            ("start", node.incarnation.to_string()),
            ("copies at", holders.join(", ")),
        ];
        let known = match (is_here, guest) {
            (true, _) => &cluster.holders[..],
            (false, Some(guest)) => &guest.holders[..],
            (false, None) => &[],
        };
        pairs.extend(known.iter().map(|holder| ("holder", holder_line(holder))));
        pairs.extend(held.map(|held| ("copies here", held_line(held))));
        if let Some(guest) = guest {
            let reason = guest.reason.as_ref().map(|reason| format!(": {reason}"));
            pairs.push(("guest here", guest.state.clone() + &reason.unwrap_or_default()));
            pairs.push(("folder", output::quoted(Path::new(&guest.folder))));
        }
        pairs.retain(|(_, value)| !value.is_empty());
        output::pairs(&pairs);
    });
    Ok(())
}

/// Returns the names of the nodes that a volume may move to; none when the daemon does not answer.
pub fn names(client: &Client) -> Vec<String> {
    let cluster = client.get::<Cluster>("/api/v1/cluster").unwrap_or_default();
    let is_there = |node: &ClusterNode| node.host == node.node && node.state == "well";
    let there = cluster.nodes.into_iter().filter(is_there);
    let mut names: Vec<_> = there.map(|node| node.name).filter(|name| !name.is_empty()).collect();
    names.sort();
    names
}

fn recoveries(common: &Common, wanted: &Recoveries) -> Outcome {
    let all: Vec<Recovery> = client(common)?.get("/api/v1/cluster/recoveries")?;
    let one = wanted.number.checked_sub(1).and_then(|index| all.get(index));
    if one.is_none() && (wanted.number != 1 || wanted.svg.is_some()) {
        let known =
            format!("there are {} recoveries, and none is number {}", all.len(), wanted.number);
        return Err(Failure::new(known).next("rekindle cluster recoveries"));
    }
    if let (Some(recovery), Some(path)) = (one, &wanted.svg) {
        timeline::write(path, &drawn(recovery))?;
    }
    common.shown(&all, || match one {
        Some(recovery) => tell_recoveries(&all, recovery),
        None => output::line("no lost node has gone on at this host"),
    });
    Ok(())
}

const SINCE_HEARD: &str = "since the node was heard last";

fn drawn(recovery: &Recovery) -> Timeline<'_> {
    Timeline {
        title: format!("{}, {}", origin(recovery), output::moment(recovery.at)),
        since: SINCE_HEARD,
        phases: &recovery.phases,
        read: format!("its log: {}", format_size(recovery.log_bytes)),
        ..Timeline::default()
    }
}

fn origin(recovery: &Recovery) -> String {
    let Recovery { how, from, node, .. } = recovery;
    format!("{how} of {}", named(from, node))
}

fn tell_recoveries(all: &[Recovery], one: &Recovery) {
    let mut table = output::table(["AT", "WHAT", "LOG", "SERVED MS", "FIRST CLIENT MS"]);
    for recovery in all {
        table.add_row([
            output::moment(recovery.at),
            origin(recovery),
            format_size(recovery.log_bytes),
            milliseconds(recovery.served_us()),
            recovery.first_client_us().map_or_else(|| "-".to_owned(), milliseconds),
        ]);
    }
    output::rows(&table);
    output::line("");
    output::pairs(&[
        ("recovery", origin(one)),
        ("node", format!("{}, start {}", one.node, one.incarnation)),
        ("log", log_line(one)),
        ("times", SINCE_HEARD.to_owned()),
    ]);
    output::line("");
    timeline::print_changes(&one.phases);
}

/// Where the log came from. The host that goes on has all of it: no other one is asked.
fn log_line(recovery: &Recovery) -> String {
    let place = if recovery.how == "takeover" { "the copies" } else { "the folder" };
    let opened =
        recovery.phases.iter().find(|phase| phase.name == "log" && phase.part_of.is_none());
    let took = opened.map(|phase| format!(", opened in {} ms", milliseconds(phase.took_us)));
    format!(
        "{} in {place} at this host{}; nothing was fetched from other hosts",
        format_size(recovery.log_bytes),
        took.unwrap_or_default()
    )
}

fn holder_line(holder: &CopiesHolder) -> String {
    let ready = if holder.ready { ", ready for a takeover" } else { "" };
    let lacks = match holder.lacks_bytes {
        0 => String::new(),
        bytes => format!(", lacks {}", format_size(bytes)),
    };
    let problem = holder.problem.as_ref().map(|problem| format!(": {problem}"));
    format!("{} {}{ready}{lacks}{}", holder.name, holder.state, problem.unwrap_or_default())
}

fn held_line(held: &HeldCopies) -> String {
    let silent = held.silent_ms.map(|ms| format!(", heard {ms} ms ago"));
    format!(
        "{} in {} segments, {}{}",
        format_size(held.bytes),
        held.segments,
        held.state,
        silent.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_taken_over_does_not_go_by_the_name_of_its_host() {
        let node = |node: &str, host: &str| ClusterNode {
            node: node.to_owned(),
            host: host.to_owned(),
            name: "two".to_owned(),
            ..ClusterNode::default()
        };
        let nodes = vec![node("0123456789", "abcdef0123"), node("abcdef0123", "abcdef0123")];
        let cluster = Cluster { nodes, ..Cluster::default() };
        assert_eq!(short(&cluster, "0123456789"), "01234567");
        assert_eq!(short(&cluster, "abcdef0123"), "two");
    }
}
