//! The check of what is stored: every chunk that volumes reach, read from the store and compared with its name.

use crate::assemble::Node;
use crate::jobs::Progress;
use crate::limits;
use crate::service::refused;
use base::Kind;
use base::units::format_size;
use content::Missing;
use content::sweep::Budget;
use content::tree::Root;
use content::verify::{Damage, Extent, verify_extents};
use front::http::api::{ApiError, StartVerify};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use volume::{Info, Lost, Vault, VaultState};

/// A scrub: all volumes, one after another, slowly, and a salvage of each that is damaged.
pub async fn scrub(node: Arc<Node>, rate: u64, progress: Progress) -> Result<Value, ApiError> {
    let infos = node.volumes.list().await.map_err(|error| refused(&error))?;
    let (mut volumes, mut chunks, mut bytes, mut findings) = (0, 0, 0, Findings::default());
    for info in infos {
        let request = StartVerify {
            volume: Some(info.vault.name.clone()),
            salvage: true,
            bytes_per_second: Some(rate),
            ..StartVerify::default()
        };
        let before = chunks;
        let mut tell = |done: u64| progress.set(before + done, None);
        match check(&node, &request, &mut tell).await {
            Ok(checked) => {
                volumes += checked.volumes;
                chunks += checked.chunks;
                bytes += checked.bytes;
                findings.add_all(checked.findings);
            }
            // Removed meanwhile.
            Err(error) if error.kind == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Checked { volumes, chunks, bytes, findings }.told())
}

/// Checks one volume, or all.
pub async fn verify(
    node: Arc<Node>,
    request: StartVerify,
    progress: Progress,
) -> Result<Value, ApiError> {
    let mut tell = |chunks: u64| progress.set(chunks, None);
    Ok(check(&node, &request, &mut tell).await?.told())
}

/// What was checked, and what was found.
struct Checked {
    volumes: usize,
    chunks: u64,
    bytes: u64,
    findings: Findings,
}

impl Checked {
    fn told(self) -> Value {
        json!({
            "volumes": self.volumes,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "damaged": self.findings.count,
            "findings": self.findings.kept,
        })
    }
}

async fn check(
    node: &Arc<Node>,
    request: &StartVerify,
    tell: &mut (dyn FnMut(u64) + Send),
) -> Result<Checked, ApiError> {
    let infos = match &request.volume {
        Some(name) => vec![node.volumes.show(name).await.map_err(|error| refused(&error))?],
        None => node.volumes.list().await.map_err(|error| refused(&error))?,
    };
    let mut findings = Findings::default();
    let mut subjects = Vec::new();
    for info in infos {
        if info.state == volume::machine::State::Error {
            let reason = info.reason.clone().unwrap_or_default();
            findings.add(format!("volume '{}' cannot be served: {reason}", info.vault.name));
        } else if info.vault.state == VaultState::Live {
            let vault = newest(node, &info);
            vault.lost.iter().for_each(|lost| findings.add(quarantined(&vault.name, lost)));
            subjects.push(info);
        }
    }
    let mut tell = |found: content::verify::Progress| tell(found.chunks);
    let budget = request.bytes_per_second.map_or(Budget::Unlimited, Budget::BytesPerSecond);
    let mut report = content::verify::Report::default();
    let mut extents = vec![Extent::All; subjects.len()];
    for pass in 0..PASSES {
        // While it is held no sweep deletes what the roots reach, and none comes to its end: not through a long check.
        let (_hold, budget) = match pass + 1 == PASSES {
            true => (Some(node.content.hold()), Budget::Unlimited),
            false => (None, budget),
        };
        let now = match pass {
            0 => subjects.iter().map(|info| newest(node, info).root).collect(),
            _ => roots_now(node, &subjects).await?,
        };
        let roots: Vec<_> = now.into_iter().zip(extents).collect();
        let verified = verify_extents(&node.content, &roots, budget, &mut tell).await;
        let found = verified.map_err(|error| {
            ApiError::new(error.kind(), format!("the check could not be ended: {error}"))
        })?;
        extents = (0..subjects.len()).map(|root| found.in_doubt(root)).collect();
        match pass {
            0 => report = found,
            // What was missing may have been written over and swept meanwhile.
            _ => report.damages = found.damages,
        }
        if extents.iter().all(Extent::is_nothing) {
            break;
        }
    }
    let mut hurt = BTreeMap::new();
    for damage in &report.damages {
        findings.add(describe(damage, subjects.get(damage.root)));
        hurt.entry(damage.root).or_insert_with(|| format!("a check found that {}", damage.error));
    }
    for (pack, root) in &report.footers {
        let name = subjects.get(*root).map_or("NAME", |info| info.vault.name.as_str());
        findings.add(format!(
            "pack {pack}: its footer is damaged; no chunk is lost by that, `rekindle salvage run {name}` writes it anew"
        ));
        let reason = || format!("a check found that the footer of pack {pack} is damaged");
        hurt.entry(*root).or_insert_with(reason);
    }
    for (root, reason) in hurt.into_iter().filter(|_| request.salvage) {
        let Some(info) = subjects.get(root) else { continue };
        if let Err(error) = node.volumes.ask_salvage(&info.vault.name, &reason).await {
            findings.add(format!("volume '{}' cannot be salvaged now: {error}", info.vault.name));
        }
    }
    let content::verify::Progress { chunks, bytes, .. } = report.progress;
    Ok(Checked { volumes: subjects.len(), chunks, bytes, findings })
}

/// Passes of a check: everything, then what was missing under the roots as they are by then, at last while no sweep ends.
const PASSES: usize = 3;

/// The roots of volumes as they are now; none for one that is gone.
async fn roots_now(node: &Node, subjects: &[Info]) -> Result<Vec<Root>, ApiError> {
    let infos = node.volumes.list().await.map_err(|error| refused(&error))?;
    let root = |subject: &Info| {
        let now = infos.iter().find(|info| info.vault.id == subject.vault.id)?;
        if now.vault.state == VaultState::Live { newest(node, now).root } else { None }
    };
    Ok(subjects.iter().map(root).collect())
}

/// The newest vault: that of the volume in service, if it is in service.
pub(super) fn newest(node: &Node, info: &Info) -> Vault {
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

    fn add_all(&mut self, more: Findings) {
        self.count += more.count;
        let room = limits::FINDINGS_KEPT.saturating_sub(self.kept.len());
        self.kept.extend(more.kept.into_iter().take(room));
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
    let kind = match damage.missing {
        _ if damage.error.kind() == Kind::Unsupported => "cannot be read by this binary",
        Missing::Absent => "is absent (not lost)",
        Missing::Damaged => "is damaged",
    };
    format!("volume '{}': {} {kind}: {}", info.vault.name, ranges.join(", "), damage.error)
}
