//! A file volume of a cluster. A client on each host calls it where it is served, one at a time: so
//! [`Known`] knows each state. A turn that lasts too long is taken from its holder, which may stand
//! still.

use super::{HOSTS, PAUSE, Run};
use crate::boot::{Served, Setup};
use crate::files::is_passing;
use crate::heard;
use crate::known::Known;
use crate::model::{Model, Unread, carry_out};
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_base::units::MIB;
use rekindle_base::{Generation, Incarnation, Kind, NodeId};
use rekindle_env::Env;
use rekindle_file::{Error, Files};
use rekindle_front::http::api::ApiError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest write of a client, bytes: it fits into a small segment.
const WRITE_MAX: u64 = 100_000;
/// Time after which another client takes the turn.
const TURN_MAX: Duration = Duration::from_secs(4);
/// Calls in a turn, at most.
const CALLS: u64 = 8;

/// The volume, over all lives.
pub(super) struct FileVolume {
    pub(super) name: String,
    pub(super) setup: Setup,
    turn: Mutex<Turn>,
}

/// Who may call, and what is known.
#[derive(Default)]
struct Turn {
    known: Known,
    /// The number of the present turn, and when it began; `None`: it is free.
    holder: Option<(u64, Duration)>,
    /// Count of the turns so far.
    turns: u64,
    /// The service in which the volume was looked at last.
    last: Option<Service>,
    /// The number of troubles of the run when a call was answered last.
    troubles: u64,
}

/// A volume in service: at this host, by this process, for this owner.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Service {
    host: usize,
    process: Incarnation,
    owner: Option<NodeId>,
    generation: Generation,
}

impl FileVolume {
    pub(super) fn new(setup: &Setup) -> Self {
        let setup =
            Setup { kind: Some(rekindle_file::KIND), size: 64 * MIB, copies: 1, ..setup.clone() };
        Self { name: "files".to_owned(), setup, turn: Mutex::default() }
    }

    pub(super) fn answered(&self) -> u64 {
        self.turn.lock().known.answered
    }

    /// Takes the turn, if it is free, or its holder is late.
    fn take(&self, now: Duration) -> Option<u64> {
        let mut turn = self.turn.lock();
        match turn.holder {
            Some((_, since)) if now - since < TURN_MAX => return None,
            Some(_) => {
                heard::note("files: a turn is taken away");
                turn.last = None;
            }
            None => {}
        }
        turn.turns += 1;
        turn.holder = Some((turn.turns, now));
        Some(turn.turns)
    }

    fn leave(&self, number: u64) {
        let mut turn = self.turn.lock();
        if turn.is_of(number) {
            turn.holder = None;
        }
    }
}

impl Turn {
    fn is_of(&self, number: u64) -> bool {
        self.holder.is_some_and(|(holder, _)| holder == number)
    }
}

impl Run {
    /// Attaches the file volume, if this host serves it.
    async fn attach_files(
        &self,
        served: &Served,
        volume: &FileVolume,
    ) -> Result<Option<Files>, String> {
        let may_fail = |kind: Kind| match kind {
            Kind::Io => self.disks_fail.load(Ordering::Relaxed),
            Kind::Fenced | Kind::NotFound => true,
            kind => kind.is_retryable(),
        };
        let refused = |error: ApiError| match may_fail(error.kind) {
            true => Ok(None),
            false => Err(format!("{} cannot be attached: {}", volume.name, error.message)),
        };
        match served.service.files_here(&volume.name).await {
            Ok(files) => Ok(Some(files)),
            Err(error) => refused(error),
        }
    }

    /// Whether the host serves the file volume.
    pub(super) async fn serves_files(&self, served: &Served) -> bool {
        let Some(volume) = &self.files else { return true };
        matches!(self.attach_files(served, volume).await, Ok(Some(_)))
    }

    /// Calls the file volume whenever this host serves it.
    pub(super) async fn file_client(
        self: Arc<Self>,
        (env, host, served): (Env, usize, Served),
        mut dice: Random,
    ) -> Result<(), String> {
        let Some(volume) = &self.files else { return Ok(()) };
        let mut files: Option<Files> = None;
        while !self.stage.is_ending() && served.ended().is_none() {
            env.sleep(Duration::from_millis(dice.below(200))).await;
            if files.is_none() {
                files = self.attach_files(&served, volume).await?;
            }
            let Some(used) = &files else { continue };
            let Some(turn) = volume.take(self.now()) else { continue };
            let calls = self.play((volume, turn), (host, &served), used, &mut dice).await;
            volume.leave(turn);
            if !calls.map_err(|why| format!("{} at {host}: {why}", volume.name))? {
                files = None;
            }
        }
        Ok(())
    }

    /// Looks at the volume, if it is not known to be as it was left, and calls it some times.
    /// `false`: it is to be attached anew.
    async fn play(
        &self,
        (volume, turn): (&FileVolume, u64),
        (host, served): (usize, &Served),
        files: &Files,
        dice: &mut Random,
    ) -> Result<bool, String> {
        if !self.look((volume, turn), (host, served), files).await? {
            return Ok(false);
        }
        for _ in 0..1 + dice.below(CALLS) {
            self.stage.begun.fetch_add(1, Ordering::Relaxed);
            let troubles = self.troubles.load(Ordering::Relaxed);
            let answered = match dice.below(8) {
                0 => self.sync(volume, files).await?,
                1 => self.read_one((volume, turn), files, dice).await?,
                _ => self.call((volume, turn), files, dice).await?,
            };
            let mut state = volume.turn.lock();
            if !answered || !state.is_of(turn) {
                return Ok(answered);
            }
            state.troubles = troubles;
        }
        Ok(true)
    }

    /// Reads the volume whole in a service that is new, or when an answer was lost.
    async fn look(
        &self,
        (volume, turn): (&FileVolume, u64),
        (host, served): (usize, &Served),
        files: &Files,
    ) -> Result<bool, String> {
        let vault = files.handle().vault();
        let service = Service {
            host,
            process: served.incarnation,
            owner: vault.owner,
            generation: vault.generation,
        };
        let (is_known, is_new) = {
            let state = volume.turn.lock();
            let is_new = state.last != Some(service);
            (!is_new && !state.known.is_open(), is_new)
        };
        if is_known {
            return Ok(true);
        }
        let troubles = self.troubles.load(Ordering::Relaxed);
        let found = match Model::read(files).await {
            Ok(found) => found,
            Err(Unread::Failed(error)) => return self.may_fail(&error),
            // The turn was another one's meanwhile.
            Err(Unread::Wrong(_)) if !volume.turn.lock().is_of(turn) => return Ok(false),
            Err(Unread::Wrong(why)) => return Err(why),
        };
        let mut state = volume.turn.lock();
        if !state.is_of(turn) {
            return Ok(false);
        }
        let had_trouble = state.troubles != troubles || !self.is_calm.load(Ordering::Relaxed);
        if state.known.judge(found, (is_new && had_trouble, is_new))? {
            heard::note("files: what was not synced is lost");
        }
        if is_new {
            heard::note("files: another service");
        }
        (state.last, state.troubles) = (Some(service), troubles);
        Ok(true)
    }

    async fn call(
        &self,
        (volume, turn): (&FileVolume, u64),
        files: &Files,
        dice: &mut Random,
    ) -> Result<bool, String> {
        let op = {
            let mut state = volume.turn.lock();
            if !state.is_of(turn) {
                return Ok(true);
            }
            let op = state.known.model().draw(dice, WRITE_MAX);
            state.known.begin(op.clone());
            op
        };
        let outcome = carry_out(files, &op).await;
        let mut state = volume.turn.lock();
        // Another one has found out meanwhile what has become of it, or will.
        if !state.is_of(turn) {
            return Ok(false);
        }
        match outcome {
            Ok(made) => state.known.end(Ok(made)).map(|()| true),
            Err(Error::Posix(errno)) => state.known.end(Err(errno)).map(|()| true),
            Err(error) => self.may_fail(&error),
        }
    }

    async fn sync(&self, volume: &FileVolume, files: &Files) -> Result<bool, String> {
        let number = volume.turn.lock().known.number();
        match files.sync().await {
            // Also if the turn is another one's by now: what is told must be true.
            Ok(()) => volume.turn.lock().known.synced(number).map(|()| true),
            Err(error) => self.may_fail(&error),
        }
    }

    /// Reads one inode, which must be as it was left.
    async fn read_one(
        &self,
        (volume, turn): (&FileVolume, u64),
        files: &Files,
        dice: &mut Random,
    ) -> Result<bool, String> {
        let (ino, node) = {
            let state = volume.turn.lock();
            let nodes = &state.known.model().nodes;
            let at = dice.below(nodes.len() as u64) as usize;
            let (ino, node) = nodes.iter().nth(at).expect("it is one of them");
            (*ino, node.clone())
        };
        let found = match files.attr(ino).await {
            Ok(found) => found,
            Err(Error::Posix(errno)) if volume.turn.lock().is_of(turn) => {
                return Err(format!("inode {ino} is answered {errno:?}"));
            }
            Err(Error::Posix(_)) => return Ok(false),
            Err(error) => return self.may_fail(&error),
        };
        let is_same = (found.kind, found.mode, found.links) == (node.kind, node.mode, node.links);
        match !volume.turn.lock().is_of(turn) || is_same {
            true => Ok(true),
            false => Err(format!("inode {ino} is {found:?}, not {node:?}")),
        }
    }

    /// `false` for an error that a client may see: it attaches the volume anew.
    fn may_fail(&self, error: &Error) -> Result<bool, String> {
        let disks_fail = self.disks_fail.load(Ordering::Relaxed);
        let is_io = matches!(error, Error::Volume(error) if error.kind() == Kind::Io);
        match is_passing(error) || (is_io && disks_fail) {
            true => Ok(false),
            false => Err(format!("a client is told: {error}")),
        }
    }

    /// Reads the file volume where it is served, at the end.
    pub(super) async fn read_files(&self, env: &Env) -> Result<(), String> {
        let Some(volume) = &self.files else { return Ok(()) };
        let serving = self.stage.serving.lock().clone();
        let end = env.now() + TURN_MAX * 20;
        while env.now() < end {
            for (host, served) in serving.iter().enumerate().take(HOSTS) {
                let Some(served) = served else { continue };
                let Some(files) = self.attach_files(served, volume).await? else { continue };
                let Some(turn) = volume.take(self.now()) else { continue };
                // A look at all of it, whatever is known.
                volume.turn.lock().last = None;
                let looked = self.look((volume, turn), (host, served), &files).await;
                volume.leave(turn);
                if looked.map_err(|why| format!("{} at the end: {why}", volume.name))? {
                    return Ok(());
                }
            }
            env.sleep(PAUSE).await;
        }
        Err(format!("{} is not served in the end", volume.name))
    }
}
