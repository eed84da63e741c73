//! `/metrics`: counters that the parts keep by themselves, and gauges that are read for each
//! request.

use crate::assemble::Node;
use crate::cluster::Membership;
use crate::space::Files;
use ::metrics::{counter, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use rekindle_datastore::Room;
use rekindle_front::http::api::{Health, MemoryBudget};
use std::sync::OnceLock;
use std::time::Duration;

/// Upper ends of the buckets of all histograms, seconds: from a cached read to a store that is
/// away.
const SECONDS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0];

/// The one recorder of the process.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder. Must precede the construction of the parts, which keep handles to it.
pub fn install() {
    RECORDER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().set_buckets(&SECONDS).ok()?.build_recorder();
        let handle = recorder.handle();
        // Fails if a host program has installed its own recorder. Then `/metrics` is empty, and the
        // host's recorder has everything.
        ::metrics::set_global_recorder(recorder).ok()?;
        describe();
        Some(handle)
    });
}

/// Renders all metrics in the Prometheus text format.
#[must_use]
pub fn render(node: Option<&Node>) -> String {
    let Some(handle) = RECORDER.get().and_then(Option::as_ref) else { return String::new() };
    if let Some(node) = node {
        observe(node);
    }
    handle.run_upkeep();
    handle.render()
}

/// Returns the kind and the help text of a metric that another module renders.
pub(crate) fn described(name: &str) -> (&'static str, &'static str) {
    let found = HELP.iter().find(|(_, known, _)| *known == name);
    found.map_or(("untyped", ""), |(shape, _, help)| (shape.word(), *help))
}

/// Kind, name and help text of each metric. Every name in the product is here: a test searches the
/// sources for others.
const HELP: &[(Shape, &str, &str)] = &[
    (
        Shape::Gauge,
        "rekindle_backlog_bytes",
        "Acknowledged and not yet in the datastore, all volumes.",
    ),
    (
        Shape::Gauge,
        "rekindle_backlog_changes",
        "Changes that are not yet in the datastore, all volumes.",
    ),
    (
        Shape::Gauge,
        "rekindle_backlog_age_seconds",
        "Age of the oldest change that is not yet in the datastore.",
    ),
    (
        Shape::Gauge,
        "rekindle_backlog_delay_seconds",
        "Longest delay that flow control adds to a write now.",
    ),
    (Shape::Gauge, "rekindle_build_info", "Always 1; the label says which version runs."),
    (Shape::Gauge, "rekindle_cache_bytes", "Memory that cached chunks take."),
    (Shape::Counter, "rekindle_cache_hits_total", "Chunks and tree nodes found in the cache."),
    (
        Shape::Counter,
        "rekindle_cache_misses_total",
        "Chunks and tree nodes not found in the cache.",
    ),
    (
        Shape::Counter,
        "rekindle_cache_waits_total",
        "Chunks for which a reader waited, of data and of metadata.",
    ),
    (Shape::Counter, "rekindle_cache_fetched_ahead_total", "Chunks fetched ahead of a reader."),
    (
        Shape::Counter,
        "rekindle_cache_fetched_in_vain_total",
        "Chunks that were fetched ahead and left the cache before a reader asked.",
    ),
    (Shape::Counter, "rekindle_collector_decisions_total", "Decisions about idle volumes."),
    (Shape::Counter, "rekindle_collector_detached_total", "Idle volumes taken out of service."),
    (Shape::Gauge, "rekindle_collector_due", "Idle volumes that are due to go out of service."),
    (Shape::Counter, "rekindle_content_chunks_total", "Chunks that batches have put into packs."),
    (
        Shape::Counter,
        "rekindle_content_deduplicated_chunks_total",
        "Chunks that the store had already.",
    ),
    (
        Shape::Counter,
        "rekindle_content_bytes_total",
        "Bytes of chunks before deduplication and compression.",
    ),
    (
        Shape::Counter,
        "rekindle_content_deduplicated_bytes_total",
        "Bytes of chunks that the store had already.",
    ),
    (
        Shape::Gauge,
        "rekindle_cluster_holders_ready",
        "Holders of copies of this node's log that could take it over now.",
    ),
    (Shape::Counter, "rekindle_cluster_takeovers_total", "Lost nodes that went on here."),
    (Shape::Counter, "rekindle_content_stored_bytes_total", "Bytes of chunks as they are stored."),
    (Shape::Counter, "rekindle_content_packs_total", "Packs uploaded."),
    (
        Shape::Counter,
        "rekindle_destaged_bytes_total",
        "Bytes of changes brought into the datastore.",
    ),
    (Shape::Counter, "rekindle_destaged_changes_total", "Changes brought into the datastore."),
    (Shape::Counter, "rekindle_destage_batches_total", "Batches committed to the datastore."),
    (Shape::Counter, "rekindle_destage_errors_total", "Batches that failed and are tried again."),
    (
        Shape::Gauge,
        "rekindle_disk_free_bytes",
        "Room on the disk of the daemon's folder, at the last look.",
    ),
    (
        Shape::Gauge,
        "rekindle_health",
        "1 for the state that the daemon is in: well, degraded or failing.",
    ),
    (Shape::Gauge, "rekindle_index_bytes", "Memory that the index of known chunks takes."),
    (Shape::Counter, "rekindle_log_appended_bytes_total", "Bytes appended to the log."),
    (Shape::Counter, "rekindle_log_commits_total", "Synced writes of the log."),
    (
        Shape::Counter,
        "rekindle_log_exhausted_total",
        "Times the machine refused the log something.",
    ),
    (Shape::Gauge, "rekindle_log_flash_bytes", "Flash that segments in use take."),
    (Shape::Gauge, "rekindle_log_flash_max_bytes", "Flash that the log may take."),
    (Shape::Gauge, "rekindle_log_segments", "Segments in use."),
    (Shape::Counter, "rekindle_log_segments_opened_total", "Segments opened."),
    (Shape::Gauge, "rekindle_log_uncommitted_bytes", "Appended and not yet durable on flash."),
    (
        Shape::Gauge,
        "rekindle_log_files_bytes",
        "Disk that the files of the log take, by use: in use, or kept to be written again.",
    ),
    (
        Shape::Gauge,
        "rekindle_lost_bytes",
        "Bytes that were given up, of volumes that were asked for: reads of them are errors until they are written again.",
    ),
    (Shape::Gauge, "rekindle_memory_max_bytes", "What a budget of memory may take."),
    (Shape::Gauge, "rekindle_memory_used_bytes", "What is used of a budget of memory."),
    (Shape::Counter, "rekindle_nbd_errors_total", "NBD requests answered with an error."),
    (Shape::Counter, "rekindle_nbd_read_bytes_total", "Bytes read by NBD clients."),
    (Shape::Counter, "rekindle_nbd_requests_total", "NBD requests."),
    (Shape::Gauge, "rekindle_nbd_sessions", "Connected NBD clients."),
    (Shape::Counter, "rekindle_nbd_written_bytes_total", "Bytes written by NBD clients."),
    (Shape::Counter, "rekindle_nfs_calls_total", "Calls of NFS and MOUNT."),
    (Shape::Counter, "rekindle_nfs_errors_total", "NFS calls answered with an error."),
    (Shape::Counter, "rekindle_nfs_read_bytes_total", "Bytes read by NFS clients."),
    (
        Shape::Counter,
        "rekindle_nfs_replays_total",
        "NFS calls that had been carried out before: only their replies were made again.",
    ),
    (Shape::Gauge, "rekindle_nfs_sessions", "Connected NFS clients."),
    (Shape::Counter, "rekindle_nfs_written_bytes_total", "Bytes written by NFS clients."),
    (Shape::Gauge, "rekindle_node_incarnation", "Counts the starts of this node."),
    (Shape::Gauge, "rekindle_salvages_running", "Volumes that are being salvaged."),
    (Shape::Counter, "rekindle_salvages_total", "Salvages that have ended."),
    (
        Shape::Gauge,
        "rekindle_salvages_waiting",
        "Volumes that wait for a salvage, or for a person's word about one.",
    ),
    (Shape::Counter, "rekindle_store_bytes_total", "Bytes sent to and read from the datastore."),
    (Shape::Counter, "rekindle_store_calls_total", "Calls to the datastore."),
    (
        Shape::Counter,
        "rekindle_store_requests_total",
        "Calls to the datastore, by the part of the store that they were for.",
    ),
    (Shape::Counter, "rekindle_store_errors_total", "Calls to the datastore that failed."),
    (Shape::Histogram, "rekindle_store_seconds", "Time that calls to the datastore took."),
    (
        Shape::Gauge,
        "rekindle_store_away_seconds",
        "For how long the store has not answered; 0 while it does.",
    ),
    (
        Shape::Gauge,
        "rekindle_store_room_bytes",
        "How much more the store takes, at the last look; absent when it has no bound.",
    ),
    (Shape::Histogram, "rekindle_volume_attach_seconds", "Time that attaching a volume took."),
    (Shape::Counter, "rekindle_volume_attaches_total", "Volumes brought into service."),
    (Shape::Counter, "rekindle_volume_changes_total", "Changes of the state of volumes."),
    (
        Shape::Gauge,
        "rekindle_volume_passing_age_seconds",
        "Longest time that a volume has been changing its state.",
    ),
    (
        Shape::Histogram,
        "rekindle_volume_passing_seconds",
        "Time that volumes spent changing their state.",
    ),
    (
        Shape::Counter,
        "rekindle_volume_errors_total",
        "NBD requests answered with an error, by volume.",
    ),
    (Shape::Counter, "rekindle_volume_read_bytes_total", "Bytes read by NBD clients, by volume."),
    (
        Shape::Histogram,
        "rekindle_volume_request_seconds",
        "Time from taking an NBD request to its reply, by volume and command.",
    ),
    (
        Shape::Counter,
        "rekindle_volume_requests_total",
        "NBD requests, by volume and command, since its first client of this start.",
    ),
    (
        Shape::Counter,
        "rekindle_volume_written_bytes_total",
        "Bytes written by NBD clients, by volume.",
    ),
    (
        Shape::Gauge,
        "rekindle_volumes",
        "Volumes by state, of those that were asked for since the start.",
    ),
    (
        Shape::Gauge,
        "rekindle_sweep_failed",
        "1 when the last sweep failed: no space is given back.",
    ),
    (
        Shape::Gauge,
        "rekindle_volumes_clients_wait",
        "Volumes whose clients wait for the store: for a write, or to come into service.",
    ),
    (
        Shape::Gauge,
        "rekindle_volumes_late",
        "Volumes whose oldest change is older than it should be.",
    ),
    (
        Shape::Gauge,
        "rekindle_volumes_unreadable",
        "Volumes of which a part cannot be read, until it comes back, an hour has passed or a person decides.",
    ),
    (Shape::Gauge, "rekindle_volumes_stalled", "Volumes whose writes wait."),
    (Shape::Gauge, "rekindle_volumes_stuck", "Volumes that take too long to change their state."),
    (
        Shape::Gauge,
        "rekindle_volumes_unmetered",
        "Times that a volume got no metrics of its own, because too many had some.",
    ),
    (
        Shape::Counter,
        "rekindle_warm_frame_evictions_total",
        "Block frames that gave way to others.",
    ),
    (Shape::Counter, "rekindle_warm_frame_hits_total", "Blocks found in warm memory."),
    (Shape::Counter, "rekindle_warm_frame_insertions_total", "Blocks put into warm memory."),
    (Shape::Counter, "rekindle_warm_frame_misses_total", "Blocks not found in warm memory."),
    (
        Shape::Gauge,
        "rekindle_warm_removed",
        "1 when the file of the warm memory was removed: the next start is cold.",
    ),
];

/// The three kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Counter,
    Gauge,
    Histogram,
}

impl Shape {
    fn word(self) -> &'static str {
        match self {
            Shape::Counter => "counter",
            Shape::Gauge => "gauge",
            Shape::Histogram => "histogram",
        }
    }
}

fn describe() {
    for &(shape, name, help) in HELP {
        match shape {
            Shape::Counter => ::metrics::describe_counter!(name, help),
            Shape::Gauge => ::metrics::describe_gauge!(name, help),
            Shape::Histogram => ::metrics::describe_histogram!(name, help),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; 53 bits are 8 PiB")]
fn set(name: &'static str, value: u64) {
    gauge!(name).set(value as f64);
}

fn set_seconds(name: &'static str, milliseconds: u64) {
    gauge!(name).set(Duration::from_millis(milliseconds).as_secs_f64());
}

/// Sets a counter that a part keeps by itself.
fn count(name: &'static str, value: u64) {
    counter!(name).absolute(value);
}

fn observe(node: &Node) {
    gauge!("rekindle_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let log = node.log.usage();
    set("rekindle_log_flash_bytes", log.flash_bytes);
    set("rekindle_log_flash_max_bytes", log.flash_bytes_max);
    set("rekindle_log_segments", log.segments);
    set("rekindle_log_uncommitted_bytes", log.uncommitted_bytes);
    count("rekindle_log_appended_bytes_total", log.appended_bytes);
    set("rekindle_cluster_holders_ready", node.membership().map_or(0, Membership::ready));
    let content = node.content.stats();
    count("rekindle_content_chunks_total", content.chunks_written);
    count("rekindle_content_deduplicated_chunks_total", content.chunks_deduplicated);
    count("rekindle_content_bytes_total", content.bytes_in);
    count("rekindle_content_deduplicated_bytes_total", content.bytes_deduplicated);
    count("rekindle_content_stored_bytes_total", content.bytes_stored);
    count("rekindle_content_packs_total", content.packs_written);
    count("rekindle_cache_hits_total", content.cache_hits);
    count("rekindle_cache_misses_total", content.cache_misses);
    let waits = [("data", content.data_waits), ("metadata", content.metadata_waits)];
    for (class, count) in waits {
        counter!("rekindle_cache_waits_total", "class" => class).absolute(count);
    }
    count("rekindle_cache_fetched_ahead_total", content.fetched_ahead);
    count("rekindle_cache_fetched_in_vain_total", content.fetched_in_vain);
    set("rekindle_cache_bytes", content.cache_bytes);
    set("rekindle_index_bytes", content.index_bytes);
    set("rekindle_node_incarnation", node.incarnation.0);
    warm_frames(node);
    backlog(node);
    transitional(node);
    for (state, volumes) in node.volumes.states() {
        gauge!("rekindle_volumes", "state" => state.as_str())
            .set(f64::from(u32::try_from(volumes).unwrap_or(u32::MAX)));
    }
}

/// Sets the gauges of the node's health.
pub(crate) fn observe_health(health: &Health, disk_free: Option<u64>) {
    for state in ["well", "degraded", "failing"] {
        gauge!("rekindle_health", "state" => state).set(f64::from(u8::from(health.state == state)));
    }
    let away = health.troubles.iter().find(|trouble| trouble.what == "store-away");
    let away_ms = away.and_then(|trouble| trouble.since_ms).unwrap_or(0);
    set_seconds("rekindle_store_away_seconds", away_ms);
    let has = |what: &str| health.troubles.iter().filter(|trouble| trouble.what == what).count();
    set("rekindle_volumes_clients_wait", has("clients-wait") as u64);
    set("rekindle_sweep_failed", has("sweep-failed") as u64);
    if let Some(free) = disk_free {
        set("rekindle_disk_free_bytes", free);
    }
}

/// Sets the gauges of the memory budgets.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; 53 bits are 8 PiB")]
pub(crate) fn observe_memory(budgets: &[MemoryBudget]) {
    for budget in budgets {
        let labels = [("budget", budget.name.clone())];
        gauge!("rekindle_memory_used_bytes", &labels).set(budget.used_bytes as f64);
        gauge!("rekindle_memory_max_bytes", &labels).set(budget.budget_bytes as f64);
    }
}

/// Sets the gauges of the last look, and of the volumes without metrics.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; 53 bits are 8 PiB")]
pub(crate) fn observe_space(
    files: Option<Files>,
    room: Option<Room>,
    warm_is_removed: bool,
    unmetered: u64,
) {
    if let Some(files) = files {
        gauge!("rekindle_log_files_bytes", "use" => "used").set(files.used as f64);
        gauge!("rekindle_log_files_bytes", "use" => "kept").set(files.kept as f64);
    }
    if let Some(Room::Bytes(bytes)) = room {
        set("rekindle_store_room_bytes", bytes);
    }
    set("rekindle_warm_removed", u64::from(warm_is_removed));
    set("rekindle_volumes_unmetered", unmetered);
}

/// Sets the counters of block frames. Their occupancy is left out: it takes a look at every set.
fn warm_frames(node: &Node) {
    let Some(frames) = &node.warm.frames else { return };
    let stats = frames.stats();
    count("rekindle_warm_frame_hits_total", stats.hits);
    count("rekindle_warm_frame_insertions_total", stats.insertions);
    count("rekindle_warm_frame_evictions_total", stats.evictions);
    for cause in rekindle_warm::Miss::ALL {
        let counter = counter!("rekindle_warm_frame_misses_total", "cause" => cause.as_str());
        counter.absolute(stats.missed(cause));
    }
}

/// Sets the gauges of volumes in transitional states: the age of the oldest, and the number of
/// stuck ones.
fn transitional(node: &Node) {
    let (transitional, _) = node.volumes.transitional();
    let age = transitional.first().map_or(0, |oldest| oldest.age_ms);
    set_seconds("rekindle_volume_passing_age_seconds", age);
    set("rekindle_volumes_stuck", node.volumes.stuck().total);
    let (running, waiting): (Vec<_>, Vec<_>) =
        node.volumes.salvages().into_iter().partition(|row| row.worker.is_some());
    set("rekindle_salvages_running", running.len() as u64);
    let impaired = node.volumes.impaired();
    let unreadable = impaired.iter().filter(|one| one.unreadable.is_some()).count() as u64;
    let lost: u64 = impaired.iter().map(|one| one.lost_bytes).sum();
    set("rekindle_volumes_unreadable", unreadable);
    // Volumes in the queue, and volumes that wait for an operator or for the store.
    let queued = |name: &str| waiting.iter().any(|row| row.volume == name);
    let idle = impaired.iter().filter(|one| one.unreadable.is_some() && !queued(&one.volume));
    set("rekindle_salvages_waiting", (waiting.len() + idle.count()) as u64);
    set("rekindle_lost_bytes", lost);
    set("rekindle_collector_due", node.volumes.collected().due);
}

/// Sets the gauges of the backlog, over all volumes together: a series of each volume would never
/// be forgotten.
fn backlog(node: &Node) {
    let (mut changes, mut bytes, mut age, mut delay, mut stalled, mut late) = (0, 0, 0, 0, 0, 0);
    for volume in node.staging.volumes() {
        let backlog = volume.backlog();
        changes += backlog.changes;
        bytes += crate::health::acknowledged(&volume, &backlog);
        age = age.max(backlog.age_ms);
        delay = delay.max(backlog.delay_ms);
        stalled += u64::from(backlog.stalled.is_some());
        late += u64::from(backlog.late);
    }
    set("rekindle_backlog_changes", changes);
    set("rekindle_backlog_bytes", bytes);
    set_seconds("rekindle_backlog_age_seconds", age);
    set_seconds("rekindle_backlog_delay_seconds", delay);
    set("rekindle_volumes_stalled", stalled);
    set("rekindle_volumes_late", late);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Collects the quoted metric names in the sources of the product.
    fn used(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                used(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let macros = [
                    "counter!(",
                    "gauge!(",
                    "histogram!(",
                    "set(",
                    "set_seconds(",
                    "count(",
                    "family(",
                    "each(",
                ];
                for part in text.split('"').collect::<Vec<_>>().windows(2) {
                    let before = part[0].trim_end();
                    if part[1].starts_with("rekindle_")
                        && macros.iter().any(|end| before.ends_with(end))
                    {
                        names.insert(part[1].to_owned());
                    }
                }
            }
        }
    }

    #[test]
    fn every_metric_is_described_once_and_named_as_prometheus_wants() {
        let mut names = BTreeSet::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in ["log", "datastore", "content", "staging", "volume", "block", "front", "node"] {
            used(&crates.join(name).join("src"), &mut names);
        }
        assert!(names.len() > 40, "the sources are read: {names:?}");
        let described: BTreeSet<String> =
            HELP.iter().map(|(_, name, _)| (*name).to_owned()).collect();
        assert_eq!(described.len(), HELP.len(), "each once");
        let silent: Vec<_> = names.difference(&described).collect();
        assert!(silent.is_empty(), "used and not described: {silent:?}");
        let unused: Vec<_> = described.difference(&names).collect();
        assert!(unused.is_empty(), "described and not used: {unused:?}");
        for (shape, name, help) in HELP {
            assert_eq!(*shape == Shape::Counter, name.ends_with("_total"), "{name}");
            assert!(*shape != Shape::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(!name.contains("milliseconds"), "{name}");
            assert!(help.ends_with('.'), "{name}: {help}");
        }
    }

    #[test]
    fn what_is_rendered_has_help_and_types() {
        install();
        observe_health(&crate::health::away("starting", "it starts"), Some(7));
        let text = render(None);
        for line in [
            "# HELP rekindle_health 1 for the state",
            "# TYPE rekindle_health gauge",
            "rekindle_health{state=\"failing\"} 1",
            "rekindle_disk_free_bytes 7",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
