//! The progress of the log, on all media that an acknowledgement may wait for.

use crate::Position;

/// The media on which a change must be before it is acknowledged, beside warm memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media {
    /// The segment's file, synced: survives the machine's power.
    pub flash: bool,
    /// Least count of the required replicas, all of which must have the change: survives the
    /// machine itself. 0: no replica is waited for.
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

/// The progress of the required replicas. Any one of them may be all that is found, so that only
/// what all of them have is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Count of the required replicas.
    pub required: u8,
    /// All of them have everything before this position; without any, the end.
    pub position: Position,
}

impl Default for Copied {
    fn default() -> Copied {
        Copied { required: 0, position: Position(u64::MAX) }
    }
}

impl Copied {
    /// Takes the positions of the required replicas.
    #[must_use]
    pub fn of(replicas: impl Iterator<Item = Position>) -> Copied {
        replicas.fold(Copied::default(), |Copied { required, position }, next| Copied {
            required: required + 1,
            position: position.min(next),
        })
    }
}

impl Progress {
    /// The position up to which all of `media` have everything, whatever the count of the replicas.
    #[must_use]
    pub fn on(&self, media: Media) -> Position {
        let local = if media.flash { self.flash } else { self.appended };
        if media.copies == 0 { local } else { local.min(self.copies.position) }
    }

    /// Whether all of `media` have everything before `position`, and the replicas are enough.
    #[must_use]
    pub fn covers(&self, media: Media, position: Position) -> bool {
        self.copies.required >= media.copies && position <= self.on(media)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_medium_that_is_named_counts_and_no_other() {
        let copies = Copied::of([9, 3].into_iter().map(Position));
        let progress = Progress { appended: Position(10), flash: Position(7), copies };
        for (flash, copies, reached) in
            [(false, 0, 10), (true, 0, 7), (false, 1, 3), (true, 1, 3), (false, 2, 3), (true, 2, 3)]
        {
            let media = Media { flash, copies };
            assert_eq!(progress.on(media), Position(reached), "{media:?}");
            assert!(progress.covers(media, Position(reached)));
            assert!(!progress.covers(media, Position(reached + 1)));
        }
        let three = Media { flash: true, copies: 3 };
        assert!(!progress.covers(three, Position(0)), "there are only two");
        let alone = Progress { copies: Copied::default(), ..progress };
        let one = Media { flash: true, copies: 1 };
        assert!(alone.on(one) == Position(7) && !alone.covers(one, Position(0)));
    }
}
