//! The vocabulary of the API: what can be asked, what is answered, how it fails.
//!
//! Requests refuse fields they do not know (a typing error must not become a default); answers are read tolerantly, so
//! that an older command line understands a newer node.

use base::Kind;
use env::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What a method of [`Api`] gives.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// What the node can be asked. Long work gives a [`Job`] at once, to be polled by [`Api::job`].
pub trait Api: super::kept::Keep {
    /// Whether the node serves, and if not, why. A plain call: it must answer even when everything else hangs.
    fn health(&self) -> Health;
    /// The node at a glance.
    fn status(&self) -> Answer<'_, Status>;
    /// All volumes, by name.
    fn volumes(&self) -> Answer<'_, Vec<Volume>>;
    /// Makes a volume.
    fn create_volume(&self, request: CreateVolume) -> Answer<'_, Volume>;
    /// One volume.
    fn volume<'a>(&'a self, name: &'a str) -> Answer<'a, Volume>;
    /// Moves a volume to the trash, or removes it for good (`now`); `force` lets go of its clients.
    fn remove_volume<'a>(&'a self, name: &'a str, force: bool, now: bool) -> Answer<'a, ()>;
    /// Brings all unfinished changes of a volume into the datastore.
    fn drain_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Job>;
    /// Sets or takes away a volume's pin: with one it stays in service however long nobody uses it.
    fn pin_volume<'a>(&'a self, name: &'a str, pinned: bool) -> Answer<'a, Volume>;
    /// What happened to a volume, oldest first.
    fn history<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<Event>>;
    /// Volumes that are being salvaged, then those that wait for it.
    fn salvages(&self) -> Answer<'_, Vec<Salvage>>;
    /// Starts a salvage of a volume.
    fn start_salvage<'a>(&'a self, name: &'a str, request: StartSalvage) -> Answer<'a, Job>;
    /// Breaks a salvage off.
    fn cancel_salvage<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
    /// The last salvages of a volume, or of all, oldest first within a volume.
    fn salvage_history<'a>(&'a self, name: Option<&'a str>) -> Answer<'a, Vec<SalvageAccount>>;
    /// How full the log is.
    fn log_usage(&self) -> Answer<'_, LogUsage>;
    /// The datastore.
    fn store(&self) -> Answer<'_, StoreInfo>;
    /// What the memory that outlives the process holds, and how often it helped.
    fn warm(&self) -> Answer<'_, WarmStatus>;
    /// What the start of this process took, up to the first reply to a client.
    fn boot(&self) -> Answer<'_, BootReport>;
    /// Empties the block frames of the warm memory; segments stay.
    fn drop_warm_frames(&self) -> Answer<'_, WarmDropped>;
    /// What the sweep does and did.
    fn sweep(&self) -> Answer<'_, SweepStatus>;
    /// Starts a sweep.
    fn start_sweep(&self, request: StartSweep) -> Answer<'_, Job>;
    /// Somebody's word that another node of the store is gone for good: sweeps wait for it no longer.
    fn dismiss_node(&self, request: DismissNode) -> Answer<'_, Dismissed>;
    /// Starts a count of what volumes take in the store; of one of them, or of all.
    fn start_space(&self, request: StartSpace) -> Answer<'_, Job>;
    /// Starts a check of what is stored.
    fn start_verify(&self, request: StartVerify) -> Answer<'_, Job>;
    /// Brings volumes into service and reads them here and there, as if all clients came at once.
    fn start_attach(&self, request: StartAttach) -> Answer<'_, Job>;
    /// Jobs, newest first; finished ones are forgotten after a while.
    fn jobs(&self) -> Answer<'_, Vec<Job>>;
    /// One job.
    fn job<'a>(&'a self, id: &'a str) -> Answer<'a, Job>;
    /// Breaks a job off: at once, or after the step that it is in.
    fn cancel_job<'a>(&'a self, id: &'a str) -> Answer<'a, Job>;
    /// The inside of the node, bounded; of the volumes whose names begin with `prefix`. Asks the datastore for nothing.
    fn debug<'a>(&'a self, what: Debug, prefix: &'a str) -> Answer<'a, serde_json::Value>;
    /// Begins to stop the node; gives how far it is after a moment, so that whoever asks for a quick stop mostly sees its
    /// end. Asked again without `drain`, it makes a quick stop of a draining one.
    fn shutdown(&self, request: Shutdown) -> Answer<'_, Stopping>;
    /// How far the stop is. Waits a little for news, so that whoever asks again and again sees the end.
    fn stopping(&self) -> Answer<'_, Stopping>;
}

/// An answer that is an error: what to do about it, and the words for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: Kind,
    pub message: String,
}

impl ApiError {
    /// An error of `kind`; the message says what to do next.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// How every error looks on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What to do about it: `invalid`, `not-found`, `exists`, `conflict`, `fenced`, `full`, `damaged`, `unavailable`,
    /// `unsupported` or `io`.
    pub error: String,
    /// For people.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

impl From<&ApiError> for Problem {
    fn from(error: &ApiError) -> Self {
        Self {
            error: error.kind.to_string(),
            message: error.message.clone(),
            retryable: error.kind.is_retryable(),
        }
    }
}

/// After what a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// After the datastore has it; nothing is cached on the node.
    Uncached,
    /// After the datastore has it; what was written stays cached on the node.
    Through,
    /// After the node's log has it; the datastore gets it later.
    #[default]
    Back,
}

/// What "the log has it" means, for policy `back`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// On flash, synced.
    #[default]
    Flash,
    /// In memory that outlives the process; FLUSH and FUA still reach flash.
    Memory,
}

/// A volume to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// 1 to 255 bytes, no `/`, no leading dot.
    pub name: String,
    /// What it is; "block" is the only kind so far.
    #[serde(default = "kind_block")]
    pub kind: String,
    /// Bytes, a multiple of 512; or text such as "20G".
    #[serde(deserialize_with = "size")]
    #[schema(schema_with = size_schema)]
    pub size: u64,
    /// Bytes of a chunk, a power of two from 4 KiB to 1 MiB; or text such as "16K".
    #[serde(default = "block_size_default", deserialize_with = "size")]
    #[schema(schema_with = size_schema)]
    pub block_size: u64,
    #[serde(default)]
    pub policy: Policy,
    #[serde(default)]
    pub ack: Ack,
}

fn kind_block() -> String {
    "block".to_owned()
}

fn block_size_default() -> u64 {
    base::limits::BLOCK_BYTES_DEFAULT
}

/// Reads a number of bytes, or text as in `base::units`.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Size;
    impl serde::de::Visitor<'_> for Size {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size: a number of bytes, or text such as \"20G\"")
        }
        fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<u64, E> {
            Ok(bytes)
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
            base::units::parse_size(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Size)
}

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

/// A sweep to be started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSweep {
    /// Only say what would be freed.
    #[serde(default)]
    pub dry_run: bool,
}

/// A node that will never come back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DismissNode {
    /// Its id, as the failure of the sweep names it.
    pub node: String,
}

/// A node for which no sweep waits any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Dismissed {
    /// Its id.
    pub node: String,
    /// Which of its starts: when it is started again all the same, sweeps wait for it again.
    pub start: u64,
}

/// Volumes to be brought into service, and read here and there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartAttach {
    /// Only this many, the first ones by name; all of them when absent.
    #[serde(default)]
    pub first: Option<usize>,
    /// Blocks read of each, spread evenly over it.
    #[serde(default)]
    pub reads: u64,
    /// Volumes at once; one when absent.
    #[serde(default)]
    pub at_once: Option<usize>,
}

/// A count of space to be started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSpace {
    /// Only tell of this volume; of all of them when absent.
    #[serde(default)]
    pub volume: Option<String>,
}

/// A check to be started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartVerify {
    /// Only this volume; all of them when absent.
    #[serde(default)]
    pub volume: Option<String>,
    /// Read and hash every chunk, not only the trees.
    #[serde(default)]
    pub deep: bool,
    /// Ask for a salvage of each volume in which damage is found.
    #[serde(default)]
    pub salvage: bool,
    /// Bytes read per second at most; as fast as it goes when absent.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
}

/// The end of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    /// First bring all unfinished changes into the datastore. Without it they stay safe in the log.
    #[serde(default)]
    pub drain: bool,
}

/// How far a stop is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Stopping {
    /// `serving` (nobody has asked for a stop), `sessions`, `volumes`, `log`, `ended`.
    pub phase: String,
    /// Volumes to take out of service.
    pub volumes: u64,
    /// Of these, done.
    pub done: u64,
    /// What the rest owes to the datastore, bytes.
    pub backlog_bytes: u64,
    /// What those done still owed: it is in the log, bytes.
    pub kept_bytes: u64,
    /// Whether the backlog is waited for.
    pub draining: bool,
    /// Until the backlog is in the datastore, if known.
    pub eta_ms: Option<u64>,
    /// What is waited for, for people.
    pub waits_for: String,
}

/// How the node is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Health {
    /// No client waits for something that is wrong.
    pub ok: bool,
    /// `well`, `degraded` (something is wrong, and clients are served), `failing` (clients wait, or are refused).
    pub state: String,
    /// What is wrong, for people; what stops clients first. Empty when all is well.
    pub reasons: Vec<String>,
    /// The same, for programs.
    pub troubles: Vec<Trouble>,
    /// What is as it should be now, and will make the next start slower or dearer; for people.
    pub notes: Vec<String>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Trouble {
    /// `store-away`, `log-failed`, `log-full`, `disk-full`, `volume-stalled`, `volume-not-destaged`, `volume-late`,
    /// `volume-stuck`, `volumes-failed`, `volumes-salvaging`, `log-damage`, `warm-damaged`, `starting`, `stopping`, `fenced`.
    pub what: String,
    /// Whether clients wait for it.
    pub clients_wait: bool,
    /// For how long, if known.
    pub since_ms: Option<u64>,
    /// For people.
    pub message: String,
}

/// A place where clients connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Endpoint {
    /// `nbd` or `http`.
    pub protocol: String,
    /// As a client writes it: `nbd+unix:///?socket=...`, `nbd://127.0.0.1:10809`, `http://127.0.0.1:7070`.
    pub uri: String,
}

/// The node at a glance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Status {
    pub node: String,
    pub version: String,
    /// Counts the starts of the node.
    pub incarnation: u64,
    /// `starting`, `serving` or `stopping`.
    pub state: String,
    pub uptime_ms: u64,
    pub store: String,
    pub endpoints: Vec<Endpoint>,
    pub volumes_attached: u64,
    /// Connected clients, all volumes.
    pub clients: u64,
    /// What is acknowledged and not yet in the datastore, all volumes, bytes.
    pub backlog_bytes: u64,
    pub health: Health,
    /// What may take memory, and does.
    pub memory: Vec<MemoryBudget>,
    /// Only while it stops.
    pub stopping: Option<Stopping>,
    /// Whatever else the node likes to tell: phases of the start, cache hit rates.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
}

/// A bound of the node's memory, and what is used of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct MemoryBudget {
    /// The setting that bounds it.
    pub name: String,
    /// For people.
    pub what: String,
    pub used_bytes: u64,
    pub budget_bytes: u64,
}

/// A volume as people see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    pub name: String,
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a chunk.
    pub block_size: u64,
    pub policy: Policy,
    pub ack: Ack,
    /// As in the automaton: `unattached`, `attached`, `stalled`, ...
    pub state: String,
    /// Why it is in state `error` or `stalled`.
    pub reason: Option<String>,
    /// What of it cannot be read and waits to be decided or mended.
    pub unreadable: Option<String>,
    /// Bytes that were given up: reads of them are errors until they are written again.
    pub lost_bytes: u64,
    /// The node that may write.
    pub owner: Option<String>,
    pub generation: u64,
    /// Serial up to which the datastore has the volume's changes.
    pub checkpoint: u64,
    /// Microseconds since 1970.
    pub created: u64,
    /// It stays in service however long nobody uses it.
    pub pinned: bool,
    pub clients: u64,
    /// Only when in service.
    pub backlog: Option<Backlog>,
    /// How a client reaches it.
    pub uris: Vec<String>,
}

/// What a volume owes to the datastore, and why it is slow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Backlog {
    /// Unfinished changes.
    pub changes: u64,
    pub bytes: u64,
    /// Age of the oldest.
    pub age_ms: u64,
    /// Until all present ones are in the datastore, if known.
    pub eta_ms: Option<u64>,
    /// Older than the deadline.
    pub late: bool,
    /// Present delay of an acknowledgement by flow control.
    pub delay_ms: u64,
    /// Why writes wait altogether, if they do.
    pub stalled: Option<String>,
    /// Error of the last attempt to destage, if it failed.
    pub destage_error: Option<String>,
    pub serial: u64,
    pub checkpoint: u64,
}

/// A part of the inside of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debug {
    /// States, sessions, serials, overlay, what the collector thinks.
    Volumes,
    /// The destager's ring, and flow control.
    Queue,
    /// Segments and head of the log.
    Log,
    /// What lies where in the memory that outlives the process.
    Warm,
    /// Who has the say over a volume, what it waits for, and who waits for it.
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

/// Something that happened to a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Event {
    /// Microseconds since 1970.
    pub time: u64,
    /// State before.
    pub from: String,
    /// State after.
    pub to: String,
    /// What happened, as in the automaton: `attach`, `attach-done`, `offline`, ...
    pub event: String,
    pub cause: String,
    /// How long the state before had lasted.
    pub duration_ms: u64,
}

/// How to salvage a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSalvage {
    /// Go on without what is lost: content that cannot be had, and unfinished changes from the first one that is lost. Without
    /// it, what can be repaired is, and the rest is told and kept as it is.
    #[serde(default)]
    pub accept_losses: bool,
}

/// A volume that is being salvaged, or waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Salvage {
    pub volume: String,
    /// The datastore that it lies in.
    pub device: String,
    /// The higher, the sooner; clients that wait raise it.
    pub priority: u64,
    pub reason: String,
    pub age_ms: u64,
    /// The worker that has it; null while it waits.
    pub worker: Option<u64>,
    /// Chunks read and checked so far.
    pub chunks: u64,
}

/// One salvage of a volume: what it found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SalvageAccount {
    pub volume: String,
    /// Which attempt it was, since the last good one or since somebody asked.
    pub attempt: u32,
    pub reason: String,
    /// Microseconds since 1970.
    pub began: u64,
    pub ended: Option<u64>,
    /// `running`, `sound`, `repaired`, `failed`, `cancelled`, `interrupted`.
    pub outcome: String,
    pub lines: Vec<String>,
    /// Lines that were too many to keep.
    pub lines_more: u64,
}

/// How full the log is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LogUsage {
    /// What the changes in the log may take; it is less than its files do.
    pub flash_bytes: u64,
    pub flash_bytes_max: u64,
    pub segments: u64,
    /// Appended and not yet durable on flash.
    pub uncommitted_bytes: u64,
    /// Group commits since the start.
    pub commits: u64,
    pub appended_bytes: u64,
    /// What its files take on the disk, as `du` counts; nothing where that cannot be known.
    pub files_bytes: Option<u64>,
    /// Of these, files of segments that are in use.
    pub files_used_bytes: u64,
    /// Of these, files that are kept to be written again.
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
    /// How much more it takes, without what it keeps for removals; nothing while that is not known.
    pub room_bytes: Option<u64>,
    /// It has no bound that anybody knows.
    pub unbounded: bool,
    /// Counters of the store: chunks, packs, bytes, saved by deduplication, requests, errors.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
}

/// The memory that outlives the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmStatus {
    /// Its file; absent when this machine has no place for one.
    pub path: Option<String>,
    /// What it was told to take.
    pub budget_bytes: u64,
    /// What it takes. More than the budget when it was larger before: slots are never given up while the file lives.
    pub bytes: u64,
    /// Slots for segments of the log, and those that hold one.
    pub slots: u64,
    pub slots_used: u64,
    pub slot_bytes: u64,
    /// Somebody has removed its file: the next start is cold.
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
    /// How they began: `kept`, or empty because `new`, `other-layout`, `damaged`, `foreign` or `resized`.
    pub began: String,
    pub bytes_max: u64,
    /// Bytes of what they hold.
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

/// Misses of the block frames that the store had to make good, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmMisses {
    /// Never there, as far as is known.
    pub absent: u64,
    /// Made room for others lately.
    pub evicted: u64,
    /// There, but did not verify.
    pub damaged: u64,
    /// The frames began empty.
    pub cold: u64,
    /// They began empty because their layout was of another binary.
    pub other_layout: u64,
}

/// What was dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmDropped {
    pub frames: u64,
}

/// What the start of the process took, up to the first reply to a client of NBD. Times are microseconds after the birth
/// of the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootReport {
    pub incarnation: u64,
    pub version: String,
    pub pid: u32,
    /// How the moment of birth is known: `supervisor` (exactly), `kernel` (to 10 ms), or not at all: then times are
    /// after the first instruction.
    pub born_by: Option<String>,
    /// When it listened; absent only while it starts.
    pub listening_us: Option<u64>,
    /// When the first reply to a client was out; absent before.
    pub first_reply_us: Option<u64>,
    /// By their beginning, parts after the whole. Some are side by side.
    pub phases: Vec<BootPhase>,
    /// Phases for which there was no room.
    pub phases_left_out: u64,
    /// Tree nodes and chunks that were read before the first reply, by their beginning; the first ones of them.
    pub fetches: Vec<BootFetch>,
    /// All of them, by where they were found.
    pub fetched: BootFetched,
    /// Looks in vain at warm memory before the first reply, by cause.
    pub misses: WarmMisses,
    /// The block frames since the start of the process; absent when there are none.
    pub frames: Option<WarmFrames>,
}

/// A step of the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootPhase {
    pub name: String,
    /// The step that this is a part of.
    pub part_of: Option<String>,
    pub began_us: u64,
    pub took_us: u64,
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
    /// Microseconds, with a fraction: what lies in memory takes less than one.
    pub took_us: f64,
}

/// How many were read, by where they were found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootFetched {
    pub ram: u64,
    pub warm: u64,
    pub store: u64,
}

/// What the sweep does and did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SweepStatus {
    /// Job that runs now.
    pub running: Option<String>,
    /// When the last one ended, microseconds since 1970.
    pub finished: Option<u64>,
    /// When the next one starts by itself, microseconds since 1970.
    pub next: Option<u64>,
    /// Counters of the last one: packs seen, condemned, removed, bytes freed.
    #[schema(value_type = Object)]
    pub last: serde_json::Value,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    #[default]
    Running,
    Done,
    Failed,
    /// Broken off because somebody asked for it.
    Cancelled,
}

/// Long work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Job {
    pub id: String,
    /// `attach`, `drain`, `salvage`, `sweep`, `verify`.
    pub kind: String,
    /// What it works on, for people.
    pub subject: String,
    pub state: JobState,
    /// In `unit`.
    pub done: u64,
    /// In `unit`; nothing while nobody knows.
    pub total: Option<u64>,
    /// What `done` and `total` count: `bytes`, `steps`, `chunks`, `changes`, `volumes`.
    pub unit: String,
    /// Time left; only where bytes are counted and all of them are known.
    pub eta_ms: Option<u64>,
    /// Microseconds since 1970.
    pub started: u64,
    pub finished: Option<u64>,
    /// What it found, when done.
    #[schema(value_type = Object)]
    pub result: serde_json::Value,
    /// Why it failed.
    pub problem: Option<Problem>,
}
