//! The vocabulary of the API: requests, answers and errors.
//!
//! Requests refuse fields that they do not know (a typing error must not become a default). Answers
//! are read tolerantly, so that an older command line understands a newer node.

pub mod cluster;
pub mod kept;

use crate::conn::Pipe;
pub use cluster::{
    AdoptFolder, Cluster, ClusterNode, CopiesHolder, DrainNode, ForwardedClient, Guest, HeldCopies,
    Recovery,
};
use rekindle_base::Kind;
use rekindle_base::units::deserialize_size;
use rekindle_env::BoxFuture;
use rekindle_staging::{Ack, Backlog, MissingCopy, Policy};
use rekindle_volume::{Account, Salvage, StopProgress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use utoipa::ToSchema;

/// The result of a method of [`Api`].
pub type Answer<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// The word of the protocol that a mount's connection goes on with: docs/format/mount.md.
pub const MOUNT_PROTOCOL: &str = "rekindle-fuse";
/// The header that says what is mounted: the daemon tells it with each connection, and a mount that
/// comes back asks for the same.
pub const MOUNT_OF: &str = "rekindle-mount-of";

/// A connection that leaves HTTP when the answer has been sent.
pub type Leaving = BoxFuture<'static, io::Result<Box<dyn Pipe>>>;

/// The requests that a node answers. Long work gives a [`Job`] at once, to be polled by
/// [`Api::job`].
pub trait Api: kept::Keep {
    /// Tells whether the node serves, and if not, why. A plain call: it must answer even when
    /// everything else hangs.
    fn health(&self) -> Health;
    /// Returns the node at a glance.
    fn status(&self) -> Answer<'_, Status>;
    /// Lists all volumes, by name.
    fn volumes(&self) -> Answer<'_, Vec<Volume>>;
    /// Makes a volume.
    fn create_volume(&self, request: CreateVolume) -> Answer<'_, Volume>;
    /// Returns one volume.
    fn volume<'a>(&'a self, name: &'a str) -> Answer<'a, Volume>;
    /// Moves a volume to the trash, or removes it for good (`now`); `force` disconnects its
    /// clients.
    fn remove_volume<'a>(&'a self, name: &'a str, force: bool, now: bool) -> Answer<'a, ()>;
    /// Brings a file volume into service for a mount, and serves the mount over a connection once
    /// the answer is sent. `of`: what the mount has been told to be of before, refused if the name
    /// is of something else by now. Returns what to tell it.
    fn mount_volume<'a>(
        &'a self,
        name: &'a str,
        of: Option<String>,
        connection: Leaving,
    ) -> Answer<'a, String>;
    /// Brings all unfinished changes of a volume into the datastore.
    fn drain_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Job>;
    /// Begins to move a volume to another node of the cluster, while its clients go on.
    fn move_volume<'a>(&'a self, name: &'a str, request: MoveVolume) -> Answer<'a, Job>;
    /// Sets or takes away a volume's pin: a pinned volume stays in service even when no client uses
    /// it.
    fn pin_volume<'a>(&'a self, name: &'a str, pinned: bool) -> Answer<'a, Volume>;
    /// Lists what happened to a volume, oldest first.
    fn history<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<Event>>;
    /// Lists volumes that are being salvaged, then those that wait for it.
    fn salvages(&self) -> Answer<'_, Vec<Salvage>>;
    /// Starts a salvage of a volume.
    fn start_salvage<'a>(&'a self, name: &'a str, request: StartSalvage) -> Answer<'a, Job>;
    /// Cancels a salvage.
    fn cancel_salvage<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
    /// Lists the last salvages of a volume, or of all, oldest first within a volume.
    fn salvage_history<'a>(&'a self, name: Option<&'a str>) -> Answer<'a, Vec<Account>>;
    /// Tells how full the log is.
    fn log_usage(&self) -> Answer<'_, LogUsage>;
    /// Returns the state of the datastore.
    fn store(&self) -> Answer<'_, StoreInfo>;
    /// Returns the content of the memory that outlives the process, and how often it helped.
    fn warm(&self) -> Answer<'_, WarmStatus>;
    /// Returns the duration of this process' start, up to the first reply to a client.
    fn boot(&self) -> Answer<'_, BootReport>;
    /// Empties the block frames of the warm memory; segments stay.
    fn drop_warm_frames(&self) -> Answer<'_, WarmDropped>;
    /// Returns the state of the sweep and the result of the last one.
    fn sweep(&self) -> Answer<'_, SweepStatus>;
    /// Starts a sweep.
    fn start_sweep(&self) -> Answer<'_, Job>;
    /// Starts to find out what a sweep would do.
    fn start_sweep_plan(&self) -> Answer<'_, Job>;
    /// Takes the user's word that another node of the store is gone for good: sweeps wait for it no
    /// longer.
    fn dismiss_node(&self, request: DismissNode) -> Answer<'_, Dismissed>;
    /// Returns the cluster: its nodes, the holders of copies of this one's log, and the copies
    /// here.
    fn cluster(&self) -> Answer<'_, Cluster>;
    /// Returns the lost nodes that have gone on at this host and what that took, the last first.
    fn recoveries(&self) -> Answer<'_, Vec<Recovery>>;
    /// Makes a cluster over the store, with this node as its first member.
    fn init_cluster(&self) -> Answer<'_, Cluster>;
    /// Replaces the key by which other nodes know this host.
    fn rotate_key(&self) -> Answer<'_, ()>;
    /// Has a node take no further copies, and their owners find other holders; or ends that.
    fn drain_node<'a>(&'a self, node: &'a str, request: DrainNode) -> Answer<'a, ()>;
    /// Takes a node over, although it may be well: it goes on here.
    fn take_over<'a>(&'a self, node: &'a str) -> Answer<'a, Guest>;
    /// Removes a node for ever that is gone for good.
    fn remove_node<'a>(&'a self, node: &'a str) -> Answer<'a, ()>;
    /// Goes on with the node of a folder, here.
    fn adopt_folder(&self, request: AdoptFolder) -> Answer<'_, Guest>;
    /// Starts a count of the space that one volume takes in the store, or all of them.
    fn start_space(&self, request: StartSpace) -> Answer<'_, Job>;
    /// Starts a check of the stored content.
    fn start_verify(&self, request: StartVerify) -> Answer<'_, Job>;
    /// Brings volumes into service and reads samples of them, as if all clients came at once.
    fn start_attach(&self, request: StartAttach) -> Answer<'_, Job>;
    /// Lists jobs, newest first; finished ones are forgotten after a while.
    fn jobs(&self) -> Answer<'_, Vec<Job>>;
    /// Returns one job.
    fn job<'a>(&'a self, id: &'a str) -> Answer<'a, Job>;
    /// Cancels a job: at once, or after its present step.
    fn cancel_job<'a>(&'a self, id: &'a str) -> Answer<'a, Job>;
    /// Returns a part of the inside of the node, bounded; only volumes whose names begin with
    /// `prefix`. The datastore is not asked.
    fn debug<'a>(&'a self, what: Debug, prefix: &'a str) -> Answer<'a, serde_json::Value>;
    /// Begins to stop the node, and returns the progress after a moment: a client that asks for a
    /// quick stop mostly sees its end. A second request without `drain` turns a draining stop into
    /// a quick one.
    fn shutdown(&self, request: Shutdown) -> Answer<'_, StopProgress>;
    /// Returns the progress of the stop. It waits a little for news, so that a client that polls
    /// sees the end.
    fn stopping(&self) -> Answer<'_, StopProgress>;
}

/// An answer that is an error: its kind tells programs what to do, its message tells users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: Kind,
    pub message: String,
    /// The name of the host that takes the request, if another one does.
    pub host: Option<String>,
}

impl ApiError {
    /// Makes an error of `kind`; the message says what to do next.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), host: None }
    }

    /// Names the host that takes the request.
    #[must_use]
    pub fn at_host(self, host: String) -> Self {
        Self { host: Some(host), ..self }
    }
}

impl From<rekindle_volume::Error> for ApiError {
    fn from(error: rekindle_volume::Error) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

/// The form of every error on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind, which tells what to do: `invalid`, `not-found`, `exists`, `conflict`, `fenced`,
    /// `full`, `damaged`, `unavailable`, `refused`, `unsupported` or `io`.
    pub error: String,
    /// The message for users.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// The name of the host that takes the request, if another one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl From<&ApiError> for Problem {
    fn from(error: &ApiError) -> Self {
        Self {
            error: error.kind.to_string(),
            message: error.message.clone(),
            retryable: error.kind.is_retryable(),
            host: error.host.clone(),
        }
    }
}

/// The request for a new volume.
///
/// Any other field is a setting of the kind, which refuses those that it does not know. Kind
/// `block` has `block_size`, the bytes of every chunk: a power of two from 4 KiB to 1 MiB, or text
/// such as "16K". Without it, chunks are cut by content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateVolume {
    /// 1 to 255 bytes, no `/`, no leading dot.
    pub name: String,
    /// The kind of volume: `file`, or `block`, also when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Bytes, a multiple of 512; or text such as "20G".
    #[serde(deserialize_with = "deserialize_size")]
    #[schema(schema_with = size_schema)]
    pub size: u64,
    #[serde(default)]
    pub policy: Policy,
    #[serde(default)]
    pub ack: Ack,
    /// Count of the copies on other nodes that a write with policy `back` waits for, 0 to 3.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copies: u8,
    /// What a write does while there are fewer copies.
    #[serde(default)]
    pub on_missing_copy: MissingCopy,
    /// The settings of the kind.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub settings: Fields,
}

fn is_zero(copies: &u8) -> bool {
    *copies == 0
}

/// The fields of a volume that only its kind understands. They stand among those of every volume.
pub type Fields = BTreeMap<String, serde_json::Value>;

fn size_schema() -> utoipa::openapi::Schema {
    use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
    let one_of = OneOfBuilder::new()
        .item(ObjectBuilder::new().schema_type(Type::Integer).description(Some("Bytes.")))
        .item(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .description(Some("A number with K, M, G or T (powers of 1024), as in \"20G\".")),
        )
        .build();
    Schema::OneOf(one_of)
}

/// The request for a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSweep {}

/// The request to dismiss a node that will never come back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DismissNode {
    /// The node's id, as the failure of the sweep names it.
    pub node: String,
}

/// A node for which sweeps wait no longer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Dismissed {
    /// The node's id.
    pub node: String,
    /// The number of its dismissed start. Sweeps wait for the node again when it is started once
    /// more.
    pub start: u64,
}

/// The request to move a volume to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveVolume {
    /// The node: its id, the beginning of its id, or its name.
    pub to: String,
}

/// The request to bring volumes into service, and to read samples of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartAttach {
    /// Only this many volumes, the first ones by name; all of them when absent.
    #[serde(default)]
    pub first: Option<usize>,
    /// Blocks read of each volume, spread evenly over it.
    #[serde(default)]
    pub reads: u64,
    /// Number of volumes that are attached concurrently; one when absent.
    #[serde(default)]
    pub at_once: Option<usize>,
}

/// The request for a count of space.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSpace {
    /// Only report this volume; all of them when absent.
    #[serde(default)]
    pub volume: Option<String>,
}

/// The request for a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartVerify {
    /// Only this volume; all of them when absent.
    #[serde(default)]
    pub volume: Option<String>,
    /// Ask for a salvage of each volume in which damage is found.
    #[serde(default)]
    pub salvage: bool,
    /// Most bytes read per second; no limit when absent.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
}

/// The request to stop the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    /// First bring all unfinished changes into the datastore. Without it they stay safe in the log.
    #[serde(default)]
    pub drain: bool,
}

/// The health of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Health {
    /// Whether no client waits because of a fault.
    pub ok: bool,
    /// `well`, `degraded` (there is a fault, but clients are served), `failing` (clients wait, or
    /// are refused).
    pub state: String,
    /// The faults, for users, those that stop clients first. Empty when all is well.
    pub reasons: Vec<String>,
    /// The same faults, for programs.
    pub troubles: Vec<Trouble>,
    /// Conditions without harm now that will make the next start slower or dearer; for users.
    pub notes: Vec<String>,
}

/// One fault.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Trouble {
    /// `store-away`, `store-folder`, `log-failed`, `log-full`, `disk-full`, `copy-missing`,
    /// `copy-behind`, `clients-wait`, `volume-unreadable`, `volume-lost-bytes`, `volume-stalled`,
    /// `volume-not-destaged`, `volume-late`, `volume-keeps-log`, `volume-stuck`,
    /// `volumes-left-behind`, `volumes-failed`, `volumes-salvaging`, `sweep-failed`, `log-damage`,
    /// `log-losses`, `warm-damaged`, `starting`, `stopping`, `fenced`.
    pub what: String,
    /// Whether clients wait because of it.
    pub clients_wait: bool,
    /// Its duration so far, if known.
    pub since_ms: Option<u64>,
    /// The message for users.
    pub message: String,
}

/// A place where clients connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Endpoint {
    /// `nbd`, `nfs` or `http`.
    pub protocol: String,
    /// The address as a client writes it: `nbd+unix:///?socket=...`, `nbd://127.0.0.1:10809`,
    /// `http://127.0.0.1:7070`.
    pub uri: String,
}

/// The node at a glance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Status {
    pub node: String,
    pub version: String,
    /// Number of the node's start.
    pub incarnation: u64,
    /// `starting`, `serving`, `stopping`, or `fenced`: another life of this node has taken over.
    pub state: String,
    pub uptime_ms: u64,
    pub store: String,
    pub endpoints: Vec<Endpoint>,
    pub volumes_attached: u64,
    /// Connected clients, all volumes.
    pub clients: u64,
    /// Bytes that are acknowledged and not yet in the datastore, all volumes.
    pub backlog_bytes: u64,
    pub health: Health,
    /// The bounds of the node's memory, and their use.
    pub memory: Vec<MemoryBudget>,
    /// The progress of a stop; only while the node stops.
    pub stopping: Option<StopProgress>,
    /// Further details: phases of the start, cache hit rates.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
}

/// A bound of the node's memory, and its use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct MemoryBudget {
    /// The setting that bounds it.
    pub name: String,
    /// A description for users.
    pub what: String,
    pub used_bytes: u64,
    pub budget_bytes: u64,
}

/// A volume as users see it.
///
/// Any other field is one of the kind. Kind `block` has `block_size`, the bytes of every chunk, or
/// `page_size`, the unit in which its chunks are cut by content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    pub name: String,
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// The fields of the kind.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub body: Fields,
    pub policy: Policy,
    pub ack: Ack,
    /// Count of the copies on other nodes that a write waits for.
    pub copies: u8,
    /// What a write does while there are fewer copies.
    pub on_missing_copy: MissingCopy,
    /// Why writes wait on this node for more than `ack` asks for, if they do.
    pub downgrade: Option<String>,
    /// The state: `unattached`, `attached`, `stalled`, ...
    pub state: String,
    /// The reason for state `error` or `stalled`.
    pub reason: Option<String>,
    /// The part that cannot be read now, until it is repaired or given up.
    pub unreadable: Option<String>,
    /// Bytes that were given up: reads of them are errors until they are written again.
    pub lost_bytes: u64,
    /// The node that may write to the volume.
    pub owner: Option<String>,
    /// The host at which the owner runs, by its name; only in a cluster.
    pub owner_host: Option<String>,
    pub generation: u64,
    /// Serial up to which the datastore has the volume's changes.
    pub checkpoint: u64,
    /// The time of its creation, microseconds since 1970.
    pub created: u64,
    /// Whether it stays in service even when no client uses it.
    pub pinned: bool,
    pub clients: u64,
    /// The backlog; only when in service.
    pub backlog: Option<Backlog>,
    /// Addresses for clients.
    pub uris: Vec<String>,
}

/// A part of the inside of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debug {
    /// States, sessions, serials, overlay, the collector's view.
    Volumes,
    /// The destager's ring, and flow control.
    Queue,
    /// Segments and head of the log.
    Log,
    /// Contents of the memory that outlives the process.
    Warm,
    /// Volumes in a transitional state, what each waits for, and the locks of names.
    Locks,
}

impl std::str::FromStr for Debug {
    type Err = ApiError;

    fn from_str(word: &str) -> Result<Self, ApiError> {
        match word {
            "volumes" => Ok(Debug::Volumes),
            "queue" => Ok(Debug::Queue),
            "log" => Ok(Debug::Log),
            "warm" => Ok(Debug::Warm),
            "locks" => Ok(Debug::Locks),
            _ => {
                let message = format!(
                    "there is nothing to debug called '{word}': there are volumes, queue, log, warm, locks"
                );
                Err(ApiError::new(Kind::NotFound, message))
            }
        }
    }
}

/// A change of a volume's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Event {
    /// The time, microseconds since 1970.
    pub time: u64,
    /// The state before.
    pub from: String,
    /// The state after.
    pub to: String,
    /// The event: `attach`, `attach-done`, `offline`, ...
    pub event: String,
    pub cause: String,
    /// The time that the state before had lasted.
    pub duration_ms: u64,
}

/// The request for a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSalvage {
    /// Whether to go on without what is lost: content that cannot be read, and unfinished changes
    /// from the first lost one on. Without it, the salvage repairs what it can, and reports and
    /// keeps the rest as it is.
    #[serde(default)]
    pub accept_losses: bool,
}

/// The usage of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LogUsage {
    /// Bytes that the changes in the log may take; less than its files take.
    pub flash_bytes: u64,
    pub flash_bytes_max: u64,
    pub segments: u64,
    /// Bytes that are appended and not yet durable on flash.
    pub uncommitted_bytes: u64,
    /// Group commits since the start.
    pub commits: u64,
    pub appended_bytes: u64,
    /// Bytes that its files take on the disk, as `du` counts; absent where that cannot be known.
    pub files_bytes: Option<u64>,
    /// Of these, files of segments in use.
    pub files_used_bytes: u64,
    /// Of these, files that are kept for reuse.
    pub files_kept_bytes: u64,
}

/// The datastore.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StoreInfo {
    pub id: String,
    /// `file:///...` or `s3://...`, without secrets.
    pub url: String,
    pub format: u32,
    pub reachable: bool,
    /// Bytes that the store still takes, without its reserve for removals; absent while that is not
    /// known.
    pub room_bytes: Option<u64>,
    /// Whether the store has no known bound.
    pub unbounded: bool,
    /// Counters of the store: chunks, packs, bytes, saved by deduplication, requests, errors.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
}

/// The memory that outlives the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmStatus {
    /// The path of its file; absent when this machine has no place for one.
    pub path: Option<String>,
    /// The budget in the settings.
    pub budget_bytes: u64,
    /// Bytes that it takes. More than the budget when it was larger before: slots are never given
    /// up while the file lives.
    pub bytes: u64,
    /// Slots for segments of the log, and those that hold one.
    pub slots: u64,
    pub slots_used: u64,
    pub slot_bytes: u64,
    /// Whether its file was removed: the next start is cold.
    pub removed: bool,
    /// Segments that the last start found here and used.
    pub segments_kept: u64,
    /// Block frames; absent when there are none.
    pub frames: Option<WarmFrames>,
}

/// Block frames of the warm memory. Counters are since the start of the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmFrames {
    /// The beginning of the frames: `kept`, or empty because `new`, `other-layout`, `damaged`,
    /// `foreign` or `resized`.
    pub began: String,
    pub bytes_max: u64,
    /// Bytes of their content.
    pub bytes: u64,
    pub frames: u64,
    pub frames_max: u64,
    /// Of these, the large ones.
    pub frames_large: u64,
    pub frames_large_max: u64,
    /// Frames that this process has verified or written.
    pub in_use: u64,
    pub hits: u64,
    pub misses: WarmMisses,
    pub insertions: u64,
    pub evictions: u64,
    /// Frames of an earlier process that were verified at their first use.
    pub verifications: u64,
    /// Blocks that fit no frame.
    pub too_long: u64,
}

/// Misses of the block frames that the store had to serve, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmMisses {
    /// Never inserted, as far as is known.
    pub absent: u64,
    /// Evicted lately.
    pub evicted: u64,
    /// Found, but did not verify.
    pub damaged: u64,
    /// The frames began empty.
    pub cold: u64,
    /// The frames began empty, because their layout was of another binary.
    pub other_layout: u64,
}

/// The result of dropping the frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmDropped {
    pub frames: u64,
}

/// The report of the process' start, up to the first reply to a client of NBD. Times are
/// microseconds after the birth of the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootReport {
    pub incarnation: u64,
    pub version: String,
    pub pid: u32,
    /// The source of the moment of birth: `supervisor` (exact) or `kernel` (to 10 ms). When absent,
    /// times count from the first instruction.
    pub born_by: Option<String>,
    /// The time when it listened; absent only while it starts.
    pub listening_us: Option<u64>,
    /// The time when the first reply to a client was sent; absent before.
    pub first_reply_us: Option<u64>,
    /// The phases by their beginning, parts after the whole. Some run concurrently.
    pub phases: Vec<BootPhase>,
    /// Phases for which there was no room.
    pub phases_left_out: u64,
    /// Tree nodes and chunks that were read before the first reply, by their beginning; only the
    /// first ones.
    pub fetches: Vec<BootFetch>,
    /// Counts of all such reads, by their source.
    pub fetched: BootFetched,
    /// Misses of warm memory before the first reply, by cause.
    pub misses: WarmMisses,
    /// The block frames since the start of the process; absent when there are none.
    pub frames: Option<WarmFrames>,
}

/// A phase of the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootPhase {
    pub name: String,
    /// The phase that this one is a part of.
    pub part_of: Option<String>,
    pub began_us: u64,
    pub took_us: u64,
    /// Bytes of the changes that it brought back from the log, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A tree node or a chunk that the start needed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootFetch {
    /// `node` or `chunk`.
    pub what: String,
    pub name: String,
    /// `ram`, `warm` or `store`.
    pub source: String,
    pub began_us: u64,
    /// Microseconds, with a fraction: a read from memory takes less than one.
    pub took_us: f64,
}

/// Reads of the start, by their source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootFetched {
    pub ram: u64,
    pub warm: u64,
    pub store: u64,
}

/// The state of the sweep, and the result of the last one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SweepStatus {
    /// The job that runs now.
    pub running: Option<String>,
    /// The time when the last one ended, microseconds since 1970.
    pub finished: Option<u64>,
    /// The time when the next one starts by itself, microseconds since 1970.
    pub next: Option<u64>,
    /// Counters of the last one: packs seen, condemned, removed, bytes freed.
    #[schema(value_type = Object)]
    pub last: serde_json::Value,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    #[default]
    Running,
    Done,
    Failed,
    /// Cancelled at the request of a user.
    Cancelled,
}

/// Long work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Job {
    pub id: String,
    /// `attach`, `drain`, `salvage`, `scrub`, `space`, `sweep`, `sweep-plan`, `verify`.
    pub kind: String,
    /// The object of its work, for users.
    pub subject: String,
    pub state: JobState,
    /// In `unit`.
    pub done: u64,
    /// In `unit`; absent while it is not known.
    pub total: Option<u64>,
    /// What `done` and `total` count: `bytes`, `steps`, `chunks`, `changes`, `volumes`.
    pub unit: String,
    /// Time left; only where bytes are counted and all of them are known.
    pub eta_ms: Option<u64>,
    /// Microseconds since 1970.
    pub started: u64,
    pub finished: Option<u64>,
    /// Its findings, when done.
    #[schema(value_type = Object)]
    pub result: serde_json::Value,
    /// The reason for its failure.
    pub problem: Option<Problem>,
}
