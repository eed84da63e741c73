//! `/metrics`: counters that the parts keep by themselves, and gauges that are read when somebody asks.

use crate::assemble::Node;
use ::metrics::{counter, gauge};
use front::http::api::Health;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use std::time::Duration;

/// Upper ends of the buckets of all times, seconds: from a cached read to a store that is away.
const SECONDS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0];

/// The one recorder of the process.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder. Before the parts are made: they keep handles.
pub fn install() {
    RECORDER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().set_buckets(&SECONDS).ok()?.build_recorder();
        let handle = recorder.handle();
        // A host program may have its own; then `/metrics` is empty and its own has everything.
        ::metrics::set_global_recorder(recorder).ok()?;
        describe();
        Some(handle)
    });
}

/// All metrics in the Prometheus text format.
#[must_use]
pub fn render(node: Option<&Node>) -> String {
    let Some(handle) = RECORDER.get().and_then(Option::as_ref) else { return String::new() };
    if let Some(node) = node {
        observe(node);
    }
    handle.run_upkeep();
    handle.render()
}

/// What a metric is, for `# HELP`. Every name that the product uses is here; a test reads the sources for others.
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
    (Shape::Counter, "rekindle_nbd_errors_total", "NBD requests answered with an error."),
    (Shape::Counter, "rekindle_nbd_read_bytes_total", "Bytes read by NBD clients."),
    (Shape::Counter, "rekindle_nbd_requests_total", "NBD requests."),
    (Shape::Gauge, "rekindle_nbd_sessions", "Connected NBD clients."),
    (Shape::Counter, "rekindle_nbd_written_bytes_total", "Bytes written by NBD clients."),
    (Shape::Gauge, "rekindle_node_incarnation", "Counts the starts of this node."),
    (Shape::Gauge, "rekindle_salvages_running", "Volumes that are being salvaged."),
    (Shape::Counter, "rekindle_salvages_total", "Salvages that have ended."),
    (Shape::Gauge, "rekindle_salvages_waiting", "Volumes that wait for a salvage."),
    (Shape::Counter, "rekindle_store_bytes_total", "Bytes sent to and read from the datastore."),
    (Shape::Counter, "rekindle_store_calls_total", "Calls to the datastore."),
    (Shape::Counter, "rekindle_store_errors_total", "Calls to the datastore that failed."),
    (Shape::Histogram, "rekindle_store_seconds", "Time that calls to the datastore took."),
    (
        Shape::Gauge,
        "rekindle_store_away_seconds",
        "For how long the store has not answered; 0 while it does.",
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
        Shape::Gauge,
        "rekindle_volumes",
        "Volumes by state, of those that were asked for since the start.",
    ),
    (
        Shape::Gauge,
        "rekindle_volumes_late",
        "Volumes whose oldest change is older than it should be.",
    ),
    (Shape::Gauge, "rekindle_volumes_stalled", "Volumes whose writes wait."),
    (Shape::Gauge, "rekindle_volumes_stuck", "Volumes that take too long to change their state."),
    (
        Shape::Counter,
        "rekindle_warm_frame_evictions_total",
        "Block frames that gave way to others.",
    ),
    (Shape::Counter, "rekindle_warm_frame_hits_total", "Blocks found in warm memory."),
    (Shape::Counter, "rekindle_warm_frame_insertions_total", "Blocks put into warm memory."),
    (Shape::Counter, "rekindle_warm_frame_misses_total", "Blocks not found in warm memory."),
];

/// The three kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Counter,
    Gauge,
    Histogram,
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

/// A counter that a part keeps by itself.
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
    let content = node.content.stats();
    count("rekindle_content_chunks_total", content.chunks_written);
    count("rekindle_content_deduplicated_chunks_total", content.chunks_deduplicated);
    count("rekindle_content_bytes_total", content.bytes_in);
    count("rekindle_content_deduplicated_bytes_total", content.bytes_deduplicated);
    count("rekindle_content_stored_bytes_total", content.bytes_stored);
    count("rekindle_content_packs_total", content.packs_written);
    count("rekindle_cache_hits_total", content.cache_hits);
    count("rekindle_cache_misses_total", content.cache_misses);
    set("rekindle_cache_bytes", content.cache_bytes);
    set("rekindle_index_bytes", content.index_bytes);
    set("rekindle_node_incarnation", node.incarnation.0);
    warm_frames(node);
    backlog(node);
    passing(node);
    for (state, volumes) in node.volumes.states() {
        gauge!("rekindle_volumes", "state" => state.as_str())
            .set(f64::from(u32::try_from(volumes).unwrap_or(u32::MAX)));
    }
}

/// What the judgement of the node's health rests on.
pub(crate) fn observe_health(health: &Health, disk_free: Option<u64>) {
    for state in ["well", "degraded", "failing"] {
        gauge!("rekindle_health", "state" => state).set(f64::from(u8::from(health.state == state)));
    }
    let away = health.troubles.iter().find(|trouble| trouble.what == "store-away");
    let away_ms = away.and_then(|trouble| trouble.since_ms).unwrap_or(0);
    set_seconds("rekindle_store_away_seconds", away_ms);
    if let Some(free) = disk_free {
        set("rekindle_disk_free_bytes", free);
    }
}

/// Counters only: what the frames hold is a look at all of them.
fn warm_frames(node: &Node) {
    let Some(frames) = &node.warm.frames else { return };
    let stats = frames.stats();
    count("rekindle_warm_frame_hits_total", stats.hits);
    count("rekindle_warm_frame_insertions_total", stats.insertions);
    count("rekindle_warm_frame_evictions_total", stats.evictions);
    let causes = [
        ("absent", stats.absent),
        ("evicted", stats.evicted),
        ("damaged", stats.damaged),
        ("cold", stats.cold),
        ("other-layout", stats.other_layout),
    ];
    for (cause, misses) in causes {
        counter!("rekindle_warm_frame_misses_total", "cause" => cause).absolute(misses);
    }
}

/// Volumes in exclusive states: how long the oldest has been there, and how many are there for too long.
fn passing(node: &Node) {
    let (passing, _) = node.volumes.passing();
    let age = passing.first().map_or(0, |oldest| oldest.age_ms);
    set_seconds("rekindle_volume_passing_age_seconds", age);
    set("rekindle_volumes_stuck", node.volumes.stuck().total);
    let (running, waiting): (Vec<_>, Vec<_>) =
        node.volumes.salvages().into_iter().partition(|row| row.worker.is_some());
    set("rekindle_salvages_running", running.len() as u64);
    set("rekindle_salvages_waiting", waiting.len() as u64);
    set("rekindle_collector_due", node.volumes.collected().due);
}

/// Of all volumes together: one line a volume would be one line a volume for ever.
fn backlog(node: &Node) {
    let (mut changes, mut bytes, mut age, mut delay, mut stalled, mut late) = (0, 0, 0, 0, 0, 0);
    for volume in node.staging.volumes() {
        let backlog = volume.backlog();
        changes += backlog.changes;
        bytes += backlog.bytes;
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

    /// The names in quotes that begin as ours do, in the sources of the product.
    fn used(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                used(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let macros =
                    ["counter!(", "gauge!(", "histogram!(", "set(", "set_seconds(", "count("];
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
