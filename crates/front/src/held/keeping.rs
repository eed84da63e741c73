//! A change of what is held, in the turn of a change of the file.

use super::{Bad, Held};
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_file::{Errno, Halt, Ino, Keeper};

/// What is done to what is held of a file.
pub type Act<'a, T, E> = dyn Fn(&mut Held) -> Result<T, E> + Sync + 'a;

/// What became of an act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T, E> {
    Done(T),
    Refused(E),
    /// What is held cannot be read.
    Unreadable,
}

/// Carries an act out in the turn of a change, and remembers its outcome.
pub struct Keeping<'a, T, E> {
    volume: VolumeId,
    client: u64,
    act: &'a Act<'a, T, E>,
    outcome: Mutex<Option<Outcome<T, E>>>,
}

impl<'a, T, E> Keeping<'a, T, E> {
    pub fn new(volume: VolumeId, act: &'a Act<'a, T, E>) -> Self {
        Self { volume, client: 0, act, outcome: Mutex::default() }
    }

    /// The same, for a mount.
    pub fn of_mount(self, client: u64) -> Self {
        Self { client, ..self }
    }

    /// Takes the outcome; `None`: the act was not carried out.
    pub fn take(&self) -> Option<Outcome<T, E>> {
        self.outcome.lock().take()
    }
}

/// Reads what is held of a file.
pub fn read(kept: Option<&[u8]>, volume: VolumeId) -> Result<Held, Bad> {
    Held::decode(kept, volume).inspect_err(|bad| {
        tracing::error!(%volume, %bad, "no client may open or lock the file");
    })
}

impl<T: Send, E: Send> Keeper for Keeping<'_, T, E> {
    fn keep(&self, _ino: Ino, kept: Option<&[u8]>) -> Result<Option<Vec<u8>>, Halt> {
        let Ok(mut held) = read(kept, self.volume) else {
            *self.outcome.lock() = Some(Outcome::Unreadable);
            return Err(Errno::IO.into());
        };
        let (outcome, after) = match (self.act)(&mut held) {
            Ok(done) => (Outcome::Done(done), Ok(held.encode(self.volume))),
            // The outcome says more.
            Err(refused) => (Outcome::Refused(refused), Err(Errno::BUSY.into())),
        };
        *self.outcome.lock() = Some(outcome);
        after
    }

    fn client(&self) -> u64 {
        self.client
    }
}
