//! A slot of a session: the sequence of its requests, and the reply of the last one. Pure.
//!
//! A request whose reply is not there (the daemon has been killed since, or the connection ended
//! amid the request, or there was no room for the reply) is carried out once more when it comes
//! again. What it changed the first time is in the log of its volume, which knows it again
//! ([`rekindle_file::Call`]); the rest changes nothing.

use super::status::Status;
use bytes::Bytes;

/// A slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Slot {
    /// Of a session that was made by an earlier process, or at another host: the next request
    /// says where the sequence is.
    #[default]
    Unknown,
    /// No request has come yet: the first one has number 1.
    Fresh,
    /// A request is being carried out.
    Busy(u32),
    /// The last request was broken off.
    Cut(u32),
    /// The last request was carried out.
    Done(u32, Option<Bytes>),
}

/// What a request is.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun {
    /// To be carried out.
    New,
    /// Carried out before, with this reply.
    Before(Bytes),
}

impl Slot {
    /// Takes a request.
    pub fn begin(&mut self, sequence: u32) -> Result<Begun, Status> {
        let is_next = |last: u32| sequence == last.wrapping_add(1);
        match self {
            Slot::Busy(last) if sequence == *last => return Err(Status::DELAY),
            Slot::Busy(_) => return Err(Status::SEQ_MISORDERED),
            Slot::Fresh if sequence != 1 => return Err(Status::SEQ_MISORDERED),
            Slot::Done(last, Some(reply)) if sequence == *last => {
                return Ok(Begun::Before(reply.clone()));
            }
            Slot::Cut(last) | Slot::Done(last, _) if sequence != *last && !is_next(*last) => {
                return Err(Status::SEQ_MISORDERED);
            }
            _ => {}
        }
        *self = Slot::Busy(sequence);
        Ok(Begun::New)
    }

    /// Ends a request, with its reply if that is kept.
    pub fn end(&mut self, sequence: u32, reply: Option<Bytes>) {
        if *self == Slot::Busy(sequence) {
            *self = Slot::Done(sequence, reply);
        }
    }

    /// Ends a request that has no reply.
    pub fn cut(&mut self, sequence: u32) {
        if *self == Slot::Busy(sequence) {
            *self = Slot::Cut(sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Option<Bytes> {
        Some(Bytes::from_static(b"reply"))
    }

    #[test]
    fn requests_come_one_after_the_other() {
        let mut slot = Slot::Fresh;
        assert_eq!(slot.begin(0), Err(Status::SEQ_MISORDERED));
        assert_eq!(slot.begin(2), Err(Status::SEQ_MISORDERED));
        assert_eq!(slot.begin(1), Ok(Begun::New));
        assert_eq!(slot.begin(1), Err(Status::DELAY), "it is being carried out");
        assert_eq!(slot.begin(2), Err(Status::SEQ_MISORDERED));
        slot.end(1, reply());
        assert_eq!(slot.begin(1), Ok(Begun::Before(reply().unwrap())));
        assert_eq!(slot.begin(3), Err(Status::SEQ_MISORDERED));
        assert_eq!(slot.begin(0), Err(Status::SEQ_MISORDERED));
        assert_eq!(slot.begin(2), Ok(Begun::New));
        slot.end(1, reply());
        assert_eq!(slot, Slot::Busy(2), "a late word on another request");
    }

    #[test]
    fn the_sequence_wraps() {
        let mut slot = Slot::Done(u32::MAX, reply());
        assert_eq!(slot.begin(1), Err(Status::SEQ_MISORDERED));
        assert_eq!(slot.begin(0), Ok(Begun::New));
    }

    #[test]
    fn a_request_without_a_reply_is_carried_out_again() {
        let mut slot = Slot::Fresh;
        assert_eq!(slot.begin(1), Ok(Begun::New));
        slot.cut(1);
        assert_eq!(slot.begin(3), Err(Status::SEQ_MISORDERED));
        assert_eq!(slot.begin(1), Ok(Begun::New));
        slot.end(1, None);
        assert_eq!(slot.begin(1), Ok(Begun::New));
        slot.cut(1);
        assert_eq!(slot.begin(2), Ok(Begun::New), "its client has given up on it");
    }

    #[test]
    fn after_a_restart_the_client_says_where_the_sequence_is() {
        let mut slot = Slot::default();
        assert_eq!(slot.begin(77), Ok(Begun::New));
        slot.end(77, reply());
        assert_eq!(slot.begin(79), Err(Status::SEQ_MISORDERED));
        assert_eq!(slot.begin(77), Ok(Begun::Before(reply().unwrap())));
    }
}
