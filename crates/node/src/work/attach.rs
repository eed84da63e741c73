//! Attaches every volume and reads some blocks of each: the work of a start whose clients all come
//! back at once, without the cost of the protocol.

use crate::assemble::Node;
use crate::jobs::Progress;
use crate::limits;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_block::Device;
use rekindle_front::http::api::{ApiError, StartAttach};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a read.
const READ_BYTES: u64 = 4096;

/// Attaches volumes in the order of their names, and reads each of them.
pub async fn attach(
    node: Arc<Node>,
    request: StartAttach,
    progress: Progress,
) -> Result<Value, ApiError> {
    let infos = node.volumes.list().await?;
    // The reads below are those of an NBD session.
    let infos = infos.into_iter().filter(|info| info.vault.kind == rekindle_block::KIND);
    let mut names: Vec<String> = infos.map(|info| info.vault.name).collect();
    names.sort_unstable();
    names.truncate(request.first.unwrap_or(usize::MAX));
    let (total, done) = (names.len() as u64, AtomicU64::new(0));
    let at_once = request.at_once.unwrap_or(1).clamp(1, limits::ATTACHES_AT_ONCE_MAX);
    let begin = node.env.now();
    let left = Mutex::new(names.into_iter());
    let work = || async {
        let mut reads = 0;
        loop {
            let Some(name) = left.lock().next() else { return Ok::<u64, ApiError>(reads) };
            match one(&node, &name, request.reads).await {
                // The volume was removed or renamed meanwhile.
                Err(error) if error.kind == Kind::NotFound && !is_there(&node, &name).await? => {}
                read => reads += read?,
            }
            progress.set(done.fetch_add(1, Ordering::Relaxed) + 1, Some(total));
        }
    };
    let reads: u64 = try_join_all((0..at_once).map(|_| work())).await?.into_iter().sum();
    let took = node.env.now() - begin;
    Ok(json!({ "volumes": total, "reads": reads, "took_ms": took.as_secs_f64() * 1e3 }))
}

async fn is_there(node: &Node, name: &str) -> Result<bool, ApiError> {
    Ok(node.volumes.list().await?.iter().any(|info| info.vault.name == name))
}

/// Attaches and reads one volume. Returns the number of blocks read.
async fn one(node: &Node, name: &str, reads: u64) -> Result<u64, ApiError> {
    let device = Device::attach(&node.volumes, name).await?;
    let places = device.size() / READ_BYTES;
    let reads = reads.min(places).min(limits::ATTACH_READS_MAX);
    let mut block = [0; READ_BYTES as usize];
    for number in 0..reads {
        let offset = places * number / reads * READ_BYTES;
        let failed = |error: rekindle_volume::Error| {
            ApiError::new(error.kind(), format!("volume '{name}': {error}"))
        };
        // Like a session: first a plain call.
        if !device.read_now(offset, &mut block).map_err(failed)? {
            device.read(offset, &mut block).await.map_err(failed)?;
        } else if number % 64 == 63 {
            // A run of hits alone would give no other task a turn, not even the cancelling of this
            // one.
            tokio::task::yield_now().await;
        }
    }
    Ok(reads)
}
