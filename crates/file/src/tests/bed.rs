//! A node with file volumes, on a machine from a seed.

use crate::{File, Files};
use rekindle_base::units::MIB;
use rekindle_base::{Incarnation, NodeId};
use rekindle_content::{Compression, Content};
use rekindle_datastore::Store;
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_log::Log;
use rekindle_staging::{Ack, Lease, Policy, Staging, VaultBody};
use rekindle_volume::{Kinds, Parts, Spec, Volumes};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NODE: NodeId = NodeId([7; 16]);

/// One life of a node.
pub struct Bed {
    pub volumes: Volumes,
    pub content: Content,
    pub lease: Arc<Lease>,
}

impl Bed {
    /// Starts the life of a node with this number.
    pub async fn start(env: &Env, store: &Store, life: u64) -> Self {
        let (life, lease) = (Incarnation(life), Lease::for_ever());
        let folder = Path::new("/node");
        let slot_bytes = rekindle_warm::limits::SLOT_BYTES_MAX;
        let shape = rekindle_warm::Shape { slots: 4, slot_bytes, frames: None };
        let arena =
            rekindle_warm::Arena::open_shaped(env, &folder.join("arena"), NODE, shape).unwrap();
        let config = rekindle_log::Config {
            folder: folder.join("log"),
            node: NODE,
            flash_bytes: 64 * MIB,
            flush_interval: Duration::from_millis(100),
        };
        let (log, _) = Log::open(env, arena, config, life).await.unwrap();
        let config = rekindle_content::Config {
            secret: [3; 32],
            compression: Compression::None,
            parity: None,
            pack_bytes: MIB,
            cache_bytes: MIB,
            index_bytes: MIB,
            uploads: 2,
        };
        let content = Content::open(env.clone(), store.clone(), config);
        let writer = Writer::new(env.clone(), store.clone(), NODE).with_incarnation(life);
        let config = rekindle_staging::Config {
            flash_bytes: 32 * MIB,
            memory_bytes: 16 * MIB,
            destage_age: Duration::from_secs(5),
            destage_bytes: 8 * MIB,
            batch_bytes: 8 * MIB,
            destagers: 2,
            index_at_once: 4,
            age_deadline: Duration::from_secs(60),
            destage_writes_per_minute: 0,
            memory_outlives_process: true,
            copied_from: Incarnation(0),
            lease: lease.clone(),
        };
        let staging = Staging::start(env.clone(), log, content.clone(), writer.clone(), config);
        let volumes = Volumes::open(Parts {
            env: env.clone(),
            writer,
            content: content.clone(),
            staging,
            kinds: Kinds::new(vec![Box::new(File)]),
            read_ahead: false,
        });
        Self { volumes, content, lease }
    }

    /// Attaches the volume `fs`, which is made when it is not there.
    pub async fn files(&self, ack: Ack) -> Files {
        self.files_as(Policy::Back, ack).await
    }

    /// The same, with another policy.
    pub async fn files_as(&self, policy: Policy, ack: Ack) -> Files {
        let spec = Spec {
            name: "fs".to_owned(),
            kind: "file".to_owned(),
            size: 1 << 30,
            settings: VaultBody::default(),
            policy,
            ack,
            copies: 0,
            on_missing_copy: rekindle_staging::MissingCopy::default(),
        };
        match self.volumes.create(spec).await {
            Ok(_) | Err(rekindle_volume::Error::Exists(_)) => {}
            Err(error) => panic!("{error}"),
        }
        Files::attach(&self.volumes, "fs").await.unwrap()
    }
}
