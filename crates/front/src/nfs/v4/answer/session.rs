//! Operations about clients and their sessions.

use super::{Done, Work};
use crate::nfs::limits as common;
use crate::nfs::target::Exports;
use crate::nfs::v4::channel::Channel;
use crate::nfs::v4::clients::{Created, Session};
use crate::nfs::v4::codec::{Read, Write};
use crate::nfs::v4::limits;
use crate::nfs::v4::slots::Begun;
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::xdr::{Args, Garbage};
use bytes::Bytes;
use rekindle_file::Seal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flags that a client may set in EXCHANGE_ID, and in CREATE_SESSION.
const EXCHANGE_FLAGS: u32 = 0x4007_0103;
const SESSION_FLAGS: u32 = 0x0000_0007;
/// Flags of EXCHANGE_ID: the client exists already; it must; this server has no layouts.
const UPDATES: u32 = 0x4000_0000;
const IS_CONFIRMED: u32 = 0x8000_0000;
const WITHOUT_LAYOUTS: u32 = 0x0001_0000;
/// A flag of CREATE_SESSION: what is known of requests outlives the daemon.
const PERSISTS: u32 = 1;
/// What a session's connection carries: calls of the client.
const FORE: u32 = 1;

/// A request of a session that is being carried out. One that is dropped was broken off.
pub struct Turn {
    session: Arc<Session>,
    slot: u32,
    sequence: u32,
    wants_cached: bool,
    /// It has changed something.
    has_changed: AtomicBool,
    is_over: bool,
}

impl Turn {
    pub fn client(&self) -> u64 {
        self.session.client
    }

    /// Returns the longest reply that the client takes, bytes.
    pub fn reply_bytes_max(&self) -> usize {
        self.session.channel.reply as usize
    }

    /// Returns the turn of a request whose session another host keeps.
    pub fn of_visitor(session: Arc<Session>, slot: u32, sequence: u32) -> Self {
        let has_changed = AtomicBool::new(false);
        Self { session, slot, sequence, wants_cached: false, has_changed, is_over: false }
    }

    /// Returns the session, the slot and the sequence.
    pub fn request(&self) -> ([u8; 16], u32, u32) {
        (self.session.id, self.slot, self.sequence)
    }

    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Notes that the request has changed something.
    pub fn note_change(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
    }

    /// Returns the hash by which an operation of the request is known when it comes again.
    pub fn key(&self, seal: &Seal, at: u32) -> u64 {
        let words = [self.slot, self.sequence, at].map(u32::to_be_bytes).concat();
        seal.check(&[b"nfs4 request", &self.session.id[..], &words].concat())
    }

    /// Ends the request.
    pub fn end(mut self, reply: &[u8]) {
        self.is_over = true;
        let is_kept = self.wants_cached || self.has_changed.load(Ordering::Relaxed);
        let reply = if is_kept { kept(reply) } else { None };
        self.session.with_slot(self.slot, |slot| slot.end(self.sequence, reply));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.with_slot(self.slot, |slot| slot.cut(self.sequence));
        }
    }
}

/// Makes the reply that is kept for a request that comes again, if it is short.
fn kept(reply: &[u8]) -> Option<Bytes> {
    (reply.len() <= limits::CACHED_BYTES_MAX).then(|| Bytes::copy_from_slice(reply))
}

/// Reads over the credentials that calls to the client would have.
fn skip_callback(args: &mut Args<'_>) -> Result<(), Garbage> {
    let _program = args.u32()?;
    for _ in 0..args.u32()? {
        match args.u32()? {
            0 => {}
            1 => {
                args.u32()?;
                args.opaque(common::MACHINE_BYTES_MAX)?;
                args.u32()?;
                args.u32()?;
                let groups = args.u32()?;
                if groups > common::GROUPS_MAX {
                    return Err(Garbage);
                }
                for _ in 0..groups {
                    args.u32()?;
                }
            }
            6 => {
                args.u32()?;
                args.opaque(common::AUTH_BYTES_MAX)?;
                args.opaque(common::AUTH_BYTES_MAX)?;
            }
            _ => return Err(Garbage),
        }
    }
    Ok(())
}

impl<E: Exports> Work<'_, E> {
    /// SEQUENCE: the request takes its slot.
    pub(super) fn sequence(
        &mut self,
        args: &mut Args<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Begun, Fault> {
        let (id, sequence, slot) = (args.sixteen()?, args.u32()?, args.u32()?);
        let (highest, wants_cached) = (args.u32()?, args.flag()?);
        let now = self.server.env.now();
        let session = self.server.clients.lock().session(&self.seal, &id, now)?;
        if slot > highest {
            return Err(Status::BAD_HIGH_SLOT.into());
        }
        let channel = session.channel;
        channel.check(self.size, wants_cached)?;
        let begun = session.with_slot(slot, |slot| slot.begin(sequence));
        let begun = begun.ok_or(Status::BADSLOT)??;
        if begun == Begun::New {
            let (has_changed, is_over) = (AtomicBool::new(false), false);
            self.turn = Some(Turn { session, slot, sequence, wants_cached, has_changed, is_over });
            out.put_plain(&id);
            let last = channel.requests - 1;
            [sequence, slot, last, last, 0].iter().for_each(|word| out.put_u32(*word));
        } else {
            self.meters.replayed();
        }
        Ok(begun)
    }

    pub(super) async fn exchange_id(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (verifier, owner) = (args.eight()?, args.opaque(limits::OWNER_BYTES_MAX)?);
        let (flags, protection) = (args.u32()?, args.u32()?);
        if protection != 0 {
            // It needs GSS.
            return Err(Status::INVAL.into());
        }
        let words = args.u32()?;
        if words > 1 {
            return Err(Status::BADXDR.into());
        }
        for _ in 0..words {
            args.opaque(limits::OWNER_BYTES_MAX)?;
            args.opaque(limits::OWNER_BYTES_MAX)?;
            args.u64()?;
            args.u32()?;
        }
        if flags & !EXCHANGE_FLAGS != 0 {
            return Err(Status::INVAL.into());
        }
        let host = self.server.host().await?;
        let (now, is_update) = (self.server.env.now(), flags & UPDATES != 0);
        let done =
            self.server.clients.lock().exchange(&self.seal, owner, verifier, is_update, now)?;
        out.put_u64(done.client);
        out.put_u32(done.sequence);
        out.put_u32(WITHOUT_LAYOUTS | if done.is_confirmed { IS_CONFIRMED } else { 0 });
        out.put_u32(0);
        // Hosts of a store are several servers: each serves the volumes that it owns.
        out.put_u64(0);
        out.put_opaque(&host);
        out.put_opaque(&self.seal.check(b"nfs4 scope").to_be_bytes());
        out.put_u32(0);
        Ok(())
    }

    pub(super) fn create_session(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (client, sequence, flags) = (args.u64()?, args.u32()?, args.u32()?);
        let (fore, back) = (Channel::read(args)?, Channel::read(args)?);
        skip_callback(args)?;
        if flags & !SESSION_FLAGS != 0 {
            return Err(Status::INVAL.into());
        }
        let fore = fore.agreed()?;
        let random = u32::from_be_bytes(self.server.env.random());
        let now = self.server.env.now();
        let mut clients = self.server.clients.lock();
        let session = match clients.create(&self.seal, client, sequence, (random, fore), now)? {
            Created::New(session) => session,
            Created::Before(reply) => {
                out.extend(reply);
                return Ok(());
            }
        };
        let mut reply = Vec::new();
        reply.put_plain(&session.id);
        reply.put_u32(sequence);
        reply.put_u32(PERSISTS);
        fore.put(&mut reply);
        back.put(&mut reply);
        out.extend_from_slice(&reply);
        clients.created(client, sequence, reply);
        Ok(())
    }

    /// A session is not bound to connections: each may carry calls of each session.
    pub(super) fn bind(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (id, _direction, _rdma) = (args.sixteen()?, args.u32()?, args.flag()?);
        self.server.clients.lock().session(&self.seal, &id, self.server.env.now())?;
        out.put_plain(&id);
        out.put_u32(FORE);
        out.put_flag(false);
        Ok(())
    }

    pub(super) fn destroy_session(&mut self, args: &mut Args<'_>) -> Done {
        let id = args.sixteen()?;
        let is_own = self.turn.as_ref().is_some_and(|turn| turn.request().0 == id);
        if is_own && self.at + 1 < self.size.1 {
            // What follows would be of no session.
            return Err(Status::NOT_ONLY_OP.into());
        }
        Ok(self.server.clients.lock().destroy_session(&self.seal, &id)?)
    }

    pub(super) fn destroy_client(&mut self, args: &mut Args<'_>) -> Done {
        let client = args.u64()?;
        Ok(self.server.clients.lock().destroy_client(client)?)
    }

    /// Nothing is to be reclaimed: all that a client held is there.
    pub(super) fn reclaim_complete(&mut self, args: &mut Args<'_>) -> Done {
        if args.flag()? {
            // Of one volume.
            self.spot()?;
            return Ok(());
        }
        Ok(self.server.clients.lock().reclaimed(self.client())?)
    }
}
