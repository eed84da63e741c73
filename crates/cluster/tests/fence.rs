//! A model of the fence: one node and two holders, which run the product's own machines. All that
//! may happen within a few steps is explored, and random walks go far beyond: messages that are
//! lost or late, processes that stand still or begin anew, writes of the record that land late or
//! whose reply is lost.
//!
//! Checked in every state: what an earlier life has acknowledged or shown is at the life that the
//! record names and at each holder that it names, and only that life shows anything.

use rekindle_base::random::Random;
use rekindle_base::{Incarnation, NodeId};
use rekindle_cluster::machine::Pace;
use rekindle_cluster::machine::holder::{Deed, Holder, Sight, State as Part, Taken};
use rekindle_cluster::machine::owner::{Command, Event, Owner, Reads, Stand};
use rekindle_env::Moment;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::time::Duration;

/// A unit of the model's time.
const UNIT: Duration = Duration::from_millis(600);
/// Holders of the model.
const HOLDERS: usize = 2;
/// Writes of the model.
const WRITES: u8 = 3;

fn pace() -> Pace {
    Pace {
        beat: UNIT,
        lease: UNIT * 3,
        replace: UNIT * 2,
        lag: UNIT * 50,
        whole: UNIT * 50,
        knock: UNIT,
        suspect: UNIT * 2,
        turn: UNIT,
        insist: UNIT * 4,
        cold: UNIT,
    }
}

fn id(holder: usize) -> NodeId {
    NodeId([holder as u8 + 1; 16])
}

fn number(node: NodeId) -> usize {
    usize::from(node.0[0]) - 1
}

/// The record `nodes/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Record {
    version: u8,
    life: u8,
    /// The holder that hosts the node; `None`: its own host.
    host: Option<usize>,
    holders: BTreeSet<usize>,
}

/// The process of the node on its own host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    life: u8,
    machine: Owner,
    /// Its log: count of the writes.
    log: u8,
    /// The writes that its life has found at its start, which it shows.
    found: u8,
    /// The holders that writes wait for.
    required: BTreeSet<usize>,
    links: [Option<Link>; HOLDERS],
    /// The holders of a write of the record that is to be made, and the version against which it
    /// was sent last.
    naming: Option<(BTreeSet<usize>, Option<u8>)>,
    reads: Reads,
}

/// A holder as its owner knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Link {
    /// Writes that it has.
    has: u8,
    /// Writes that it must have in its stand.
    goal: u8,
}

/// A holder's process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Keeper {
    machine: Holder,
    /// Writes in its copies, which a disk keeps.
    copies: u8,
    /// The record as the last look has shown it.
    seen: Option<Record>,
    looks: bool,
    takes: bool,
}

/// The messages between the node and one holder: the last of each kind, if it is under way. An
/// earlier one was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Wire {
    beat: Option<(u8, Moment)>,
    granted: Option<(u8, Moment)>,
    refused: Option<u8>,
    copy: Option<(u8, u8)>,
    copied: Option<(u8, u8)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    now: Moment,
    record: Record,
    process: Option<Process>,
    keepers: [Keeper; HOLDERS],
    wires: [Wire; HOLDERS],
    /// Writes of the record that were sent and may land: the version that they are against.
    air: Vec<(u8, Record)>,
    /// Most writes that any life has acknowledged or shown.
    promised: u8,
    restarts: u8,
}

impl World {
    /// The node has one holder, and a second one may be chosen.
    fn begin() -> World {
        let now = Moment(UNIT * 10);
        let keeper = || {
            let mut machine = Holder::begin(pace(), Duration::ZERO, Moment(Duration::ZERO));
            machine.grant(Incarnation(1), pace().lease, now).expect("it keeps");
            Keeper { machine, copies: 0, seen: None, looks: false, takes: false }
        };
        let record = Record { version: 1, life: 1, host: None, holders: BTreeSet::from([0]) };
        let mut process = Process {
            life: 1,
            machine: Owner::begin(pace(), [id(0)], now),
            log: 0,
            found: 0,
            required: BTreeSet::from([0]),
            links: [Some(Link { has: 0, goal: 0 }), None],
            naming: None,
            reads: Reads::No,
        };
        process.take(now, Event::CaughtUp(id(0)));
        process.take(now, Event::Granted(id(0), now));
        World {
            now,
            record,
            process: Some(process),
            keepers: [keeper(), keeper()],
            wires: [Wire::default(), Wire::default()],
            air: Vec::new(),
            promised: 0,
            restarts: 0,
        }
    }

    /// All that may happen next.
    fn next(&self) -> Vec<World> {
        let mut found = Vec::new();
        let mut then = |change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            if world != *self {
                found.push(world);
            }
        };
        // Time goes on; each process may stand still meanwhile.
        for awake in 0..8u8 {
            then(&|world| world.tick(awake));
        }
        then(&World::write);
        then(&World::choose);
        then(&World::acknowledge);
        then(&World::send_record);
        then(&World::look_at_own_record);
        then(&World::land);
        then(&World::restart);
        for holder in 0..HOLDERS {
            then(&|world| world.deliver(holder));
            then(&|world| world.deliver_reply(holder));
            then(&|world| world.knock(holder));
            then(&|world| world.look(holder));
            then(&|world| world.take(holder, true));
            then(&|world| world.take(holder, false));
            then(&|world| world.restart_keeper(holder));
            then(&|world| world.want(holder));
        }
        found
    }

    fn tick(&mut self, awake: u8) {
        self.now = self.now + UNIT;
        let now = self.now;
        if let Some(process) = self.process.as_mut().filter(|_| awake & 4 > 0) {
            process.take(now, Event::Tick);
            for (wire, _) in self.wires.iter_mut().zip(&process.links).filter(|one| one.1.is_some())
            {
                wire.beat = Some((process.life, now));
                wire.copy = Some((process.life, process.log));
            }
        }
        for holder in (0..HOLDERS).filter(|holder| awake & 1 << holder > 0) {
            let keeper = &mut self.keepers[holder];
            match keeper.machine.tick(now) {
                // Any knock may be refused, at any time.
                Some(Deed::Knock) | None => {}
                Some(Deed::Look) => keeper.looks = true,
                Some(Deed::Take) => keeper.takes = true,
            }
        }
    }

    /// A client writes.
    fn write(&mut self) {
        let Some(process) = self.process.as_mut() else { return };
        if process.log < WRITES {
            process.log += 1;
            for (wire, _) in self.wires.iter_mut().zip(&process.links).filter(|one| one.1.is_some())
            {
                wire.copy = Some((process.life, process.log));
            }
        }
    }

    /// The other holder is chosen.
    fn choose(&mut self) {
        if let Some(process) = self.process.as_mut() {
            process.take(self.now, Event::Chosen(id(1)));
        }
    }

    /// The owner acknowledges what all required holders have, and a client reads. The store, which
    /// acknowledges while there are no copies, is no part of this.
    fn acknowledge(&mut self) {
        let Some(process) = &self.process else { return };
        let has =
            process.required.iter().map(|holder| process.links[*holder].map_or(0, |it| it.has));
        let acknowledged = has.min().unwrap_or(0).min(process.log);
        let shown = if process.may_read(self.now) { process.found } else { 0 };
        self.promised = self.promised.max(acknowledged).max(shown);
    }

    /// The owner sends a write of the record, against the record as it is now.
    fn send_record(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some((target, sent)) = &mut process.naming else { return };
        if *sent == Some(self.record.version) || self.air.len() > 1 {
            return;
        }
        if self.record.life != process.life {
            // It has read the record: it is deposed.
            self.process = None;
            return;
        }
        *sent = Some(self.record.version);
        let version = self.record.version + 1;
        let next = Record { version, holders: target.clone(), ..self.record.clone() };
        self.air.push((self.record.version, next));
    }

    /// The owner reads the record, or has a reply: it finds its write there, or not.
    fn look_at_own_record(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some((target, Some(_))) = &process.naming else { return };
        if self.record.life != process.life {
            self.process = None;
        } else if self.record.holders == *target {
            process.naming = None;
            process.take(self.now, Event::Written);
        }
    }

    /// A write of the record lands, against the version that it was made for.
    fn land(&mut self) {
        if self.air.is_empty() {
            return;
        }
        let (version, next) = self.air.remove(0);
        if version == self.record.version {
            self.record = next;
        }
    }

    /// The node's own host begins its next life.
    fn restart(&mut self) {
        if self.restarts > 0 || self.record.host.is_some() {
            return;
        }
        let Some(last) = self.process.take() else { return };
        self.restarts += 1;
        self.record.version += 1;
        self.record.life += 1;
        let recorded = self.record.holders.clone();
        let machine = Owner::begin(pace(), recorded.iter().map(|holder| id(*holder)), self.now);
        let link = Link { has: 0, goal: last.log };
        self.process = Some(Process {
            life: self.record.life,
            reads: machine.reads(),
            machine,
            log: last.log,
            found: last.log,
            links: [0, 1].map(|holder| recorded.contains(&holder).then_some(link)),
            required: recorded,
            naming: None,
        });
    }

    /// The messages come to a holder.
    fn deliver(&mut self, holder: usize) {
        let (wire, keeper) = (&mut self.wires[holder], &mut self.keepers[holder]);
        let of = |life: u8| Incarnation(u64::from(life));
        if let Some((life, asked)) = wire.beat.take() {
            match keeper.machine.grant(of(life), pace().lease, self.now) {
                Ok(()) => wire.granted = Some((life, asked)),
                Err(_) => wire.refused = Some(life),
            }
        }
        if let Some((life, log)) = wire.copy.take()
            && keeper.machine.admit(of(life)).is_ok()
        {
            keeper.copies = log;
            wire.copied = Some((life, log));
        }
    }

    /// The replies come to the owner.
    fn deliver_reply(&mut self, holder: usize) {
        let wire = &mut self.wires[holder];
        let (granted, copied) = (wire.granted.take(), wire.copied.take());
        let refused = wire.refused.take();
        let Some(process) = &mut self.process else { return };
        if refused == Some(process.life) {
            process.take(self.now, Event::Refused(id(holder)));
        }
        if let Some((_, asked)) = granted.filter(|(life, _)| *life == process.life) {
            process.take(self.now, Event::Granted(id(holder), asked));
        }
        let copied = copied.filter(|(life, _)| *life == process.life);
        if let (Some((_, log)), Some(link)) = (copied, &mut process.links[holder]) {
            link.has = link.has.max(log);
            if link.has >= link.goal {
                process.take(self.now, Event::CaughtUp(id(holder)));
            }
        }
    }

    /// A holder takes the owner for gone: it is so, or the network says so.
    fn knock(&mut self, holder: usize) {
        self.keepers[holder].machine.knocked(true, self.now);
    }

    /// A holder looks into the record, and asks the other one.
    fn look(&mut self, holder: usize) {
        if !std::mem::take(&mut self.keepers[holder].looks) {
            return;
        }
        let record = self.record.clone();
        let place = match record.host == Some(holder) {
            true => Some(0),
            false => record.holders.iter().position(|one| *one == holder),
        };
        let incarnation = Incarnation(u64::from(record.life));
        let other = 1 - holder;
        let is_heard = record.holders.contains(&other)
            && self.keepers[other].machine.hears(incarnation, self.now);
        let keeper = &mut self.keepers[holder];
        keeper.seen = Some(record);
        let sight = Sight { incarnation, place, is_resting: false, is_heard };
        keeper.machine.saw(Some(sight), self.now);
    }

    /// A holder writes the record; the reply may be lost, and then the write may land late.
    fn take(&mut self, holder: usize, is_replied: bool) {
        let keeper = &mut self.keepers[holder];
        if !std::mem::take(&mut keeper.takes) {
            return;
        }
        let seen = keeper.seen.clone().expect("it has looked");
        let mut holders = seen.holders.clone();
        let is_named = holders.remove(&holder) || seen.host == Some(holder);
        let (version, life) = (seen.version + 1, seen.life + 1);
        let next = Record { version, life, host: Some(holder), holders };
        if !is_replied {
            self.air.push((seen.version, next));
            keeper.machine.took(Taken::Open, self.now);
        } else if self.record == seen && is_named {
            self.record = next;
            keeper.machine.took(Taken::Won(Incarnation(u64::from(life))), self.now);
        } else {
            keeper.machine.took(Taken::Lost, self.now);
        }
    }

    /// A user wants the takeover.
    fn want(&mut self, holder: usize) {
        let keeper = &mut self.keepers[holder];
        if self.restarts > 0 || matches!(keeper.machine.state(), Part::Guest | Part::Taking) {
            return;
        }
        self.restarts += 1;
        keeper.machine.want(self.now);
        (keeper.looks, keeper.takes) = (true, false);
    }

    /// A holder's process begins anew.
    fn restart_keeper(&mut self, holder: usize) {
        let keeper = &mut self.keepers[holder];
        if self.restarts > 0 || keeper.machine.state() == Part::Guest {
            return;
        }
        self.restarts += 1;
        let newest = keeper.machine.newest();
        keeper.machine = Holder::begin(pace(), pace().suspect, self.now);
        keeper.machine.meet(newest);
        (keeper.looks, keeper.takes, keeper.seen) = (false, false, None);
    }

    /// The holder at which the node's last life runs.
    fn guest(&self) -> Option<&Keeper> {
        let life = u64::from(self.record.life);
        let is_last =
            |one: &&Keeper| one.machine.state() == Part::Guest && one.machine.newest().0 == life;
        self.keepers.iter().find(is_last)
    }

    /// The promises that must hold whatever has happened.
    fn check(&self) {
        if let Some(guest) = self.guest() {
            let (has, promised) = (guest.copies, self.promised);
            assert!(has >= promised, "{has} of {promised} writes are there: {self:?}");
        }
        for holder in &self.record.holders {
            let (has, promised) = (self.keepers[*holder].copies, self.promised);
            assert!(
                has >= promised,
                "the record names {holder}, with {has} of {promised}: {self:?}"
            );
        }
        let Some(process) = &self.process else { return };
        if self.guest().is_some() {
            assert!(!process.may_read(self.now), "a deposed life may read: {self:?}");
        }
        if self.record.life == process.life {
            let missing = self.record.holders.difference(&process.required).next();
            assert!(missing.is_none(), "a holder that the record names is not required: {self:?}");
        }
    }
}

impl Process {
    fn may_read(&self, now: Moment) -> bool {
        match self.reads {
            Reads::Free => true,
            Reads::Until(end) => now < end,
            Reads::No => false,
        }
    }

    /// Takes an event, and carries the commands out as the driver does.
    fn take(&mut self, now: Moment, event: Event) {
        for command in self.machine.step(now, event) {
            match command {
                Command::Follow(node) => {
                    self.links[number(node)] = Some(Link { has: 0, goal: self.log });
                }
                Command::Require(node) => {
                    self.required.insert(number(node));
                    if let Some(link) = &mut self.links[number(node)] {
                        link.goal = self.log;
                    }
                }
                Command::Excuse(node) => drop(self.required.remove(&number(node))),
                Command::Drop(node) => {
                    self.required.remove(&number(node));
                    self.links[number(node)] = None;
                }
                Command::Record(target) => {
                    self.naming = Some((target.into_iter().map(number).collect(), None));
                }
                Command::Read(reads) => self.reads = reads,
            }
        }
    }
}

/// States to explore; of the first steps, these are all that there are.
const STATES: usize = 120_000;

#[test]
fn no_two_lives_promise_anything_at_one_time() {
    let begin = World::begin();
    let mut seen = HashSet::from([begin.clone()]);
    let mut queue = VecDeque::from([begin]);
    while let Some(world) = queue.pop_front() {
        for next in world.next() {
            next.check();
            if seen.len() < STATES && seen.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    assert_eq!(seen.len(), STATES);
}

#[test]
fn no_walk_of_many_steps_leads_to_two_lives() {
    let (mut takeovers, mut promised, mut named, mut deposed) = (0, 0, 0, 0);
    for seed in 1..3000u64 {
        let mut random = Random::new(seed);
        // A walk has its habits: in some the owner is silent, in others a holder.
        let likes: Vec<usize> = (0..64).map(|_| random.index(100)).collect();
        let mut world = World::begin();
        for _ in 0..120 {
            let next = world.next();
            let chosen = (0..2).map(|_| random.index(next.len())).max_by_key(|at| likes[at % 64]);
            let next = next.into_iter().nth(chosen.expect("two")).expect("it is there");
            next.check();
            takeovers += usize::from(next.guest().is_some() && world.guest().is_none());
            named += usize::from(next.record.holders.len() > world.record.holders.len());
            deposed += usize::from(next.process.is_none() && world.process.is_some());
            world = next;
        }
        promised += usize::from(world.promised);
    }
    println!(
        "{takeovers} takeovers, {named} holders named, {deposed} deposed, {promised} promises"
    );
    assert!(takeovers > 300 && named > 100 && deposed > 300 && promised > 1000);
}

#[test]
fn the_model_follows_the_table() {
    let mut world = World::begin();
    world.choose();
    let stand = |world: &World| {
        let process = world.process.as_ref().expect("it runs");
        process.machine.holders()[&id(1)].stand
    };
    assert_eq!(stand(&world), Stand::Following);
    for _ in 0..2 {
        world.tick(7);
        world.deliver(1);
        world.deliver_reply(1);
    }
    assert_eq!(stand(&world), Stand::Required { whole: true });
    world.send_record();
    world.land();
    world.look_at_own_record();
    assert_eq!(stand(&world), Stand::Recorded { whole: true });
    assert_eq!(world.record.holders, BTreeSet::from([0, 1]));
}
