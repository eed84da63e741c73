//! The check of what is stored: every chunk that volumes reach, read from the store and compared with its name.

use crate::assemble::Node;
use crate::jobs::Progress;
use crate::limits;
use crate::status::refused;
use base::Kind;
use base::units::format_size;
use content::verify::Damage;
use front::http::api::{ApiError, StartVerify};
use serde_json::{Value, json};
use std::sync::Arc;
use volume::{Info, Lost, Vault, VaultState};

/// Checks one volume, or all.
pub async fn verify(
    node: Arc<Node>,
    request: StartVerify,
    progress: Progress,
) -> Result<Value, ApiError> {
    // While this is held no sweep deletes what the roots below reach.
    let _hold = node.content.hold();
    let infos = match &request.volume {
        Some(name) => vec![node.volumes.show(name).await.map_err(|error| refused(&error))?],
        None => node.volumes.list().await.map_err(|error| refused(&error))?,
    };
    let mut findings = Findings::default();
    let mut subjects = Vec::new();
    let mut roots = Vec::new();
    for info in infos {
        if info.state == volume::machine::State::Error {
            let reason = info.reason.clone().unwrap_or_default();
            findings.add(format!("volume '{}' cannot be served: {reason}", info.vault.name));
        } else if info.vault.state == VaultState::Live {
            let vault = newest(&node, &info);
            vault.lost.iter().for_each(|lost| findings.add(quarantined(&vault.name, lost)));
            roots.push(vault.root);
            subjects.push(info);
        }
    }
    let mut tell = |found: content::verify::Progress| progress.set(found.chunks, None);
    let report =
        content::verify::verify(&node.content, &roots, &mut tell).await.map_err(|error| {
            ApiError::new(error.kind(), format!("the check could not be ended: {error}"))
        })?;
    for damage in &report.damages {
        findings.add(describe(damage, subjects.get(damage.root)));
    }
    Ok(json!({
        "volumes": subjects.len(),
        "chunks": report.progress.chunks,
        "bytes": report.progress.bytes,
        "damaged": findings.count,
        "findings": findings.kept,
    }))
}

/// The newest vault: that of the volume in service, if it is in service.
fn newest(node: &Node, info: &Info) -> Vault {
    let in_service =
        node.staging.volumes().into_iter().find(|staged| staged.vault().id == info.vault.id);
    in_service.map_or_else(|| info.vault.clone(), |staged| staged.vault())
}

/// What a salvage had to give up is not in the tree any more, and lost all the same.
fn quarantined(volume: &str, lost: &Lost) -> String {
    format!(
        "volume '{volume}': {} at byte {} was damaged and is lost; reads of it are errors until it is written again",
        format_size(lost.span),
        lost.position
    )
}

#[derive(Default)]
struct Findings {
    count: u64,
    kept: Vec<String>,
}

impl Findings {
    fn add(&mut self, finding: String) {
        self.count += 1;
        if self.kept.len() < limits::FINDINGS_KEPT {
            self.kept.push(finding);
        }
    }
}

/// Which bytes of which volume are damaged, and how.
fn describe(damage: &Damage, subject: Option<&Info>) -> String {
    let Some(info) = subject else { return damage.error.to_string() };
    let block = info.vault.block_size;
    let ranges: Vec<String> = damage
        .keys
        .iter()
        .map(|keys| {
            let begin = keys.start.saturating_mul(block).min(info.vault.size);
            let end = keys.end.saturating_mul(block).min(info.vault.size);
            format!("{} at byte {begin}", format_size(end.saturating_sub(begin)))
        })
        .collect();
    let kind = if damage.error.kind() == Kind::Unsupported {
        "cannot be read by this binary"
    } else {
        "is damaged"
    };
    format!("volume '{}': {} {kind}: {}", info.vault.name, ranges.join(", "), damage.error)
}
