//! The moment when a write is acknowledged. [`Mode::of`] and [`Mode::verdict`] are this table, and
//! no other code decides it:
//!
//! | policy | ack | warm memory | a write waits for | a barrier (FUA, FLUSH) waits for |
//! | --- | --- | --- | --- | --- |
//! | `back` | `flash` | any | flash, all copies | flash, all copies |
//! | `back` | `memory` | outlives the process, N = 0 | nothing: it is appended | flash |
//! | `back` | `memory` | otherwise | flash, all copies; the user is told | flash, all copies |
//! | `back` | any | any, N = 0, a log of copies | the datastore; the user is told | the datastore |
//! | `through` | any | any | the datastore | the datastore |
//! | `uncached` | any | any | the datastore | the datastore |
//!
//! N is the volume's count of copies on other nodes, mostly 0; then no copies are waited for. With
//! N copies, all of the log's required replicas count, although they may be more: when the node is
//! lost, any one of them may be all that is found. Copies are made of the batches that flash gets,
//! so memory alone never acknowledges them.
//!
//! While the log has fewer required replicas than N, a write waits until the datastore has it, or
//! there are enough copies again ([`MissingCopy::StepDown`]); or for the copies alone
//! ([`MissingCopy::Stall`]). Neither promises less than the volume's settings say: the datastore
//! outlives the host as the copies do.
//!
//! Flow control may hold any acknowledgement back beyond that (`crate::ack::flow`).

use rekindle_log::{Media, Position, Progress};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The point after which a write is acknowledged.
// FVP's uncached, wt, wb. The API and the vault have the same words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The datastore has a write before it is acknowledged; reads are not cached here.
    Uncached,
    /// The datastore has a write before it is acknowledged; reads are cached here.
    Through,
    /// The log has a write before it is acknowledged; the datastore gets it later.
    #[default]
    Back,
}

/// The meaning of "the log has it", for policy `back`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// Flash, synced.
    #[default]
    Flash,
    /// Memory that outlives the process; a FLUSH or FUA still reaches flash.
    Memory,
}

/// What a write does while there are fewer copies on other nodes than its volume asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MissingCopy {
    /// It waits for the datastore instead, or for the copies, if these come sooner.
    #[default]
    StepDown,
    /// It waits for the copies.
    Stall,
}

/// The way in which a volume in service is served: policy, ack and machine taken together. Fixed
/// while the volume is in service (a change of policy is a new generation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The log acknowledges: a write once `write` has it, a barrier once `barrier` has it.
    Log { write: Media, barrier: Media },
    /// The datastore acknowledges. `keep`: what reads fetch is cached.
    Store { keep: bool },
}

/// The durability that the reply to a change waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// None: the client may have the reply.
    Acked,
    /// Flash, up to a position of the log.
    Wait(Position),
    /// A commit that contains the change.
    Store,
}

/// The means of this node to keep what it acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Means {
    /// Whether warm memory outlives the process.
    pub(crate) memory: bool,
    /// Whether the log is this machine's own. One that is made of copies may be given up for
    /// others: what it alone has is not kept.
    pub(crate) log: bool,
}

impl Mode {
    /// The mode of a volume with so many `copies` on a node with these means.
    pub(crate) fn of(policy: Policy, ack: Ack, copies: u8, means: Means) -> Self {
        let barrier = Media { flash: true, copies };
        match (policy, ack) {
            (Policy::Uncached, _) => Self::Store { keep: false },
            (Policy::Through, _) => Self::Store { keep: true },
            (Policy::Back, _) if copies == 0 && !means.log => Self::Store { keep: true },
            (Policy::Back, Ack::Memory) if means.memory && copies == 0 => {
                Self::Log { write: Media::MEMORY, barrier }
            }
            (Policy::Back, Ack::Memory | Ack::Flash) => Self::Log { write: barrier, barrier },
        }
    }

    /// The media that a barrier waits for. A change of a volume that the datastore acknowledges
    /// reaches flash only when it goes through the log.
    pub(crate) fn barrier(self) -> Media {
        match self {
            Self::Log { barrier, .. } => barrier,
            Self::Store { .. } => Media::FLASH,
        }
    }

    /// Whether the reply to a plain write waits for flash.
    pub(crate) fn waits_for_flash(self) -> bool {
        matches!(self, Self::Log { write: Media { flash: true, .. }, .. })
    }

    /// The message to the user that writes wait for more than the volume's ack asks for, if so.
    /// `required`: count of the log's required replicas.
    pub(crate) fn downgrade(
        self,
        (policy, ack, missing): (Policy, Ack, MissingCopy),
        required: u8,
    ) -> Option<&'static str> {
        if policy == Policy::Back && matches!(self, Self::Store { .. }) {
            return Some(
                "served as policy through: this node goes on from copies of its log, which keep only what asks for copies",
            );
        }
        let served = self.shown();
        if served.copies > required {
            return Some(match missing {
                MissingCopy::StepDown => {
                    "served as policy through: there are fewer copies on other nodes, see `rekindle cluster ls`"
                }
                MissingCopy::Stall => {
                    "writes wait: there are fewer copies on other nodes, see `rekindle cluster ls`"
                }
            });
        }
        let asked_for_memory = (policy, ack) == (Policy::Back, Ack::Memory);
        (asked_for_memory && served.flash).then_some(match served.copies {
            0 => "served as ack flash: this node's warm memory ends with its process, see `rekindle warm`",
            _ => "served as ack flash: copies on other nodes are made of what flash has",
        })
    }

    /// Decides what the reply to a change waits for. The change's last byte in the log is before
    /// `end`. `barrier`: the client has asked for the medium that survives a power cut.
    pub(crate) fn verdict(self, barrier: bool, end: Position, progress: &Progress) -> Verdict {
        let media = match self {
            Self::Store { .. } => return Verdict::Store,
            Self::Log { barrier: media, .. } if barrier => media,
            Self::Log { write: media, .. } => media,
        };
        if progress.covers(media, end) { Verdict::Acked } else { Verdict::Wait(end) }
    }

    /// The position up to which the log's changes may be read: the volume's weakest acknowledgement
    /// rests on the same media.
    pub(crate) fn shows(self, progress: &Progress) -> Position {
        progress.on(self.shown())
    }

    fn shown(self) -> Media {
        match self {
            Self::Log { write, .. } => write,
            Self::Store { .. } => Media::FLASH,
        }
    }

    /// The name of the medium, for the user.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Log { write: Media { flash: true, .. }, .. } => "flash",
            Self::Log { .. } => "memory",
            Self::Store { .. } => "store",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_log::Copied;

    const END: Position = Position(100);

    /// The progress of a log that has appended the whole change, and has it on flash up to `at`.
    fn flash(at: u64) -> Progress {
        Progress { appended: END, flash: Position(at), copies: Copied::default() }
    }

    fn means(memory: bool) -> Means {
        Means { memory, log: true }
    }

    /// The same, with the positions of required replicas.
    fn copied(at: u64, replicas: &[u64]) -> Progress {
        Progress { copies: Copied::of(replicas.iter().copied().map(Position)), ..flash(at) }
    }

    #[test]
    fn the_table_of_the_module_is_what_is_done() {
        use Verdict::{Acked, Store, Wait};
        let rows = [
            (Policy::Back, Ack::Flash, false, Wait(END), Wait(END)),
            (Policy::Back, Ack::Flash, true, Wait(END), Wait(END)),
            (Policy::Back, Ack::Memory, true, Acked, Wait(END)),
            (Policy::Back, Ack::Memory, false, Wait(END), Wait(END)),
            (Policy::Through, Ack::Flash, true, Store, Store),
            (Policy::Through, Ack::Memory, true, Store, Store),
            (Policy::Uncached, Ack::Flash, true, Store, Store),
            (Policy::Uncached, Ack::Memory, false, Store, Store),
        ];
        for (policy, ack, outlives, write, barrier) in rows {
            let mode = Mode::of(policy, ack, 0, means(outlives));
            for short in [0, 99] {
                assert_eq!(mode.verdict(false, END, &flash(short)), write, "{policy:?} {ack:?}");
                assert_eq!(mode.verdict(true, END, &flash(short)), barrier, "{policy:?} {ack:?}");
            }
            for enough in [100, 101] {
                let done = if matches!(mode, Mode::Store { .. }) { Store } else { Acked };
                assert_eq!(mode.verdict(false, END, &flash(enough)), done);
                assert_eq!(mode.verdict(true, END, &flash(enough)), done);
            }
        }
    }

    #[test]
    fn copies_are_waited_for_exactly_when_the_volume_asks_for_them() {
        use Verdict::{Acked, Wait};
        for ack in [Ack::Flash, Ack::Memory] {
            for (copies, on_flash, replicas, verdict) in [
                (0, 100, &[0, 0][..], Acked),
                (1, 100, &[0], Wait(END)),
                (1, 100, &[100], Acked),
                (1, 99, &[100], Wait(END)),
                // Any one of the required replicas may be all that is found.
                (1, 100, &[0, 100], Wait(END)),
                (1, 100, &[100, 100], Acked),
                (2, 100, &[100, 99], Wait(END)),
                (2, 100, &[100, 100], Acked),
                // There are too few.
                (1, 100, &[], Wait(END)),
                (2, 100, &[100], Wait(END)),
            ] {
                let mode = Mode::of(Policy::Back, ack, copies, means(true));
                let progress = copied(on_flash, replicas);
                assert_eq!(mode.verdict(true, END, &progress), verdict, "{copies} {replicas:?}");
                let write = mode.verdict(false, END, &progress);
                assert_eq!(write, verdict, "{copies} {replicas:?}");
                // What all that may be found have is shown, although there are too few of them.
                let is_everywhere = on_flash == 100 && replicas.iter().all(|at| *at == 100);
                let is_shown = is_everywhere || copies == 0;
                assert_eq!(mode.shows(&progress) >= END, is_shown, "{copies} {replicas:?}");
            }
        }
    }

    #[test]
    fn only_memory_that_ends_with_the_process_is_a_downgrade() {
        for policy in [Policy::Back, Policy::Through, Policy::Uncached] {
            for ack in [Ack::Flash, Ack::Memory] {
                for outlives in [false, true] {
                    let mode = Mode::of(policy, ack, 0, means(outlives));
                    let settings = (policy, ack, MissingCopy::default());
                    let told = mode.downgrade(settings, 0).is_some();
                    assert_eq!(told, policy == Policy::Back && ack == Ack::Memory && !outlives);
                }
            }
        }
    }

    #[test]
    fn the_user_is_told_when_copies_are_missing() {
        for (copies, required, is_told) in
            [(1, 0, true), (2, 1, true), (1, 1, false), (1, 2, false), (0, 0, false)]
        {
            let mode = Mode::of(Policy::Back, Ack::Flash, copies, means(true));
            for (missing, word) in
                [(MissingCopy::StepDown, "policy through"), (MissingCopy::Stall, "writes wait")]
            {
                let told = mode.downgrade((Policy::Back, Ack::Flash, missing), required);
                assert_eq!(told.is_some_and(|told| told.contains(word)), is_told, "{told:?}");
                assert_eq!(told.is_some(), is_told, "{told:?}");
            }
        }
    }

    #[test]
    fn a_log_of_copies_alone_acknowledges_nothing() {
        let lent = Means { memory: true, log: false };
        for ack in [Ack::Flash, Ack::Memory] {
            let mode = Mode::of(Policy::Back, ack, 0, lent);
            assert_eq!(mode, Mode::Store { keep: true });
            let told = mode.downgrade((Policy::Back, ack, MissingCopy::Stall), 0);
            assert!(told.is_some_and(|told| told.contains("policy through")), "{told:?}");
            assert!(matches!(Mode::of(Policy::Back, ack, 1, lent), Mode::Log { .. }));
        }
    }

    #[test]
    fn nothing_is_shown_before_its_medium_has_it() {
        let shows = |ack| Mode::of(Policy::Back, ack, 0, means(true)).shows(&flash(3));
        assert_eq!(shows(Ack::Memory), END);
        assert_eq!(shows(Ack::Flash), Position(3));
        assert_eq!(Mode::Store { keep: true }.shows(&flash(3)), Position(3));
    }
}
