//! The clients, their sessions and their leases. Pure, but for the locks around slots.
//!
//! The ids of clients and sessions say of themselves what they are, with a check that only a host
//! of the store can compute. So a session goes on after a restart, or at another host of the store,
//! and no file has a list of them. What is here is only what this process has heard.

use super::channel::Channel;
use super::limits;
use super::slots::Slot;
use super::status::Status;
use crate::held::Holder;
use crate::nfs::forward::Heard;
use parking_lot::Mutex;
use rekindle_env::Moment;
use rekindle_file::Seal;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The id of a session: the client's id (8), a random number (4), a check of both (4).
pub type SessionId = [u8; 16];

fn session_id(seal: &Seal, client: u64, random: u32) -> SessionId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&client.to_be_bytes());
    id[8..12].copy_from_slice(&random.to_be_bytes());
    let check = seal.check(&[b"nfs4 session", &id[..12]].concat());
    id[12..].copy_from_slice(&check.to_be_bytes()[..4]);
    id
}

/// Returns the client that a session is of. `None`: no host of the store has made it.
fn client_of(seal: &Seal, id: &SessionId) -> Option<u64> {
    let (client, rest) = id.split_first_chunk().expect("it has 16 bytes");
    let (random, _) = rest.split_first_chunk().expect("it has 8 more");
    let (client, random) = (u64::from_be_bytes(*client), u32::from_be_bytes(*random));
    (session_id(seal, client, random) == *id).then_some(client)
}

/// A session.
pub struct Session {
    pub id: SessionId,
    pub client: u64,
    pub channel: Channel,
    slots: Mutex<Vec<Slot>>,
    /// What a slot is that no request has come to.
    first: Slot,
}

impl Session {
    fn new(id: SessionId, client: u64, channel: Channel, first: Slot) -> Arc<Self> {
        Arc::new(Self { id, client, channel, slots: Mutex::default(), first })
    }

    /// Works on a slot.
    pub fn with_slot<T>(&self, number: u32, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        if number >= self.channel.requests {
            return None;
        }
        let (mut slots, at) = (self.slots.lock(), number as usize);
        if slots.len() <= at {
            slots.resize(at + 1, self.first.clone());
        }
        Some(work(&mut slots[at]))
    }
}

/// What is known of a client.
struct Client {
    machine: u64,
    is_confirmed: bool,
    /// It said that it will not come again, or its machine has started anew since.
    is_over: bool,
    heard: Moment,
    /// The number of the last CREATE_SESSION, if it is known, and the reply.
    created: Option<(u32, Vec<u8>)>,
    has_reclaimed: bool,
    sessions: usize,
    /// Files of which it holds something, as far as this process knows.
    held: u64,
}

/// The clients that were heard of.
pub struct Clients {
    clients: HashMap<u64, Client>,
    sessions: HashMap<SessionId, Arc<Session>>,
    destroyed: HashSet<SessionId>,
    /// When this process began to hear of clients.
    since: Moment,
}

/// The outcome of EXCHANGE_ID.
#[derive(Debug, PartialEq, Eq)]
pub struct Exchanged {
    pub client: u64,
    /// The number of its next CREATE_SESSION.
    pub sequence: u32,
    pub is_confirmed: bool,
}

/// What CREATE_SESSION is.
pub enum Created {
    New(Arc<Session>),
    Before(Vec<u8>),
}

impl Clients {
    pub fn new(now: Moment) -> Self {
        let (clients, sessions, destroyed) = (HashMap::new(), HashMap::new(), HashSet::new());
        Self { clients, sessions, destroyed, since: now }
    }

    /// Returns the machine and the client that a name and a verifier make.
    fn named(seal: &Seal, owner: &[u8], verifier: [u8; 8]) -> (u64, u64) {
        let machine = seal.check(&[b"nfs4 machine", owner].concat());
        let client = seal.check(&[&b"nfs4 client"[..], &verifier, owner].concat());
        (machine, client)
    }

    /// Makes room for one more client.
    fn make_room(&mut self, now: Moment) -> Result<(), Status> {
        if self.clients.len() < limits::CLIENTS_MAX {
            return Ok(());
        }
        let is_idle = |client: &Client| {
            client.sessions == 0 && !client.is_confirmed || now - client.heard > limits::LEASE
        };
        let idle = self.clients.iter().filter(|(_, client)| is_idle(client));
        let Some(id) = idle.min_by_key(|(_, client)| client.heard).map(|(id, _)| *id) else {
            return Err(Status::DELAY);
        };
        self.clients.remove(&id);
        self.sessions.retain(|_, session| session.client != id);
        Ok(())
    }

    /// Makes room for one more session: those of clients that were not heard for a lease are known
    /// again by their ids when they are used.
    fn make_session_room(&mut self, now: Moment) -> Result<(), Status> {
        if self.sessions.len() < limits::SESSIONS_MAX {
            return Ok(());
        }
        let Self { clients, sessions, .. } = self;
        sessions.retain(|_, session| {
            let client = clients.get_mut(&session.client);
            let idle = client.filter(|client| now - client.heard > limits::LEASE);
            idle.map(|client| client.sessions -= 1).is_none()
        });
        if sessions.len() < limits::SESSIONS_MAX { Ok(()) } else { Err(Status::DELAY) }
    }

    /// EXCHANGE_ID: a client says who it is. `is_update`: it must be known already.
    pub fn exchange(
        &mut self,
        seal: &Seal,
        owner: &[u8],
        verifier: [u8; 8],
        is_update: bool,
        now: Moment,
    ) -> Result<Exchanged, Status> {
        let (machine, id) = Self::named(seal, owner, verifier);
        if let Some(client) = self.clients.get_mut(&id) {
            if is_update && !client.is_confirmed {
                return Err(Status::NOENT);
            }
            if client.is_over {
                *client = Client::new(machine, false, now);
            }
            (client.machine, client.heard) = (machine, now);
            let sequence = client.created.as_ref().map_or(1, |(last, _)| last.wrapping_add(1));
            return Ok(Exchanged { client: id, sequence, is_confirmed: client.is_confirmed });
        }
        if is_update {
            let is_earlier = |client: &Client| {
                client.machine == machine && client.is_confirmed && !client.is_over
            };
            let has_started_anew = self.clients.values().any(is_earlier);
            return Err(if has_started_anew { Status::NOT_SAME } else { Status::NOENT });
        }
        self.make_room(now)?;
        self.clients.insert(id, Client::new(machine, false, now));
        Ok(Exchanged { client: id, sequence: 1, is_confirmed: false })
    }

    /// CREATE_SESSION: the client is what it says, and what its machine held before is over.
    pub fn create(
        &mut self,
        seal: &Seal,
        id: u64,
        sequence: u32,
        (random, channel): (u32, Channel),
        now: Moment,
    ) -> Result<Created, Status> {
        let has_room = self.make_session_room(now);
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        let has_lapsed = !client.is_confirmed && now - client.heard > limits::LEASE;
        if client.is_over || has_lapsed {
            return Err(Status::STALE_CLIENTID);
        }
        match &client.created {
            Some((last, reply)) if *last == sequence => return Ok(Created::Before(reply.clone())),
            Some((last, _)) if last.wrapping_add(1) != sequence => {
                return Err(Status::SEQ_MISORDERED);
            }
            None if !client.is_confirmed && sequence != 1 => return Err(Status::SEQ_MISORDERED),
            _ => {}
        }
        if client.sessions >= limits::CLIENT_SESSIONS_MAX {
            return Err(Status::NOSPC);
        }
        has_room?;
        (client.heard, client.is_confirmed) = (now, true);
        client.sessions += 1;
        let machine = client.machine;
        let is_earlier = |(other, client): &(&u64, &mut Client)| {
            **other != id && client.machine == machine && machine != 0
        };
        let earlier: Vec<u64> = self
            .clients
            .iter_mut()
            .filter(is_earlier)
            .map(|(other, client)| {
                client.is_over = true;
                *other
            })
            .collect();
        self.sessions.retain(|_, session| !earlier.contains(&session.client));
        let session = Session::new(session_id(seal, id, random), id, channel, Slot::Fresh);
        self.sessions.insert(session.id, session.clone());
        Ok(Created::New(session))
    }

    /// Notes the reply to CREATE_SESSION.
    pub fn created(&mut self, id: u64, sequence: u32, reply: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.created = Some((sequence, reply));
        }
    }

    /// Returns a session. Its client has been heard of.
    pub fn session(
        &mut self,
        seal: &Seal,
        id: &SessionId,
        now: Moment,
    ) -> Result<Arc<Session>, Status> {
        if let Some(session) = self.sessions.get(id) {
            let client = self.clients.get_mut(&session.client).ok_or(Status::BADSESSION)?;
            if client.is_over {
                return Err(Status::BADSESSION);
            }
            client.heard = now;
            return Ok(session.clone());
        }
        // An earlier process of this host has made it, or another host.
        let client = client_of(seal, id).ok_or(Status::BADSESSION)?;
        let is_over = self.clients.get(&client).is_some_and(|client| client.is_over);
        if is_over || self.destroyed.contains(id) {
            return Err(Status::BADSESSION);
        }
        self.make_session_room(now)?;
        if !self.clients.contains_key(&client) {
            self.make_room(now)?;
            self.clients.insert(client, Client::new(0, true, now));
        }
        let known = self.clients.get_mut(&client).ok_or(Status::BADSESSION)?;
        (known.heard, known.is_confirmed) = (now, true);
        known.sessions += 1;
        let session = Session::new(*id, client, Channel::MOST, Slot::Unknown);
        self.sessions.insert(*id, session.clone());
        Ok(session)
    }

    /// Returns a session that another host keeps, for a request that has come from there. Its
    /// client has been heard of.
    pub fn visit(
        &mut self,
        (id, client, machine): (SessionId, u64, u64),
        now: Moment,
    ) -> Result<Arc<Session>, Status> {
        if self.clients.get(&client).is_none_or(|known| known.is_over) {
            self.make_room(now)?;
            self.clients.insert(client, Client::new(machine, true, now));
        }
        self.heard_elsewhere(client, machine, now, now);
        Ok(Session::new(id, client, Channel::MOST, Slot::Unknown))
    }

    /// Notes that another host has heard of a client at `heard`. This host may not know the client:
    /// the volume has come here since, and the client has asked for nothing.
    pub fn heard_elsewhere(&mut self, client: u64, machine: u64, heard: Moment, now: Moment) {
        if !self.clients.contains_key(&client) {
            if self.make_room(now).is_err() {
                return;
            }
            self.clients.insert(client, Client::new(machine, true, heard));
        }
        let Some(known) = self.clients.get_mut(&client) else { return };
        known.heard = known.heard.max(heard);
        if machine != 0 {
            known.machine = machine;
        }
    }

    /// Returns what other hosts are told of a client that was heard here within its lease.
    pub fn heard(&self, client: u64, now: Moment) -> Option<Heard> {
        let known = self.clients.get(&client).filter(|known| !known.is_over)?;
        let ago = now - known.heard;
        let ago_ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        (ago <= limits::LEASE).then_some(Heard { machine: known.machine, ago: ago_ms })
    }

    /// DESTROY_SESSION.
    pub fn destroy_session(&mut self, seal: &Seal, id: &SessionId) -> Result<(), Status> {
        let known = self.sessions.remove(id);
        if known.is_none() && (client_of(seal, id).is_none() || self.destroyed.contains(id)) {
            return Err(Status::BADSESSION);
        }
        if let Some(client) = known.and_then(|known| self.clients.get_mut(&known.client)) {
            client.sessions -= 1;
        }
        if self.destroyed.len() >= limits::DESTROYED_MAX {
            self.destroyed.clear();
        }
        self.destroyed.insert(*id);
        Ok(())
    }

    /// DESTROY_CLIENTID: what the client may still hold is over.
    pub fn destroy_client(&mut self, id: u64) -> Result<(), Status> {
        let known = self.clients.get_mut(&id).filter(|client| !client.is_over);
        let client = known.ok_or(Status::STALE_CLIENTID)?;
        if client.sessions > 0 || client.held > 0 {
            return Err(Status::CLIENTID_BUSY);
        }
        client.is_over = true;
        Ok(())
    }

    /// RECLAIM_COMPLETE: there is nothing to reclaim, so a client says it once.
    pub fn reclaimed(&mut self, id: u64) -> Result<(), Status> {
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        match std::mem::replace(&mut client.has_reclaimed, true) {
            true => Err(Status::COMPLETE_ALREADY),
            false => Ok(()),
        }
    }

    /// Returns a client as it holds things.
    pub fn holder(&self, client: u64) -> Holder {
        let machine = self.clients.get(&client).map_or(0, |client| client.machine);
        Holder { client, machine }
    }

    /// Whether another client may have what this one holds. `asks` is who wants it, and `since` the
    /// time from which on the volume's clients would have been heard here.
    pub fn has_gone(&self, holder: &Holder, asks: &Holder, since: Moment, now: Moment) -> bool {
        let is_earlier =
            holder.machine != 0 && holder.machine == asks.machine && holder.client != asks.client;
        let heard = match self.clients.get(&holder.client) {
            Some(client) if client.is_over => return true,
            Some(client) => client.heard,
            None => self.since.max(since),
        };
        is_earlier || now - heard > limits::LEASE
    }

    /// Counts the files of which a client holds something.
    pub fn count_held(&mut self, client: u64, is_more: bool) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.held = match is_more {
                true => client.held + 1,
                false => client.held.saturating_sub(1),
            };
        }
    }

    /// Refuses a client that holds too much.
    pub fn may_hold(&self, client: u64) -> Result<(), Status> {
        let held = self.clients.get(&client).map_or(0, |client| client.held);
        if held < limits::CLIENT_HELD_MAX { Ok(()) } else { Err(Status::NOSPC) }
    }
}

impl Client {
    fn new(machine: u64, is_confirmed: bool, now: Moment) -> Self {
        Self {
            machine,
            is_confirmed,
            is_over: false,
            heard: now,
            created: None,
            has_reclaimed: false,
            sessions: 0,
            held: 0,
        }
    }
}

#[cfg(test)]
mod tests;
