//! The oracle for snapshots of a file volume: each shows for ever what the volume showed when it
//! was taken, and it is listed until it is removed.

use crate::model::Model;
use rekindle_base::random::Random;
use std::collections::BTreeMap;

/// The snapshots that were asked for, over all lives.
#[derive(Default)]
pub struct Frozen {
    all: BTreeMap<String, (Fate, Model)>,
    names: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    There,
    /// No answer came to the request to take or to remove it.
    Unknown,
}

impl Frozen {
    /// Returns a name that nothing has had.
    pub fn new_name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// Notes that a snapshot is asked for, and returns its name.
    pub fn begin(&mut self, model: Model) -> String {
        let name = self.new_name("s");
        self.all.insert(name.clone(), (Fate::Unknown, model));
        name
    }

    /// Notes that it was taken.
    pub fn taken(&mut self, name: &str) {
        self.all.get_mut(name).expect("it was asked for").0 = Fate::There;
    }

    /// Notes that its removal is asked for.
    pub fn begin_removal(&mut self, name: &str) {
        self.all.get_mut(name).expect("it was asked for").0 = Fate::Unknown;
    }

    /// Notes that it was removed.
    pub fn removed(&mut self, name: &str) {
        self.all.remove(name);
    }

    /// Draws one that is there.
    pub fn draw(&self, dice: &mut Random) -> Option<(String, Model)> {
        let there = || self.all.iter().filter(|(_, (fate, _))| *fate == Fate::There);
        let at = dice.below(there().count().max(1) as u64) as usize;
        there().nth(at).map(|(name, (_, model))| (name.clone(), model.clone()))
    }

    /// Judges a list of the snapshots, while no request is under way.
    pub fn judge(&self, listed: &[String]) -> Result<(), String> {
        if let Some(name) = listed.iter().find(|name| !self.all.contains_key(*name)) {
            return Err(format!("snapshot {name} is listed, and was removed"));
        }
        let is_lost = |(name, (fate, _)): &(&String, &(Fate, Model))| {
            *fate == Fate::There && !listed.contains(name)
        };
        match self.all.iter().find(is_lost) {
            Some((name, _)) => Err(format!("snapshot {name} is lost: {listed:?}")),
            None => Ok(()),
        }
    }

    /// Returns what a snapshot must show.
    pub fn shows(&self, name: &str) -> &Model {
        &self.all[name].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_listed_and_what_was_removed_is_not() {
        let mut frozen = Frozen::default();
        let (one, two) = (frozen.begin(Model::new()), frozen.begin(Model::new()));
        let listed = [one.clone(), two.clone()];
        assert!(frozen.judge(&listed).is_ok() && frozen.judge(&[]).is_ok());
        frozen.taken(&one);
        frozen.taken(&two);
        assert!(frozen.judge(&listed).is_ok() && frozen.judge(&listed[1..]).is_err());
        frozen.begin_removal(&one);
        assert!(frozen.judge(&listed).is_ok() && frozen.judge(&listed[1..]).is_ok());
        frozen.removed(&one);
        assert!(frozen.judge(&listed).is_err() && frozen.judge(&listed[1..]).is_ok());
    }
}
