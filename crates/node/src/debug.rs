//! The views of `rekindle debug`: the inside of a live node, bounded, from copies under short
//! locks. They do not ask the datastore, so they answer when everything else waits.

use crate::assemble::Node;
use crate::limits;
use rekindle_front::http::api::Debug;
use serde_json::{Value, json};

/// Shows one view, of the volumes whose names begin with `prefix`.
pub async fn show(node: &Node, what: Debug, prefix: &str) -> Value {
    match what {
        Debug::Volumes => volumes(node, prefix),
        Debug::Queue => queue(node, prefix),
        Debug::Log => log(node),
        Debug::Warm => warm(node).await,
        Debug::Locks => locks(node),
    }
}

fn volumes(node: &Node, prefix: &str) -> Value {
    let (volumes, total) = node.volumes.view(prefix, limits::DEBUG_ROWS);
    json!({
        "volumes": volumes,
        "total": total,
        "states": node.volumes.states(),
        "collector": node.volumes.collected(),
    })
}

/// Lists the volumes with the largest backlog first: the destager works on them.
fn queue(node: &Node, prefix: &str) -> Value {
    let mut owing = node.staging.volumes();
    owing.retain(|staged| staged.owes());
    let mut views: Vec<_> = owing
        .iter()
        .map(|staged| staged.view())
        .filter(|view| view.volume.starts_with(prefix))
        .collect();
    let total = views.len();
    views.sort_by(|one, other| {
        other.backlog.bytes.cmp(&one.backlog.bytes).then_with(|| one.volume.cmp(&other.volume))
    });
    views.truncate(limits::DEBUG_ROWS);
    json!({
        "destager": node.staging.view(limits::DEBUG_ROWS),
        "volumes": views,
        "total": total,
    })
}

fn log(node: &Node) -> Value {
    let view = node.log.view();
    let usage = node.log.usage();
    let count = |state: &str| view.segments.iter().filter(|row| row.state == state).count();
    let segments: Vec<Value> = view
        .segments
        .iter()
        // The newest segments are the most interesting.
        .rev()
        .take(limits::DEBUG_ROWS)
        .map(|row| {
            json!({
                "segment": row.segment.0, "file": row.file, "state": row.state, "volumes": row.volumes,
            })
        })
        .collect();
    json!({
        "head": {
            "segment": view.head.segment.0,
            "filled": view.head.filled,
            "durable": view.head.durable,
            "capacity": view.head.capacity,
            "volumes": view.head.volumes,
        },
        "appended": view.appended,
        "committed": view.committed,
        "commits": usage.commits,
        "flash_bytes": usage.flash_bytes,
        "flash_bytes_max": usage.flash_bytes_max,
        "live": count("live"),
        "dead": count("dead"),
        "unread": count("unread"),
        "lost": count("lost"),
        "segments": segments,
        "total": view.segments.len(),
        "ended": view.ended,
    })
}

async fn warm(node: &Node) -> Value {
    let view = node.log.view();
    let mut slots: Vec<_> = view.segments.iter().filter(|row| row.slot.is_some()).collect();
    slots.sort_by_key(|row| row.slot);
    let (taken, free) = (slots.len(), node.log.usage().slots_free);
    let rows: Vec<Value> = slots
        .into_iter()
        .take(limits::DEBUG_ROWS)
        .map(|row| json!({"slot": row.slot, "segment": row.segment.0, "state": row.state}))
        .collect();
    let frames = match node.warm.frames.clone() {
        None => Value::Null,
        Some(frames) => {
            // Blocking: it reads every set.
            let sets = frames.clone();
            let usage = node.env.blocking(move || sets.usage()).await;
            let stats = frames.stats();
            json!({
                "began": stats.began.as_str(),
                "sets_by_small_frames": usage.sets[0],
                "sets_by_large_frames": usage.sets[1],
                "in_use": usage.verified,
                "hits": stats.hits,
                "misses": stats.misses(),
                "evictions": stats.evictions,
                "damaged": stats.missed(rekindle_warm::Miss::Damaged),
            })
        }
    };
    json!({
        "path": node.warm.path,
        "bytes": node.warm.bytes,
        "slots": rows,
        "total": taken,
        "slots_free": free,
        "slots_all": node.warm.slots,
        "frames": frames,
    })
}

fn locks(node: &Node) -> Value {
    let (transitional, total) = node.volumes.transitional();
    json!({
        "transitional": transitional,
        "total": total,
        "stuck": node.volumes.stuck().total,
        "names": node.volumes.name_locks(limits::DEBUG_ROWS),
    })
}
