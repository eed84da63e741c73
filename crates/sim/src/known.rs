//! The oracle for a file volume. One client at a time changes it, so its state is known to the
//! last call, but for a call whose answer was lost. What was synced is there for good; what was
//! answered and not synced may be lost with a machine, from its end on. So a volume always shows a
//! state that was, none before the last sync.

use crate::heard;
use crate::model::{Model, Op};
use rekindle_file::{Errno, Ino};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// What is known of a file volume.
pub struct Known {
    /// The states since the last sync, by number; the first one is durable, and the last one is
    /// what the volume shows.
    states: Vec<(u64, Model)>,
    /// A request whose answer was lost, or has not come yet.
    open: Option<Open>,
    /// The numbers of states that were lost.
    lost: Vec<RangeInclusive<u64>>,
    /// The numbers of all inodes that were ever seen. A client may hold one for longer than its
    /// file is there.
    given: BTreeSet<Ino>,
    /// Calls that were answered.
    pub answered: u64,
}

/// A request without an answer.
enum Open {
    Call(Op),
    /// To go back to this content.
    Rollback(Model),
}

impl Default for Known {
    fn default() -> Self {
        Self {
            states: vec![(0, Model::new())],
            open: None,
            lost: Vec::new(),
            given: BTreeSet::new(),
            answered: 0,
        }
    }
}

impl Known {
    fn last(&self) -> &(u64, Model) {
        self.states.last().expect("there is one")
    }

    /// Returns what the volume shows.
    pub fn model(&self) -> &Model {
        &self.last().1
    }

    /// Returns the number of the present state.
    pub fn number(&self) -> u64 {
        self.last().0
    }

    /// Whether the answer to a call was lost.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether something was answered and not synced.
    pub fn owes(&self) -> bool {
        self.states.len() > 1
    }

    /// Notes that a call begins.
    pub fn begin(&mut self, op: Op) {
        assert!(self.open.is_none(), "a client has one call at a time");
        self.open = Some(Open::Call(op));
    }

    /// Notes that the volume is asked to go back to the content of a snapshot.
    pub fn begin_rollback(&mut self, to: Model) {
        assert!(self.open.is_none(), "a client has one request at a time");
        self.open = Some(Open::Rollback(to));
    }

    /// Notes that the volume has gone back, for good.
    pub fn rolled_back(&mut self) {
        let Some(Open::Rollback(to)) = self.open.take() else { panic!("it was asked to") };
        self.states = vec![(self.number() + 1, to)];
    }

    /// Notes the answer to the call: the inode that it made, or an error.
    pub fn end(&mut self, outcome: Result<Option<Ino>, Errno>) -> Result<(), String> {
        let Some(Open::Call(op)) = self.open.take() else { panic!("a call has begun") };
        let mut model = self.model().clone();
        let expected = model.apply(&op, outcome.ok().flatten());
        if outcome.err() != expected.err() {
            return Err(format!("{} is answered {outcome:?}, not {expected:?}", name(&op)));
        }
        self.answered += 1;
        self.give(&op, outcome.ok().flatten())?;
        if outcome.is_ok() {
            self.states.push((self.number() + 1, model));
        }
        Ok(())
    }

    /// Notes that a sync was answered, which began when state `number` was shown.
    pub fn synced(&mut self, number: u64) -> Result<(), String> {
        if self.lost.iter().any(|lost| lost.contains(&number)) {
            return Err(format!("a sync was answered, and state {number} is lost"));
        }
        self.states.retain(|(state, _)| *state >= number);
        Ok(())
    }

    /// Compares what the volume shows with what it should, while no call is open.
    pub fn compare(&self, found: &Model) -> Result<(), String> {
        if found == self.model() {
            return Ok(());
        }
        Err(format!("{} It is {}", difference(found, self.model()), "not as it was left"))
    }

    /// Judges what the volume shows after an answer was lost, or in another life, and takes it as
    /// the truth. `may_be_lost`: states since the last sync may be gone. `is_durable`: what is
    /// shown is durable. Returns whether some are gone.
    pub fn judge(
        &mut self,
        found: Model,
        (may_be_lost, is_durable): (bool, bool),
    ) -> Result<bool, String> {
        let last = self.states.len() - 1;
        let open = self.open.take();
        if let Some(Open::Rollback(to)) = &open {
            heard::note("files: a rollback without an answer");
            if *to == found {
                self.states = vec![(self.number() + 1, found)];
                return Ok(false);
            }
        }
        if let Some(Open::Call(op)) = open {
            heard::note("files: a call without an answer");
            let mut after = self.model().clone();
            let made = made(&op, self.model(), &found);
            if after.apply(&op, made).is_ok() && after == found {
                self.give(&op, made)?;
                self.states.push((self.number() + 1, after));
                self.settle(is_durable);
                return Ok(false);
            }
        }
        let lawful = if may_be_lost { 0..=last } else { last..=last };
        let Some(at) = lawful.rev().find(|at| self.states[*at].1 == found) else {
            let known = self.states.len();
            return Err(format!(
                "a state that never was ({known} since the last sync, some may be lost: {may_be_lost}): {}",
                difference(&found, self.model())
            ));
        };
        if at < last {
            self.lost.push(self.states[at].0 + 1..=self.number());
            let next = self.number() + 1;
            self.states.truncate(at + 1);
            // Its number is not that of a state that is lost.
            self.states[at].0 = next;
        }
        self.settle(is_durable);
        Ok(at < last)
    }

    /// Notes the number that a call has given to an inode.
    fn give(&mut self, op: &Op, made: Option<Ino>) -> Result<(), String> {
        match (op, made) {
            (Op::Create(..), Some(ino)) if !self.given.insert(ino) => {
                Err(format!("{} is given the number {ino} again", name(op)))
            }
            _ => Ok(()),
        }
    }

    fn settle(&mut self, is_durable: bool) {
        if is_durable {
            self.states.drain(..self.states.len() - 1);
        }
    }
}

/// The number that a call has returned, if it was carried out and has left `found`: that of the
/// inode that it made, or of the bytes that it copied.
fn made(op: &Op, before: &Model, found: &Model) -> Option<u64> {
    match op {
        Op::Create((dir, name), ..) => found.nodes.get(dir)?.names.get(name).copied(),
        Op::Copy((from, at), (to, offset), length) => {
            let there = found.nodes.get(to)?.data.get(*offset as usize..)?;
            let copied = before.copied(*from, *at, *length);
            Some(copied.iter().zip(there).take_while(|(one, other)| one == other).count() as u64)
        }
        _ => None,
    }
}

fn name(op: &Op) -> String {
    format!("{op:?}").chars().take(200).collect()
}

/// Says where a state differs from another one.
fn difference(found: &Model, expected: &Model) -> String {
    let mut said = Vec::new();
    for (ino, node) in &expected.nodes {
        match found.nodes.get(ino) {
            Some(other) if other == node => {}
            other => said.push(format!("inode {ino} is {other:?}, not {node:?}.")),
        }
    }
    let more = found.nodes.keys().filter(|ino| !expected.nodes.contains_key(ino));
    said.extend(more.map(|ino| format!("inode {ino} is there.")));
    said.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_file::{FileType, ROOT};

    fn create(name: &str) -> Op {
        Op::Create((ROOT, name.into()), FileType::Regular, (0o755, 0))
    }

    /// Knows of files that were made, with inodes from 2 on, and of a sync after the first.
    fn known(names: &[&str]) -> Known {
        let mut known = Known::default();
        for (at, name) in names.iter().enumerate() {
            known.begin(create(name));
            known.end(Ok(Some(at as u64 + 2))).unwrap();
            if at == 0 {
                known.synced(known.number()).unwrap();
            }
        }
        known
    }

    #[test]
    fn what_was_not_synced_may_be_lost_from_its_end_on_and_nothing_else() {
        let all = ["a", "b", "c"];
        for (kept, lost) in [(3, false), (2, true), (1, true)] {
            let found = known(&all[..kept]).model().clone();
            assert_eq!(known(&all).judge(found.clone(), (true, true)), Ok(lost), "{kept}");
            assert_eq!(known(&all).judge(found, (false, true)).is_ok(), !lost, "{kept}");
        }
        assert!(known(&all).judge(Model::new(), (true, true)).is_err(), "it was synced");
        let mut hole = known(&all).model().clone();
        hole.apply(&Op::Unlink((ROOT, b"b".to_vec())), None).unwrap();
        assert!(known(&all).judge(hole, (true, true)).is_err(), "b is gone and c is not");
    }

    #[test]
    fn a_call_without_an_answer_may_have_been_carried_out() {
        let (before, after) = (known(&["a"]), known(&["a", "b"]));
        for (found, is_there) in [(&before, false), (&after, true)] {
            let mut open = known(&["a"]);
            open.begin(create("b"));
            assert_eq!(open.judge(found.model().clone(), (false, false)), Ok(false));
            assert_eq!((open.is_open(), open.model() == after.model()), (false, is_there));
        }
    }

    #[test]
    fn a_rollback_without_an_answer_may_have_been_carried_out() {
        let (before, after) = (known(&["a", "b"]), known(&["c"]));
        for found in [&before, &after] {
            let mut open = known(&["a", "b"]);
            open.begin_rollback(after.model().clone());
            assert_eq!(open.judge(found.model().clone(), (false, false)), Ok(false));
            assert!(!open.is_open() && open.model() == found.model());
        }
        let mut open = known(&["a", "b"]);
        open.begin_rollback(after.model().clone());
        assert!(open.judge(known(&["a"]).model().clone(), (false, false)).is_err());
    }

    #[test]
    fn the_number_of_a_file_that_is_lost_is_not_given_again() {
        for number in [2, 3, 4] {
            let mut lost = known(&["a", "b"]);
            lost.judge(known(&["a"]).model().clone(), (true, true)).unwrap();
            lost.begin(create("c"));
            assert_eq!(lost.end(Ok(Some(number))).is_ok(), number == 4, "{number}");
        }
    }

    #[test]
    fn a_late_answer_to_a_sync_is_a_lie_when_its_state_is_lost() {
        let mut known = known(&["a", "b"]);
        let (first, number) = (known.states[0].clone(), known.number());
        known.judge(first.1, (true, true)).unwrap();
        assert!(known.synced(number).is_err());
        assert!(known.synced(known.number()).is_ok());
    }
}
