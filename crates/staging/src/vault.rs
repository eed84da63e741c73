//! The vault: the record of one volume, and the one truth about its writer.

mod body;
pub(crate) mod snapshot;
pub(crate) mod unbroken;

pub use body::VaultBody;
pub use snapshot::{Snapshot, SnapshotContent};
pub use unbroken::{Beginning, Unbroken};

use crate::{Ack, Lost, MissingCopy, Policy, limits};
use rekindle_base::limits::{NAME_BYTES_MAX, SECTOR_BYTES, VOLUME_BYTES_MAX};
use rekindle_base::{Generation, Incarnation, NodeId, SegmentId, Serial, VolumeId};
use rekindle_content::tree::Root;
use rekindle_datastore::record::Body;
use serde::{Deserialize, Serialize};

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VaultState {
    /// In use.
    Live,
    /// Removed, and kept for a while so that the user can take it back. Formats 1 to 4 did not have
    /// it.
    Trashed,
    /// Removed; its content is garbage.
    Deleted,
}

/// The record `volumes/<id>`: the fields that every kind of volume has, and the body of its kind.
/// A new field is declared here, gets its first value in [`Vault::new`], its meaning in
/// `docs/format/vault.md`, and a golden image of its own (`golden/vault-N.json`). `FORMAT` goes up
/// with it: an older binary would drop the field at its next commit, and an upgrade to such a
/// binary is refused only if the number tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vault {
    pub id: VolumeId,
    pub name: String,
    /// The meaning of the content, and of `body`.
    pub kind: String,
    pub state: VaultState,
    /// Bytes that the volume may hold.
    pub size: u64,
    /// Formats 1 to 5 had its only field among those of the vault.
    #[serde(alias = "block_size", deserialize_with = "body::read")]
    pub body: VaultBody,
    pub policy: Policy,
    pub ack: Ack,
    /// Count of the copies on other nodes that a write waits for. Formats 1 to 5 did not have it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copies: u8,
    /// What a write does while there are fewer copies. Formats 1 to 7 did not have it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub on_missing_copy: MissingCopy,
    /// The node that may write; changes only together with the generation.
    pub owner: Option<NodeId>,
    pub generation: Generation,
    /// Serial up to which the root holds the volume's changes.
    pub checkpoint: Serial,
    /// Content as of the checkpoint.
    pub root: Root,
    /// Microseconds since 1970.
    pub created: u64,
    /// Whether the volume stays in service however long no client uses it. Format 1 did not have
    /// it.
    #[serde(default)]
    pub pinned: bool,
    /// Stretches whose content is lost: ascending, apart from one another. Reads of them are
    /// errors; writes over them heal them. Formats 1 and 2 did not have it.
    #[serde(default)]
    pub lost: Vec<Lost>,
    /// Changes that the log had lost when the user decided to go on without them. Formats 1 to 3
    /// did not have it.
    #[serde(default)]
    pub accepted: Option<Accepted>,
    /// The start of the owner that wrote this vault last, or that it was given to; 0: not known.
    /// Formats 1 to 4 did not have it.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// The serial behind which that start, and the generation, began. Changes of older lives and
    /// generations behind it are not of this volume any more. Formats 1 to 4 did not have it.
    #[serde(default)]
    pub begins: Serial,
    /// The lives that logged the changes that this start found behind the checkpoint: ascending,
    /// the last run up to `begins`. Formats 1 to 4 did not have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logged: Vec<Logged>,
    /// Earlier contents that the sweep keeps, the newest first. Formats 1 to 4 did not have it.
    #[serde(default)]
    pub versions: Vec<Version>,
    /// Contents that the user keeps under names, by ascending number. Formats 1 to 8 did not have
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// How many snapshots were ever taken. Formats 1 to 8 did not have it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub snapshots_taken: u32,
    /// The moment when the volume went to the trash, microseconds since 1970. Formats 1 to 4 did
    /// not have it.
    #[serde(default)]
    pub trashed: Option<u64>,
    /// Another name whose record may lead here: the one that a rename is about to give, or has not
    /// taken away yet. No other volume may have it meanwhile, and a removal frees it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<String>,
    /// The node to which the owner is about to give the volume, maybe itself (a rollback, say): a
    /// write that does so may be on its way, also after the death of the owner's process. The next
    /// life that serves the volume writes the vault first, so that such a write cannot land any
    /// more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<NodeId>,
    /// The span of service that the last hand-over has passed on. Dropped by an older binary, it
    /// costs clients of NFS a second sending of what they have not made stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbroken: Option<Unbroken>,
    /// The generation with which the volume last went back to an earlier content: a client that
    /// held it before knows another content. Dropped by an older binary, it lets a mount go on that
    /// should not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewound: Option<Generation>,
    /// The first number that the kind may give to a part of the volume (an inode): a content that
    /// the volume went back from, or changes that it goes on without, may have given any below.
    /// Dropped by an older binary, it costs clients of NFS that hold such a number a wrong file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub numbers_from: u64,
}

/// A run of changes that one life logged: up to where the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    pub node: NodeId,
    /// The start of that node.
    pub incarnation: Incarnation,
    /// The serial behind which the run begins.
    pub begins: Serial,
}

/// An earlier content of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The serial up to which the root holds changes.
    pub checkpoint: Serial,
    /// The content.
    pub root: Root,
    /// Bytes of the volume then.
    pub size: u64,
    /// The moment when a commit replaced this content, microseconds since 1970.
    pub committed: u64,
    /// Lost stretches of this content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// Bytes with content that were written over between this and the next newer content: about
    /// what this content alone keeps in the store, at most.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replaced: u64,
}

impl Version {
    /// Whether the other version is the same content at the same moment of the volume's history.
    pub(crate) fn is_same(&self, other: &Version) -> bool {
        (self.checkpoint, self.root) == (other.checkpoint, other.root)
    }

    /// The content of a snapshot as a version to go back to; `None` until the datastore has it.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        let SnapshotContent { root, lost } = snapshot.content.clone()?;
        let Snapshot { checkpoint, size, taken: committed, .. } = *snapshot;
        Some(Self { checkpoint, root, size, committed, lost, replaced: 0 })
    }

    /// The name by which the user refers to the version.
    #[must_use]
    pub fn label(&self) -> String {
        let name = self.root.map_or_else(|| "empty".to_owned(), |root| root.short_name());
        format!("{}-{}", self.checkpoint, name.get(..8).unwrap_or(&name))
    }
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// A user's decision to go on without lost changes. Changes that the log still has behind
/// `through`, of generations before `generation`, do not count any more and are not missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The generation that began with the decision.
    pub generation: Generation,
    /// The last serial of the generations before that counts.
    pub through: Serial,
    /// Losses of the owner's log up to this segment are known, in later generations of the same
    /// owner, too. Another owner has another log, and forgets the decision.
    pub segment: SegmentId,
}

impl Body for Vault {
    const WHAT: &'static str = "vault";
    const FORMAT: u32 = 9;
    const CACHED: bool = true;

    fn check(&self) -> Result<(), String> {
        Vault::check(self)
    }
}

impl Vault {
    /// Whether a life of the node that begins from copies of its log would refuse the volume: what
    /// the log alone has acknowledged is not in the copies for sure.
    #[must_use]
    pub fn is_bound_to_its_machine(&self) -> bool {
        self.policy == Policy::Back && self.copies == 0
    }

    /// Makes the vault of a new volume: live and empty, without an owner, with the default policy.
    #[must_use]
    pub fn new(id: VolumeId, name: String, kind: String, size: u64, body: VaultBody) -> Self {
        Self {
            id,
            name,
            kind,
            state: VaultState::Live,
            size,
            body,
            policy: Policy::default(),
            ack: Ack::default(),
            copies: 0,
            on_missing_copy: MissingCopy::default(),
            owner: None,
            generation: Generation(0),
            checkpoint: Serial(0),
            root: None,
            created: 0,
            pinned: false,
            lost: Vec::new(),
            accepted: None,
            incarnation: Incarnation(0),
            begins: Serial(0),
            logged: Vec::new(),
            versions: Vec::new(),
            snapshots: Vec::new(),
            snapshots_taken: 0,
            trashed: None,
            also: None,
            leaves: None,
            unbroken: None,
            rewound: None,
            numbers_from: 0,
        }
    }

    /// The volume's key in the datastore.
    #[must_use]
    pub fn key(id: VolumeId) -> String {
        format!("volumes/{id}")
    }

    /// Whether the fields agree with one another. The error names the field that does not. The
    /// body is not looked at: only the volume's kind can check it.
    pub fn check(&self) -> Result<(), String> {
        // The rules for a good name change; a volume keeps the name that it has.
        for name in [Some(&self.name), self.also.as_ref()].into_iter().flatten() {
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return Err(format!("a name of {} bytes", name.len()));
            }
        }
        check_kind(&self.kind)?;
        check_size("size", self.size)?;
        if self.owner.is_none() && self.generation.0 == 0 && self.checkpoint.0 > 0 {
            return Err(format!(
                "its checkpoint is {}, and no node has ever owned it",
                self.checkpoint
            ));
        }
        if self.checkpoint.0 == 0 && self.root.is_some() {
            return Err("it has content, and no change has ever reached it".to_owned());
        }
        check_root("root", &self.root)?;
        check_lost("lost", &self.lost, self.size)?;
        if let Some(accepted) =
            self.accepted.filter(|accepted| accepted.generation > self.generation)
        {
            return Err(format!(
                "it accepts losses of generation {}, its own is {}",
                accepted.generation, self.generation
            ));
        }
        check_logged(&self.logged, self.begins)?;
        if self.versions.len() > limits::VERSIONS_MAX {
            return Err(format!("it lists {} versions", self.versions.len()));
        }
        for version in &self.versions {
            check_size("size of a version", version.size)?;
            check_root("root of a version", &version.root)?;
            check_lost("lost of a version", &version.lost, version.size)?;
            if version.checkpoint > self.checkpoint {
                return Err(format!(
                    "a version has checkpoint {}, it has {}",
                    version.checkpoint, self.checkpoint
                ));
            }
        }
        if self.versions.windows(2).any(|two| two[0].checkpoint < two[1].checkpoint) {
            return Err("its versions are not in order".to_owned());
        }
        snapshot::check(self)?;
        if self.state == VaultState::Trashed && self.trashed.is_none() {
            return Err("it is in the trash, and the time is missing".to_owned());
        }
        Ok(())
    }
}

fn check_kind(kind: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if kind.is_empty() || kind.len() > limits::KIND_BYTES_MAX || !kind.bytes().all(plain) {
        return Err(format!("'{}' is no kind of volume", kind.escape_debug()));
    }
    Ok(())
}

fn check_size(what: &str, size: u64) -> Result<(), String> {
    if size == 0 || !size.is_multiple_of(SECTOR_BYTES) || size > VOLUME_BYTES_MAX {
        return Err(format!("{what}: no volume has {size} bytes"));
    }
    Ok(())
}

/// Checks that a root's pointer could lead to a node: it is not empty, its end does not overflow,
/// and it leads into no bundle.
fn check_root(what: &str, root: &Root) -> Result<(), String> {
    let Some(pointer) = root else { return Ok(()) };
    if pointer.stored == 0
        || pointer.length == 0
        || pointer.offset.checked_add(pointer.stored).is_none()
        || !pointer.part.is_whole()
    {
        return Err(format!("{what}: a pointer that leads nowhere"));
    }
    Ok(())
}

/// Checks that the runs ascend and end where the vault's own life begins.
fn check_logged(logged: &[Logged], begins: Serial) -> Result<(), String> {
    if logged.len() > limits::LOGGED_MAX {
        return Err(format!("it says of {} runs of changes who logged them", logged.len()));
    }
    let ends = logged.iter().skip(1).map(|next| next.begins).chain([begins]);
    match logged.iter().zip(ends).find(|(run, end)| run.begins >= *end) {
        None => Ok(()),
        Some((run, end)) => Err(format!(
            "who logged a change: a run begins behind serial {} and ends at {end}",
            run.begins
        )),
    }
}

/// Checks that the stretches ascend, lie apart from one another, and end within the volume.
fn check_lost(what: &str, lost: &[Lost], size: u64) -> Result<(), String> {
    if lost.len() > limits::LOST_MAX {
        return Err(format!("{what}: {} stretches", lost.len()));
    }
    let mut from = 0;
    for (index, one) in lost.iter().enumerate() {
        let end = one.position.checked_add(one.span).filter(|&end| one.span > 0 && end <= size);
        let apart = index == 0 || one.position > from;
        from = match end.filter(|_| apart) {
            Some(end) => end,
            None => return Err(format!("{what}: {} bytes at {}", one.span, one.position)),
        };
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
