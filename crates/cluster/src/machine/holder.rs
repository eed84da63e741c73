//! The holder of copies: what it has promised to one owner, when it suspects that owner, and the
//! takeover.
//!
//! ```text
//!           silence, or no process
//!           at its address           leases over, the record names us
//!  Keeping ---------> Suspecting ---------------------------------------> Taking --> Guest
//!     ^  ^               |                                                  |           |
//!     |  '---------------' the owner is back, or another one hears it       |           |
//!     |                                                                     |           |
//!     '---------------------------------------------------------------------'           |
//!     ^              the record has changed, or was not written                         |
//!     | a beat                                                                          |
//!  Resting <----------------------------------------------------------------------------'
//!        the record does not name us, or the owner has stopped             replaced
//! ```
//! - A lease is granted in Keeping only; a beat that comes sooner than Taking leads back there. So
//!   when Taking begins, every lease of this holder is over, and none is granted afterwards.
//! - In Taking, nothing more is taken from the owner. It acknowledges a write with copies only if
//!   all its holders have it; so every one that it has acknowledged is here, and no further one can
//!   be.
//! - Taking is one conditional write of the record as it was read, which names this holder. So the
//!   record has named this holder until the moment of that write.
//! - A write of the record that failed may still land later. Nothing rests on that: each life that
//!   begins here has made its own write in a Taking of its own.

use super::Pace;
use crate::limits::LEASE_MAX;
use rekindle_base::Incarnation;
use rekindle_env::Moment;
use std::time::Duration;

/// The state of a holder, towards the owner of the copies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    pace: Pace,
    /// The newest life of the owner that is known here.
    newest: Incarnation,
    state: State,
    /// No lease granted here ends later.
    granted_until: Moment,
    /// The last beat since this process began.
    heard: Option<Moment>,
    /// The owner is not suspected sooner.
    not_before: Moment,
    /// The next moment to knock at a silent owner's address.
    knocks_at: Moment,
    /// Whether no process has listened at the owner's address since its last beat.
    is_gone: bool,
}

/// The part that a holder plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The owner is well, or nothing is known of it.
    Keeping,
    /// Silence means nothing: the owner has stopped in good order, or the copies are not complete.
    Resting,
    /// The owner is silent since that moment, or a user wants its end (`by_hand`: then it gets
    /// nothing more). `named`: the record names this holder.
    Suspecting { since: Moment, named: bool, by_hand: bool },
    /// The record is being written.
    Taking,
    /// The node goes on here.
    Guest,
}

/// The reason why a beat or a copy is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    #[error("a newer life of this node is known here")]
    NewerLife,
    #[error("this node is being taken over here")]
    TakenOver,
}

/// The owner's record, as a holder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sight {
    /// The life that it names.
    pub incarnation: Incarnation,
    /// This holder's place among the holders that it names, from 0; also 0 if it names this one as
    /// the host.
    pub place: Option<usize>,
    /// Whether the life has stopped in good order.
    pub is_resting: bool,
    /// Whether another holder hears that life.
    pub is_heard: bool,
}

/// A deed for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deed {
    /// Connect to the address of the owner's host. Then [`Holder::knocked`].
    Knock,
    /// Read the record, and ask its other holders. Then [`Holder::saw`].
    Look,
    /// Write the record as its next life, against the version that was read. Then [`Holder::took`].
    Take,
}

/// The outcome of a conditional write of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Taken {
    /// The node's next life is ours.
    Won(Incarnation),
    /// The record has changed.
    Lost,
    /// The outcome is not known, or the life could not be begun: try again.
    Open,
}

impl Holder {
    /// A holder whose process begins now. An earlier process may have granted a lease just before.
    /// `patience`: time for the owner to be heard first.
    #[must_use]
    pub fn begin(pace: Pace, patience: Duration, now: Moment) -> Self {
        Self {
            pace,
            newest: Incarnation(0),
            state: State::Keeping,
            granted_until: now + Pace::granted(LEASE_MAX),
            heard: None,
            not_before: now + patience,
            knocks_at: now,
            is_gone: false,
        }
    }

    /// The part that this holder plays.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The newest life of the owner that is known here.
    #[must_use]
    pub fn newest(&self) -> Incarnation {
        self.newest
    }

    /// The last beat since this process began.
    #[must_use]
    pub fn heard(&self) -> Option<Moment> {
        self.heard
    }

    /// Whether this life of the owner is heard.
    #[must_use]
    pub fn hears(&self, life: Incarnation, now: Moment) -> bool {
        let is_fresh = |heard| now.since(heard) < self.pace.suspect;
        let is_here = self.state == State::Keeping && self.newest == life && !self.is_gone;
        is_here && self.heard.is_some_and(is_fresh)
    }

    /// Notes a life of the owner that the copies here name.
    pub fn meet(&mut self, life: Incarnation) {
        self.newest = self.newest.max(life);
    }

    /// Whether this life may send copies now.
    pub fn admit(&mut self, life: Incarnation) -> Result<(), Refusal> {
        if life < self.newest {
            return Err(Refusal::NewerLife);
        }
        match self.state {
            State::Guest | State::Taking | State::Suspecting { by_hand: true, .. } => {
                Err(Refusal::TakenOver)
            }
            State::Keeping | State::Resting | State::Suspecting { .. } => {
                self.newest = life;
                Ok(())
            }
        }
    }

    /// Answers a beat that asks for a lease.
    pub fn grant(
        &mut self,
        life: Incarnation,
        lease: Duration,
        now: Moment,
    ) -> Result<(), Refusal> {
        self.admit(life)?;
        // Nothing was written yet: the owner is back, and the wait for its leases begins anew.
        self.state = State::Keeping;
        // From now on, its silence alone counts.
        (self.heard, self.not_before) = (Some(now), now);
        (self.is_gone, self.knocks_at) = (false, now + self.pace.knock);
        self.granted_until = self.granted_until.max(now + Pace::granted(lease));
        Ok(())
    }

    /// Notes that this life has stopped in good order.
    pub fn rest(&mut self, life: Incarnation) {
        if self.admit(life).is_ok() {
            self.state = State::Resting;
        }
    }

    /// Begins a takeover by a user's command, however well the owner is. Then [`Holder::saw`].
    pub fn want(&mut self, now: Moment) {
        if !matches!(self.state, State::Guest | State::Taking) {
            self.state = State::Suspecting { since: now, named: false, by_hand: true };
        }
    }

    /// Does not suspect the owner for a while: this process has not heard anything for some time.
    pub fn was_away(&mut self, now: Moment) {
        self.not_before = self.not_before.max(now + self.pace.replace);
    }

    /// Looks at the time.
    pub fn tick(&mut self, now: Moment) -> Option<Deed> {
        match self.state {
            State::Keeping => {
                let is_silent = self.heard.is_none_or(|heard| now.since(heard) > self.pace.suspect);
                if self.newest.0 == 0 || now < self.not_before {
                    return None;
                }
                if !is_silent && !self.is_gone {
                    return self.knock(now);
                }
                self.state = State::Suspecting { since: now, named: false, by_hand: false };
                Some(Deed::Look)
            }
            State::Suspecting { named: true, .. } if now >= self.granted_until => {
                self.state = State::Taking;
                Some(Deed::Take)
            }
            _ => None,
        }
    }

    fn knock(&mut self, now: Moment) -> Option<Deed> {
        if now < self.knocks_at {
            return None;
        }
        self.knocks_at = now + self.pace.knock;
        Some(Deed::Knock)
    }

    /// Notes the outcome of a knock that was begun at `since`. `is_refused`: the host of the owner
    /// has answered that no process listens there. That shortens the wait for a silence that means
    /// something, and no lease.
    pub fn knocked(&mut self, is_refused: bool, since: Moment) {
        let is_heard_since = self.heard.is_some_and(|heard| heard >= since);
        if self.state == State::Keeping && is_refused && !is_heard_since {
            self.is_gone = true;
        }
    }

    /// Takes the sight of the record that a look has given; `None`: it could not be read.
    pub fn saw(&mut self, sight: Option<Sight>, now: Moment) {
        let State::Suspecting { since, by_hand, .. } = self.state else { return };
        let Some(sight) = sight else { return self.keep_for(self.pace.suspect, now) };
        let is_other_life = sight.incarnation != self.newest;
        self.meet(sight.incarnation);
        let Some(place) = sight.place.filter(|_| by_hand || !sight.is_resting) else {
            self.state = State::Resting;
            return;
        };
        if by_hand {
            self.state = State::Suspecting { since, named: true, by_hand };
            return;
        }
        if is_other_life {
            // It was never heard here, and has just begun, perhaps.
            (self.heard, self.is_gone) = (None, false);
            return self.keep_for(self.pace.suspect, now);
        }
        let silence = now.since(self.heard.unwrap_or(self.not_before));
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        let patience = match (sight.is_heard, self.is_gone) {
            (true, _) => self.pace.insist,
            (false, true) => (self.pace.lease + self.pace.turn).saturating_mul(place),
            (false, false) => self.pace.suspect + self.pace.turn.saturating_mul(place),
        };
        if self.heard.is_some() && silence < patience {
            return self.keep_for(self.pace.turn, now);
        }
        self.state = State::Suspecting { since, named: true, by_hand };
    }

    /// Suspects nothing for a while.
    fn keep_for(&mut self, pause: Duration, now: Moment) {
        (self.state, self.not_before) = (State::Keeping, now + pause);
    }

    /// Takes the outcome of the conditional write.
    pub fn took(&mut self, taken: Taken, now: Moment) {
        if self.state != State::Taking {
            return;
        }
        match taken {
            Taken::Won(life) => {
                self.meet(life);
                self.state = State::Guest;
            }
            Taken::Lost | Taken::Open => {
                (self.heard, self.is_gone) = (None, false);
                self.keep_for(self.pace.suspect, now);
            }
        }
    }

    /// Notes that this life of the node is begun here, by a record that names this holder as the
    /// host.
    pub fn hosts(&mut self, life: Incarnation) {
        self.meet(life);
        self.state = State::Guest;
    }

    /// Notes that the guest has ended: another life has the node, or none.
    pub fn ended(&mut self) {
        if self.state == State::Guest {
            (self.state, self.heard) = (State::Resting, None);
        }
    }
}

#[cfg(test)]
mod tests;
