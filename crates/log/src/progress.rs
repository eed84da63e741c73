//! The progress of the log, on all media that an acknowledgement may wait for.

use crate::Position;
use crate::limits::REPLICAS_MAX;

/// The media on which a change must be before it is acknowledged, beside warm memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media {
    /// The segment's file, synced: survives the machine's power.
    pub flash: bool,
    /// Count of the replicas: survives the machine itself.
    pub copies: u8,
}

impl Media {
    /// The open segment in warm memory: survives the process, where warm memory does.
    pub const MEMORY: Media = Media { flash: false, copies: 0 };
    /// The segment's file, synced.
    pub const FLASH: Media = Media { flash: true, copies: 0 };
}

/// The progress of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Everything before this position is in warm memory.
    pub appended: Position,
    /// Everything before this position is on flash; at most `appended`.
    pub flash: Position,
    pub copies: Copied,
}

/// The positions that replicas have reached, the farthest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    positions: [Position; REPLICAS_MAX],
}

impl Copied {
    /// Takes the positions of all replicas, in any order.
    #[must_use]
    pub fn of(replicas: impl Iterator<Item = Position>) -> Copied {
        let mut positions = [Position::default(); REPLICAS_MAX];
        positions.iter_mut().zip(replicas).for_each(|(place, position)| *place = position);
        positions.sort_unstable_by(|one, other| other.cmp(one));
        Copied { positions }
    }

    /// The position that `count` replicas have reached; of none, the end.
    #[must_use]
    pub fn on(&self, count: u8) -> Position {
        match usize::from(count).checked_sub(1) {
            None => Position(u64::MAX),
            Some(last) => self.positions.get(last).copied().unwrap_or_default(),
        }
    }
}

impl Progress {
    /// The position up to which all of `media` have everything.
    #[must_use]
    pub fn on(&self, media: Media) -> Position {
        let local = if media.flash { self.flash } else { self.appended };
        local.min(self.copies.on(media.copies))
    }

    /// Whether all of `media` have everything before `position`.
    #[must_use]
    pub fn covers(&self, media: Media, position: Position) -> bool {
        position <= self.on(media)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_medium_that_is_named_counts_and_no_other() {
        let copies = Copied::of([3, 9, 6].into_iter().map(Position));
        let progress = Progress { appended: Position(10), flash: Position(7), copies };
        for (flash, copies, reached) in [
            (false, 0, 10),
            (true, 0, 7),
            (false, 1, 9),
            (true, 1, 7),
            (false, 2, 6),
            (true, 2, 6),
            (true, 3, 3),
            (true, 4, 0),
        ] {
            let media = Media { flash, copies };
            assert_eq!(progress.on(media), Position(reached), "{media:?}");
            assert!(progress.covers(media, Position(reached)));
            assert!(!progress.covers(media, Position(reached + 1)));
        }
    }
}
