//! The server's witness of a change: it applies the rules of permission in the change's turn, keeps
//! calls from being carried out twice, and notes what a directory was before.

use super::permission::Credentials;
use super::replies;
use nfs3_types::nfs3::{Nfs3Option, wcc_attr, wcc_data};
use parking_lot::Mutex;
use rekindle_file::{Attr, Call, Errno, Halt, Ino, Sight, Witness};

/// A rule, asked in the turn of the change. It returns the mode that the change is to leave, as a
/// function of the one asked for.
pub type Rule<'a> = dyn Fn(&Credentials, &dyn Sight) -> Result<Mode, Halt> + Send + Sync + 'a;

/// What becomes of the mode that a change asks for.
pub type Mode = Box<dyn Fn(u16) -> u16 + Send>;

/// Leaves the mode as it is asked for.
pub fn as_asked() -> Mode {
    Box::new(|mode| mode)
}

pub struct Judge<'a> {
    caller: &'a Credentials,
    /// The call, if it must not be carried out twice.
    call: Option<Call>,
    /// The inodes whose state before and after is told to the client.
    watched: &'a [Ino],
    rule: &'a Rule<'a>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    before: Vec<(Ino, wcc_attr)>,
    after: Vec<Attr>,
    mode: Option<Mode>,
    /// The call was carried out before.
    was_done: bool,
}

impl<'a> Judge<'a> {
    pub fn new(
        caller: &'a Credentials,
        call: Option<Call>,
        watched: &'a [Ino],
        rule: &'a Rule<'a>,
    ) -> Self {
        Self { caller, call, watched, rule, seen: Mutex::default() }
    }

    /// Whether the change was refused because it was carried out before.
    pub fn was_done(&self) -> bool {
        self.seen.lock().was_done
    }

    /// Returns what an inode was before the change and after it, and nothing of one that the change
    /// left alone.
    pub fn seen(&self, ino: Ino, volume: u64) -> Option<wcc_data> {
        let seen = self.seen.lock();
        let after = seen.after.iter().find(|attr| attr.ino == ino)?;
        let before = seen.before.iter().find(|(watched, _)| *watched == ino);
        let before = before.map_or(Nfs3Option::None, |(_, before)| Nfs3Option::Some(*before));
        Some(wcc_data { before, after: Nfs3Option::Some(replies::attributes(after, volume)) })
    }
}

impl Witness for Judge<'_> {
    fn judge(&self, sight: &dyn Sight) -> Result<(), Halt> {
        *self.seen.lock() = Seen::default();
        if self.call.is_some_and(|call| sight.was_called(&call)) {
            self.seen.lock().was_done = true;
            return Err(Errno::ALREADY.into());
        }
        for &ino in self.watched {
            let before = replies::before(&sight.attr(ino)?);
            self.seen.lock().before.push((ino, before));
        }
        let mode = (self.rule)(self.caller, sight)?;
        self.seen.lock().mode = Some(mode);
        Ok(())
    }

    fn settle_mode(&self, mode: u16) -> u16 {
        self.seen.lock().mode.as_ref().map_or(mode, |settle| settle(mode))
    }

    fn changed(&self, attr: &Attr) {
        let mut seen = self.seen.lock();
        seen.after.retain(|other| other.ino != attr.ino);
        seen.after.push(*attr);
    }
}
