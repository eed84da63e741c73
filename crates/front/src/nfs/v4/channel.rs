//! The bounds of a session, as its client and this server have agreed on them. Pure.

use super::codec::Write;
use super::limits;
use super::status::Status;
use crate::nfs::limits as common;
use crate::nfs::xdr::{Args, Garbage};

/// Longest call and reply, bytes: of what they are about, without the head of the RPC.
const BYTES_MAX: u32 = common::DATA_BYTES_MAX + limits::AROUND_BYTES;
/// Longest call and reply that a client must take, bytes: with less, a session is of no use.
const BYTES_LEAST: u32 = 256;

/// The bounds of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel {
    /// Longest call, bytes.
    pub call: u32,
    /// Longest reply, bytes.
    pub reply: u32,
    /// Longest reply that is kept for a call that comes again, bytes.
    pub cached: u32,
    /// Most operations of a call.
    pub ops: u32,
    /// Slots: calls at one time.
    pub requests: u32,
}

impl Channel {
    /// The most that this server takes. So are sessions of which it knows their ids only: another
    /// process has made them, and their clients keep to what they were told then.
    pub const MOST: Self = Self {
        call: BYTES_MAX,
        reply: BYTES_MAX,
        cached: limits::CACHED_BYTES_MAX as u32,
        ops: limits::OPS_MAX,
        requests: limits::SLOTS_MAX,
    };

    pub fn read(args: &mut Args<'_>) -> Result<Self, Garbage> {
        let _padding = args.u32()?;
        let (call, reply, cached) = (args.u32()?, args.u32()?, args.u32()?);
        let (ops, requests) = (args.u32()?, args.u32()?);
        // Words for RDMA.
        match args.u32()? {
            0 => {}
            1 => drop(args.u32()?),
            _ => return Err(Garbage),
        }
        Ok(Self { call, reply, cached, ops, requests })
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        let Self { call, reply, cached, ops, requests } = self;
        [0, *call, *reply, *cached, *ops, *requests, 0].iter().for_each(|word| out.put_u32(*word));
    }

    /// Agrees on what a client asks for, as far as this server goes.
    pub fn agreed(self) -> Result<Self, Status> {
        let is_short = self.call.min(self.reply) < BYTES_LEAST;
        if is_short || self.requests == 0 || self.ops == 0 {
            return Err(Status::TOOSMALL);
        }
        let most = Self::MOST;
        Ok(Self {
            call: self.call.min(most.call),
            reply: self.reply.min(most.reply),
            cached: self.cached.min(most.cached),
            ops: self.ops.min(most.ops),
            requests: self.requests.min(most.requests),
        })
    }

    /// Refuses a call with so many bytes and operations. `wants_cached`: its reply is to be kept.
    pub fn check(&self, (bytes, ops): (usize, u32), wants_cached: bool) -> Result<(), Status> {
        if bytes > self.call as usize {
            return Err(Status::REQ_TOO_BIG);
        }
        if ops > self.ops {
            return Err(Status::TOO_MANY_OPS);
        }
        // Not even the reply to SEQUENCE. A longer one that was not kept is made again.
        if wants_cached && (self.cached as usize) < limits::SEQUENCED_BYTES {
            return Err(Status::REP_TOO_BIG_TO_CACHE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Channel = Channel { call: 512, reply: 400, cached: 400, ops: 4, requests: 8 };

    #[test]
    fn a_client_gets_what_it_asks_for_within_bounds() {
        assert_eq!(ASKED.agreed(), Ok(ASKED));
        let all = Channel { call: u32::MAX, reply: u32::MAX, ..Channel::MOST };
        assert_eq!(all.agreed(), Ok(Channel::MOST));
        let small = [
            Channel { call: 20, ..ASKED },
            Channel { reply: 0, ..ASKED },
            Channel { ops: 0, ..ASKED },
            Channel { requests: 0, ..ASKED },
        ];
        small.iter().for_each(|asked| assert_eq!(asked.agreed(), Err(Status::TOOSMALL)));
    }

    #[test]
    fn a_call_keeps_to_what_was_agreed() {
        assert_eq!(ASKED.check((512, 4), true), Ok(()));
        assert_eq!(ASKED.check((513, 4), true), Err(Status::REQ_TOO_BIG));
        assert_eq!(ASKED.check((512, 5), true), Err(Status::TOO_MANY_OPS));
        let uncached = Channel { cached: 10, ..ASKED };
        assert_eq!(uncached.check((512, 4), true), Err(Status::REP_TOO_BIG_TO_CACHE));
        assert_eq!(uncached.check((512, 4), false), Ok(()));
    }
}
