//! The check of stored content: reads every chunk that volumes reach from the store, and compares
//! it with its name.

use crate::assemble::Node;
use crate::jobs::Progress;
use crate::limits;
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_content::Missing;
use rekindle_content::sweep::Budget;
use rekindle_content::tree::Root;
use rekindle_content::verify::{self, Damage, Extent, Report, verify_extents};
use rekindle_front::http::api::{ApiError, StartVerify};
use rekindle_staging::{Lost, Snapshot, Vault, VaultState};
use rekindle_volume::Info;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Scrubs all volumes, one after another and slowly, and asks for a salvage of each damaged one.
pub async fn scrub(node: Arc<Node>, rate: u64, progress: Progress) -> Result<Value, ApiError> {
    let infos = node.volumes.list().await?;
    let (mut volumes, mut chunks, mut bytes, mut findings) = (0, 0, 0, Findings::default());
    let mut unchecked_bytes = 0;
    for info in infos {
        let request = StartVerify {
            volume: Some(info.vault.name.clone()),
            salvage: true,
            bytes_per_second: Some(rate),
        };
        let before = chunks;
        let mut tell = |done: u64| progress.set(before + done, None);
        match check(&node, &request, &mut tell).await {
            Ok(checked) => {
                volumes += checked.volumes;
                chunks += checked.chunks;
                bytes += checked.bytes;
                unchecked_bytes += checked.unchecked_bytes;
                findings.add_all(checked.findings);
            }
            // The volume was removed meanwhile.
            Err(error) if error.kind == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Checked { volumes, chunks, bytes, unchecked_bytes, findings }.told())
}

/// Checks one volume, or all volumes.
pub async fn verify(
    node: Arc<Node>,
    request: StartVerify,
    progress: Progress,
) -> Result<Value, ApiError> {
    let mut tell = |chunks: u64| progress.set(chunks, None);
    Ok(check(&node, &request, &mut tell).await?.told())
}

/// The counters and findings of a check.
struct Checked {
    volumes: usize,
    chunks: u64,
    bytes: u64,
    /// Bytes that were not in the store when the check began.
    unchecked_bytes: u64,
    findings: Findings,
}

impl Checked {
    fn told(self) -> Value {
        json!({
            "volumes": self.volumes,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "unchecked_bytes": self.unchecked_bytes,
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
        Some(name) => vec![node.volumes.show(name).await?],
        None => node.volumes.list().await?,
    };
    let mut findings = Findings::default();
    let mut subjects = Vec::new();
    for info in infos {
        if info.state == rekindle_volume::machine::State::Error {
            let reason = info.reason.clone().unwrap_or_default();
            findings.add(format!("volume '{}' cannot be served: {reason}", info.vault.name));
        } else if info.vault.state == VaultState::Live {
            let Vault { name, lost, .. } = &info.vault;
            lost.iter().for_each(|lost| findings.add(quarantined(name, lost)));
            subjects.extend(subjects_of(info));
        }
    }
    let (mut unchecked_bytes, mut volumes) = (0, 0);
    for Subject { info, .. } in subjects.iter().filter(|one| one.snapshot.is_none()) {
        volumes += 1;
        // Another owner's log has what it owes.
        if info.vault.owner != Some(node.id) {
            continue;
        }
        match node.volumes.examine_unfinished(&info.vault).await {
            Ok((bytes, lines)) => {
                unchecked_bytes += bytes;
                if !lines.is_empty() {
                    findings.add(format!(
                        "volume '{}': changes that are not in the store yet: {}",
                        info.vault.name,
                        lines.join("; ")
                    ));
                }
            }
            // It was removed meanwhile.
            Err(_) if is_gone(node, &info.vault).await => {}
            Err(error) => findings.add(format!(
                "volume '{}': its changes that are not in the store yet cannot be read now: {error}",
                info.vault.name
            )),
        }
    }
    let report = passes(node, request, &subjects, tell).await?;
    let reasons = describe_all(node, &report, &subjects, &mut findings).await;
    let volumes_at = subjects.iter().enumerate().filter(|(_, one)| one.snapshot.is_none());
    for (at, subject) in volumes_at {
        let Vault { id, name, .. } = &subject.info.vault;
        let is_its = |root: usize| subjects.get(root).is_some_and(|one| one.info.vault.id == *id);
        let mut damage = reasons.iter().find(|(root, _)| is_its(**root)).map(|(_, reason)| {
            format!("{reason}; `rekindle salvage run {name}` repairs what can be repaired")
        });
        if let Some(reason) = reasons.get(&at).filter(|_| request.salvage) {
            match node.volumes.ask_salvage(name, reason).await {
                Ok(()) => damage = None,
                Err(error) => {
                    findings.add(format!("volume '{name}' cannot be salvaged now: {error}"));
                }
            }
        }
        node.volumes.note_check(name, damage).await;
    }
    let verify::Progress { chunks, bytes, .. } = report.progress;
    Ok(Checked { volumes, chunks, bytes, unchecked_bytes, findings })
}

/// Whether a volume is not there any more under its name.
async fn is_gone(node: &Node, vault: &Vault) -> bool {
    match node.volumes.show(&vault.name).await {
        Ok(info) => info.vault.id != vault.id,
        Err(error) => error.kind() == Kind::NotFound,
    }
}

/// A content that is checked: that of a volume, or of one of its snapshots.
struct Subject {
    /// The volume; of a snapshot, with the snapshot's root and both names.
    info: Info,
    /// The number of the snapshot.
    snapshot: Option<u32>,
}

/// The contents of a volume that the store has.
fn subjects_of(info: Info) -> Vec<Subject> {
    let of_snapshot = |one: &Snapshot| {
        let content = one.content.as_ref()?;
        let name = format!("{}@{}", info.vault.name, one.name);
        let vault = Vault { name, root: content.root, size: one.size, ..info.vault.clone() };
        let info = Info { vault, ..info.clone() };
        Some(Subject { info, snapshot: Some(one.number) })
    };
    let snapshots: Vec<_> = info.vault.snapshots.iter().filter_map(of_snapshot).collect();
    [Subject { info, snapshot: None }].into_iter().chain(snapshots).collect()
}

/// Passes of a check. The first checks everything; the second checks the missing parts under the
/// present roots; the last does so while no sweep can end.
const PASSES: usize = 3;

/// Checks everything that the volumes reach. The findings hold for their roots at the end.
async fn passes(
    node: &Node,
    request: &StartVerify,
    subjects: &[Subject],
    tell: &mut (dyn FnMut(u64) + Send),
) -> Result<Report, ApiError> {
    let mut tell = |found: verify::Progress| tell(found.chunks);
    let budget = request.bytes_per_second.map_or(Budget::Unlimited, Budget::BytesPerSecond);
    let mut report = Report::default();
    let mut extents = vec![Extent::All; subjects.len()];
    for pass in 0..PASSES {
        // While the hold lives, no sweep deletes content that the roots reach, and none can end. So
        // only the last, short pass holds it.
        let (_hold, budget) = match pass + 1 == PASSES {
            true => (Some(node.content.hold()), Budget::Unlimited),
            false => (None, budget),
        };
        let now = match pass {
            0 => subjects.iter().map(|subject| subject.info.vault.root).collect(),
            _ => roots_now(node, subjects).await?,
        };
        let roots: Vec<_> = now.into_iter().zip(extents).collect();
        let verified = verify_extents(&node.content, &roots, budget, &mut tell).await;
        let found = verified.map_err(|error| {
            ApiError::new(error.kind(), format!("the check could not be ended: {error}"))
        })?;
        extents = (0..subjects.len()).map(|root| found.in_doubt(root)).collect();
        match pass {
            0 => report = found,
            // A chunk that was missing may have been overwritten and swept meanwhile.
            _ => report.damages = found.damages,
        }
        if extents.iter().all(Extent::is_nothing) {
            break;
        }
    }
    Ok(report)
}

/// Puts the damage of a report into words. Returns a reason to salvage each damaged volume, by its
/// place among the subjects.
async fn describe_all(
    node: &Node,
    report: &Report,
    subjects: &[Subject],
    findings: &mut Findings,
) -> BTreeMap<usize, String> {
    let mut reasons = BTreeMap::new();
    for damage in &report.damages {
        let subject = subjects.get(damage.root);
        match findings.has_room() {
            true => findings.add(describe(node, damage, subject).await),
            false => findings.count += 1,
        }
        reasons
            .entry(damage.root)
            .or_insert_with(|| format!("a check found that {}", damage.error));
    }
    for (pack, root) in &report.footers {
        let name = subjects.get(*root).map_or("NAME", |subject| subject.info.vault.name.as_str());
        findings.add(format!(
            "pack {pack}: its footer is damaged; no chunk is lost by that, `rekindle salvage run {name}` writes it anew"
        ));
        let reason = || format!("a check found that the footer of pack {pack} is damaged");
        reasons.entry(*root).or_insert_with(reason);
    }
    reasons
}

/// Returns the present roots of contents; none for one that is gone.
async fn roots_now(node: &Node, subjects: &[Subject]) -> Result<Vec<Root>, ApiError> {
    let infos = node.volumes.list().await?.into_iter();
    let now: BTreeMap<_, _> = infos.map(|info| (info.vault.id, info.vault)).collect();
    let root = |Subject { info, snapshot }: &Subject| {
        let vault = now.get(&info.vault.id).filter(|vault| vault.state == VaultState::Live)?;
        let Some(number) = snapshot else { return vault.root };
        let found = vault.snapshots.iter().find(|one| one.number == *number);
        found.and_then(|one| one.content.as_ref()?.root)
    };
    Ok(subjects.iter().map(root).collect())
}

/// Describes a lost stretch: the tree does not have it any more, and its content is lost all the
/// same.
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
        if self.has_room() {
            self.kept.push(finding);
        }
    }

    fn has_room(&self) -> bool {
        self.kept.len() < limits::FINDINGS_KEPT
    }

    fn add_all(&mut self, more: Findings) {
        self.count += more.count;
        let room = limits::FINDINGS_KEPT.saturating_sub(self.kept.len());
        self.kept.extend(more.kept.into_iter().take(room));
    }
}

/// Describes the damaged part of a volume, and the damage.
async fn describe(node: &Node, damage: &Damage, subject: Option<&Subject>) -> String {
    let Some(Subject { info, .. }) = subject else { return damage.error.to_string() };
    let Damage { keys, pointer, .. } = damage;
    let kinds = node.volumes.kinds();
    let place = kinds.describe_chunk(&node.content, &info.vault, keys, *pointer).await;
    let kind = match damage.missing {
        _ if damage.error.kind() == Kind::Unsupported => "cannot be read by this binary",
        Missing::Absent => "is absent (not lost)",
        Missing::Damaged => "is damaged",
    };
    format!("volume '{}': {place} {kind}: {}", info.vault.name, damage.error)
}
