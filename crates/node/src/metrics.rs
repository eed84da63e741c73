//! `/metrics`: counters that the parts keep by themselves, and gauges that are read when somebody asks.

use crate::assemble::Node;
use ::metrics::gauge;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;

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

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; 53 bits are 8 PiB")]
fn set(name: &'static str, value: u64) {
    gauge!(name).set(value as f64);
}

fn observe(node: &Node) {
    let log = node.log.usage();
    set("rekindle_log_flash_bytes", log.flash_bytes);
    set("rekindle_log_flash_bytes_max", log.flash_bytes_max);
    set("rekindle_log_segments", log.segments);
    set("rekindle_log_uncommitted_bytes", log.uncommitted_bytes);
    set("rekindle_log_appended_bytes", log.appended_bytes);
    let content = node.content.stats();
    set("rekindle_content_chunks_written", content.chunks_written);
    set("rekindle_content_chunks_deduplicated", content.chunks_deduplicated);
    set("rekindle_content_bytes_in", content.bytes_in);
    set("rekindle_content_bytes_deduplicated", content.bytes_deduplicated);
    set("rekindle_content_bytes_stored", content.bytes_stored);
    set("rekindle_content_packs_written", content.packs_written);
    set("rekindle_cache_hits", content.cache_hits);
    set("rekindle_cache_misses", content.cache_misses);
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

/// Counters only: what the frames hold is a look at all of them.
fn warm_frames(node: &Node) {
    let Some(frames) = &node.warm.frames else { return };
    let stats = frames.stats();
    set("rekindle_warm_frame_hits", stats.hits);
    set("rekindle_warm_frame_insertions", stats.insertions);
    set("rekindle_warm_frame_evictions", stats.evictions);
    let causes = [
        ("absent", stats.absent),
        ("evicted", stats.evicted),
        ("damaged", stats.damaged),
        ("cold", stats.cold),
        ("other-layout", stats.other_layout),
    ];
    for (cause, misses) in causes {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        gauge!("rekindle_warm_frame_misses", "cause" => cause).set(misses as f64);
    }
}

/// Volumes in exclusive states: how long the oldest has been there, and how many are there for too long.
fn passing(node: &Node) {
    let (passing, _) = node.volumes.passing();
    let age = passing.first().map_or(0, |oldest| oldest.age_ms);
    set("rekindle_volume_passing_age_milliseconds", age);
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
    set("rekindle_backlog_age_milliseconds", age);
    set("rekindle_backlog_delay_milliseconds", delay);
    set("rekindle_volumes_stalled", stalled);
    set("rekindle_volumes_late", late);
}
