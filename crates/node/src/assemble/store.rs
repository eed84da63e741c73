//! The store of a node: opened, and asked who it is and what it knows of the node.

use super::Attempt;
use crate::Error;
use crate::config::Config;
use crate::node_file::NodeFile;
use crate::record::{self, NodeRecord};
use rekindle_base::NodeId;
use rekindle_datastore::identity::{self, Identity};
use rekindle_datastore::layer::{self, Layers, fault, marks::Marks, meter::Meter};
use rekindle_datastore::record::{Held, Writer};
use rekindle_datastore::{Error as StoreError, Store};
use rekindle_env::{BoxFuture, Env};
use std::sync::Arc;

/// The open store, with its layers.
#[derive(Clone)]
pub struct OpenStore {
    /// Its address, for messages.
    pub url: String,
    pub store: Store,
    pub meter: Meter,
    pub marks: Marks,
    pub faults: fault::Handle,
    /// Faults that begin once the node serves.
    pub plan: fault::Plan,
}

/// Opens the store that a config names. Told whether the store is known to be there.
pub type Opener =
    Arc<dyn Fn(Config, bool) -> BoxFuture<'static, Result<OpenStore, Error>> + Send + Sync>;

/// The results of reading the store.
pub(super) struct Known {
    pub(super) open: OpenStore,
    pub(super) identity: Identity,
    pub(super) writer: Writer,
    pub(super) record: Option<Held<NodeRecord>>,
    pub(super) file: NodeFile,
}

/// Opens the store that the config names. Faults begin when the node serves: a drill is about
/// clients, not about starting.
pub(super) async fn open_store(
    env: &Env,
    config: &Config,
    is_known: bool,
) -> Result<OpenStore, Error> {
    let url = config.store_url();
    let plan = match &config.store_fault {
        Some(spec) => spec
            .parse()
            .map_err(|error: StoreError| Error::Usage(format!("--store-fault: {error}")))?,
        None => fault::Plan::default(),
    };
    let bare = match is_known {
        true => rekindle_datastore::open_known(env, &url).await,
        false => rekindle_datastore::open(env, &url).await,
    };
    let bare = bare.map_err(|source| Error::Store {
        url: url.clone(),
        source: if is_known { unnamed(config, source) } else { source },
    })?;
    let Layers { store, meter, marks, faults } = layer::usual(env, bare, fault::Plan::default());
    Ok(OpenStore { url: store.describe(), store, meter, marks, faults, plan })
}

/// Adds the command that a start lacks perhaps to an error about the store: the folder does not
/// remember the address that an earlier start was given.
fn unnamed(config: &Config, error: StoreError) -> StoreError {
    if config.store.is_some() {
        return error;
    }
    let dir = config.dir.display();
    let next = format!("; if earlier starts named one: `rekindle up --dir {dir} --store URL`");
    match error {
        StoreError::Unavailable(why) => StoreError::Unavailable(why + &next),
        StoreError::Refused(why) => StoreError::Refused(why + &next),
        other => other,
    }
}

/// Opens the store, for this node to write to.
async fn opened(
    env: &Env,
    config: &Config,
    node: NodeId,
    (open, is_known): (&Opener, bool),
) -> Result<(OpenStore, Writer), Error> {
    let watch = env.watch();
    let open = open(config.clone(), is_known).await?;
    env.boot_phase("store-opened", Some("store-and-warm"), watch);
    let writer = Writer::new(env.clone(), open.store.clone(), node);
    Ok((open, writer))
}

/// Opens the store and checks that it belongs to this folder.
pub(super) async fn join(
    env: &Env,
    config: &Config,
    file: NodeFile,
    open: &Opener,
) -> Result<Known, Error> {
    let (open, writer) = opened(env, config, file.node, (open, true)).await?;
    let watch = env.watch();
    let failed = |source| Error::Store { url: open.url.clone(), source };
    let (identity, record) = futures_util::join!(identity::find(&writer), record::read(&writer));
    let identity = identity.map_err(failed)?.ok_or_else(|| {
        let gone = "it holds no store of rekindle any more, but this folder belongs to one: is it mounted, is the URL right?";
        // A store from which this node has just served comes back, so a restarted worker waits.
        let gone = match config.restarted {
            true => StoreError::Unavailable(gone.to_owned()),
            false => StoreError::Refused(gone.to_owned()),
        };
        failed(unnamed(config, gone))
    })?;
    if identity.store != file.store {
        return Err(Error::OtherStore {
            url: open.url.clone(),
            ours: file.store,
            theirs: identity.store,
        });
    }
    let record = record.map_err(failed)?;
    env.boot_phase("records-read", Some("store-and-warm"), watch);
    Ok(Known { open, identity, writer, record, file })
}

/// Opens the store at the first start in a folder, probes it and writes `node.json`.
pub(super) async fn join_first(
    env: &Env,
    config: &Config,
    attempt: &Attempt,
    open: &Opener,
) -> Result<Known, Error> {
    let (open, writer) = opened(env, config, attempt.node, (open, false)).await?;
    let failed = |source| Error::Store { url: open.url.clone(), source };
    // A place that is not ours gets no probe. The rest goes together.
    let found = identity::look(&writer).await.map_err(failed)?;
    let make = async {
        match found {
            Some(identity) => Ok(identity),
            None => identity::make(&writer).await,
        }
    };
    let probe = rekindle_datastore::probe(env, &open.store);
    let (identity, probed) = futures_util::join!(make, probe);
    let identity = identity.map_err(failed)?;
    probed.map_err(failed)?;
    let now = env.wall_clock().0;
    let file = NodeFile::new(attempt.node, identity.store, now, attempt.chosen, attempt.starts());
    file.write_first(env, &config.dir).await?;
    Ok(Known { open, identity, writer, record: None, file })
}
