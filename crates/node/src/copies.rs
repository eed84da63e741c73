//! Copies of logs over the network, as a node is put together: those of its log on its peers, and
//! those of other nodes' logs here.

use crate::Error;
use crate::config::Config;
use crate::node_file::NodeFile;
use rekindle_base::Life;
use rekindle_cluster::{Holder, Holders, Peer, Secret, Settings};
use rekindle_datastore::identity::Identity as StoreIdentity;
use rekindle_env::{Address, Env};
use rekindle_log::Replica;
use std::sync::Arc;

/// Name of the folder, in the node's own, with the copies of other nodes' logs.
pub(crate) const FOLDER: &str = "copies";
/// Each node that can read the store can be a peer: the cluster's secret is made of the store's.
const CONTEXT: &str = "rekindle 2026-11-23 cluster secret";

pub(crate) fn secret(identity: &StoreIdentity) -> Secret {
    Secret(blake3::derive_key(CONTEXT, &identity.secret.0))
}

/// The holders of copies of this node's log. They are called once the log is open.
pub(crate) fn peers(
    env: &Env,
    config: &Config,
    identity: &StoreIdentity,
    life: Life,
    home: &NodeFile,
) -> Result<Vec<Arc<dyn Replica>>, Error> {
    let copied = home.of_copies(life.incarnation).encode()?;
    let holders = Holders::default();
    let peer = |place: &String| {
        let address: Address = place.parse().map_err(|bad| Error::Usage(format!("{bad}")))?;
        let settings = Settings {
            address,
            secret: secret(identity),
            store: identity.store,
            node: life.node,
            incarnation: life.incarnation,
            home: copied.clone(),
            holders: holders.clone(),
        };
        Ok(Arc::new(Peer::new(env, settings)) as Arc<dyn Replica>)
    };
    config.copy_to.iter().map(peer).collect()
}

/// Lets a log start from the folder, if it consists of copies that a holder has kept.
pub(crate) async fn adopt(
    env: &Env,
    config: &Config,
    home: Option<&NodeFile>,
) -> Result<(), Error> {
    let dir = &config.dir;
    if home.is_none() && config.take_identity.is_some() {
        // A holder's folder is there before the first copies are.
        return Err(Error::Usage(format!(
            "{}: there is no node here, and no copy of its log: --take-identity goes on with a folder that has one",
            dir.display()
        )));
    }
    let Some(home) = home.filter(|home| !home.is_own()) else { return Ok(()) };
    rekindle_cluster::adopt(env, dir, home.node).await.map_err(|reason| {
        Error::Usage(format!(
            "{}: {reason}. `rekindle copies release NODE` on the node that keeps these copies lets them go",
            dir.display()
        ))
    })
}

/// Opens the copies of other nodes' logs, if this node is to keep any.
pub(crate) async fn hold(env: &Env, config: &Config) -> Result<Option<Arc<Holder>>, Error> {
    if config.hold.is_none() {
        return Ok(None);
    }
    let folder = config.dir.join(FOLDER);
    match Holder::open(env, &folder, config.hold_bytes).await {
        Ok(holder) => Ok(Some(holder)),
        Err(reason) => Err(Error::Folder { path: folder, reason }),
    }
}
