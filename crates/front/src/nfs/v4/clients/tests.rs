//! Clients, sessions and leases.

use super::*;
use std::time::Duration;

fn seal() -> Seal {
    Seal::with_secret(7)
}

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

impl Clients {
    fn known(&mut self, owner: &[u8], verifier: u8, now: Moment) -> u64 {
        self.exchange(&seal(), owner, [verifier; 8], false, now).unwrap().client
    }

    fn made(&mut self, client: u64, sequence: u32, now: Moment) -> Arc<Session> {
        match self.create(&seal(), client, sequence, (5 + sequence, Channel::MOST), now).unwrap() {
            Created::New(session) => {
                self.created(client, sequence, vec![1]);
                session
            }
            Created::Before(_) => panic!("it was made before"),
        }
    }
}

#[test]
fn a_client_is_its_name_and_its_start() {
    let mut clients = Clients::new(at(0));
    let first = clients.known(b"host", 1, at(0));
    assert_eq!(clients.known(b"host", 1, at(1)), first);
    assert_ne!(clients.known(b"host", 2, at(1)), first, "it has started anew");
    assert_ne!(clients.known(b"other", 1, at(1)), first);
    // Another process of the daemon says the same.
    let mut later = Clients::new(at(100));
    assert_eq!(later.known(b"host", 1, at(100)), first);
    assert_ne!(Clients::named(&Seal::with_secret(8), b"host", [1; 8]).1, first, "another store");
    let update = later.exchange(&seal(), b"host", [1; 8], true, at(101));
    assert_eq!(update, Err(Status::NOENT), "it is not confirmed");
    later.made(first, 1, at(102));
    let known = later.exchange(&seal(), b"host", [1; 8], true, at(103)).unwrap();
    assert_eq!(known, Exchanged { client: first, sequence: 2, is_confirmed: true });
    let update = |clients: &mut Clients| clients.exchange(&seal(), b"host", [9; 8], true, at(104));
    assert_eq!(update(&mut later), Err(Status::NOT_SAME));
    assert_eq!(update(&mut clients), Err(Status::NOENT), "there it has not been confirmed");
}

#[test]
fn a_client_that_makes_no_session_within_a_lease_is_forgotten() {
    let mut clients = Clients::new(at(0));
    let client = clients.known(b"host", 1, at(0));
    let late = at(limits::LEASE.as_secs() + 1);
    let made = clients.create(&seal(), client, 1, (1, Channel::MOST), late);
    assert_eq!(made.err(), Some(Status::STALE_CLIENTID));
    assert_eq!(clients.known(b"host", 1, late), client, "it may say who it is once more");
    clients.made(client, 1, late);
}

#[test]
fn a_session_has_the_slots_that_were_agreed_on() {
    let mut clients = Clients::new(at(0));
    let client = clients.known(b"host", 1, at(0));
    let channel = Channel { requests: 8, ..Channel::MOST };
    let Ok(Created::New(session)) = clients.create(&seal(), client, 1, (1, channel), at(0)) else {
        panic!("it is new");
    };
    assert!(session.with_slot(7, |_| ()).is_some());
    assert!(session.with_slot(8, |_| ()).is_none());
}

#[test]
fn sessions_are_made_one_after_the_other() {
    let mut clients = Clients::new(at(0));
    let client = clients.known(b"host", 1, at(0));
    let refused = |clients: &mut Clients, client, sequence| {
        clients.create(&seal(), client, sequence, (1, Channel::MOST), at(0)).err()
    };
    assert_eq!(refused(&mut clients, client + 1, 1), Some(Status::STALE_CLIENTID));
    assert_eq!(refused(&mut clients, client, 2), Some(Status::SEQ_MISORDERED));
    clients.made(client, 1, at(0));
    let again = clients.create(&seal(), client, 1, (1, Channel::MOST), at(0)).unwrap();
    assert!(matches!(again, Created::Before(reply) if reply == [1]));
    assert_eq!(refused(&mut clients, client, 3), Some(Status::SEQ_MISORDERED));
    for sequence in 2..=limits::CLIENT_SESSIONS_MAX as u32 {
        clients.made(client, sequence, at(0));
    }
    let next = limits::CLIENT_SESSIONS_MAX as u32 + 1;
    assert_eq!(refused(&mut clients, client, next), Some(Status::NOSPC));
}

#[test]
fn a_session_goes_on_after_a_restart_and_a_forged_one_does_not() {
    let mut clients = Clients::new(at(0));
    let client = clients.known(b"host", 1, at(0));
    let session = clients.made(client, 1, at(0));
    let mut later = Clients::new(at(50));
    let same = later.session(&seal(), &session.id, at(51)).unwrap();
    assert_eq!((same.id, same.client), (session.id, client));
    assert_eq!(same.with_slot(3, |slot| slot.clone()), Some(Slot::Unknown));
    assert_eq!(session.with_slot(3, |slot| slot.clone()), Some(Slot::Fresh));
    assert_eq!(same.with_slot(limits::SLOTS_MAX, |_| ()), None);
    for byte in 0..16 {
        let mut forged = session.id;
        forged[byte] ^= 1;
        assert_eq!(later.session(&seal(), &forged, at(51)).err(), Some(Status::BADSESSION));
    }
    // A client that the process has not heard may say so and go on.
    assert!(later.known(b"host", 1, at(52)) == client);
    assert!(later.session(&seal(), &session.id, at(53)).is_ok());
}

#[test]
fn what_is_destroyed_does_not_come_back() {
    let mut clients = Clients::new(at(0));
    let client = clients.known(b"host", 1, at(0));
    let session = clients.made(client, 1, at(0));
    assert_eq!(clients.destroy_client(client), Err(Status::CLIENTID_BUSY));
    clients.count_held(client, true);
    clients.destroy_session(&seal(), &session.id).unwrap();
    assert_eq!(clients.destroy_session(&seal(), &session.id), Err(Status::BADSESSION));
    assert_eq!(clients.session(&seal(), &session.id, at(1)).err(), Some(Status::BADSESSION));
    assert_eq!(clients.destroy_client(client), Err(Status::CLIENTID_BUSY), "it holds something");
    clients.count_held(client, false);
    clients.destroy_client(client).unwrap();
    let made = clients.create(&seal(), client, 2, (1, Channel::MOST), at(1));
    assert_eq!(made.err(), Some(Status::STALE_CLIENTID));
    assert_eq!(clients.destroy_client(client), Err(Status::STALE_CLIENTID));
    assert_eq!(clients.known(b"host", 1, at(2)), client);
    clients.made(client, 1, at(2));
}

#[test]
fn a_client_that_starts_anew_ends_its_earlier_self() {
    let mut clients = Clients::new(at(0));
    let first = clients.known(b"host", 1, at(0));
    let session = clients.made(first, 1, at(0));
    let holder = clients.holder(first);
    let second = clients.known(b"host", 2, at(1));
    let other = clients.known(b"other", 1, at(1));
    let gone =
        |clients: &Clients, asks| clients.has_gone(&holder, &clients.holder(asks), at(0), at(1));
    assert!(!gone(&clients, other));
    assert!(gone(&clients, second), "it is its own earlier self");
    assert!(clients.session(&seal(), &session.id, at(1)).is_ok(), "it may be another machine");
    clients.made(second, 1, at(1));
    assert!(gone(&clients, other));
    assert_eq!(clients.session(&seal(), &session.id, at(1)).err(), Some(Status::BADSESSION));
}

#[test]
fn a_lease_counts_from_the_last_word() {
    let lease = limits::LEASE.as_secs();
    let mut clients = Clients::new(at(1000));
    let client = clients.known(b"host", 1, at(1000));
    let asks = Holder { client: 5, machine: 5 };
    let heard = clients.holder(client);
    assert!(!clients.has_gone(&heard, &asks, at(0), at(1000 + lease)));
    assert!(clients.has_gone(&heard, &asks, at(0), at(1001 + lease)));
    let session = clients.made(client, 1, at(1010));
    assert!(!clients.has_gone(&heard, &asks, at(0), at(1010 + lease)));
    clients.session(&seal(), &session.id, at(1020)).unwrap();
    assert!(!clients.has_gone(&heard, &asks, at(0), at(1020 + lease)));
    // A client that this process has not heard has a lease from its start, or from when the volume
    // came to this host.
    let unheard = Holder { client: 9, machine: 9 };
    assert!(!clients.has_gone(&unheard, &asks, at(0), at(1000 + lease)));
    assert!(clients.has_gone(&unheard, &asks, at(0), at(1001 + lease)));
    assert!(!clients.has_gone(&unheard, &asks, at(5000), at(5000 + lease)));
}

#[test]
fn a_client_that_only_another_host_has_heard_keeps_its_lease() {
    let lease = limits::LEASE.as_secs();
    let (holder, asks) = (Holder { client: 9, machine: 9 }, Holder { client: 1, machine: 1 });
    let mut clients = Clients::new(at(1000));
    clients.heard_elsewhere(9, 9, at(1050), at(1055));
    assert!(!clients.has_gone(&holder, &asks, at(1000), at(1050 + lease)));
    assert!(clients.has_gone(&holder, &asks, at(1000), at(1051 + lease)));
    clients.heard_elsewhere(9, 0, at(1040), at(1060));
    assert!(!clients.has_gone(&holder, &asks, at(1000), at(1050 + lease)), "an older word");
}

#[test]
fn clients_and_what_they_hold_are_bounded() {
    let mut clients = Clients::new(at(0));
    let first = clients.known(b"first", 1, at(0));
    clients.made(first, 1, at(0));
    for number in 0..limits::CLIENTS_MAX as u64 * 2 {
        clients.known(&number.to_be_bytes(), 1, at(0));
    }
    assert_eq!(clients.clients.len(), limits::CLIENTS_MAX);
    assert!(clients.clients.contains_key(&first), "a client that is confirmed stays");
    for number in 0..limits::CLIENTS_MAX as u64 * 2 {
        if let Ok(known) = clients.exchange(&seal(), &number.to_be_bytes(), [2; 8], false, at(1)) {
            clients.made(known.client, 1, at(1));
        }
    }
    let refused = clients.exchange(&seal(), b"one more", [1; 8], false, at(2));
    assert_eq!(refused, Err(Status::DELAY), "all are in use");
    let later = at(3 + limits::LEASE.as_secs());
    clients.exchange(&seal(), b"one more", [1; 8], false, later).unwrap();
    assert_eq!(clients.may_hold(first), Ok(()));
    let client = clients.known(b"one more", 1, later);
    (0..limits::CLIENT_HELD_MAX).for_each(|_| clients.count_held(client, true));
    assert_eq!(clients.may_hold(client), Err(Status::NOSPC));
    clients.count_held(client, false);
    assert_eq!(clients.may_hold(client), Ok(()));
}

#[test]
fn a_client_reclaims_once() {
    let mut clients = Clients::new(at(0));
    let client = clients.known(b"host", 1, at(0));
    assert_eq!(clients.reclaimed(client), Ok(()));
    assert_eq!(clients.reclaimed(client), Err(Status::COMPLETE_ALREADY));
}

#[test]
fn idle_sessions_leave_room_for_others_and_come_back() {
    let mut clients = Clients::new(at(0));
    let mut first = None;
    for host in 0..limits::SESSIONS_MAX / limits::CLIENT_SESSIONS_MAX {
        let client = clients.known(host.to_string().as_bytes(), 1, at(0));
        for sequence in 1..=limits::CLIENT_SESSIONS_MAX as u32 {
            let session = clients.made(client, sequence, at(0));
            first.get_or_insert(session.id);
        }
    }
    let other = clients.known(b"other", 1, at(1));
    let full = clients.create(&seal(), other, 1, (1, Channel::MOST), at(1));
    assert_eq!(full.err(), Some(Status::DELAY));
    let late = at(limits::LEASE.as_secs() + 1);
    clients.made(other, 1, late);
    let first = first.expect("there are some");
    assert!(clients.session(&seal(), &first, late).is_ok(), "its id says what it is");
    clients.destroy_session(&seal(), &first).unwrap();
}
