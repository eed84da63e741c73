//! The file system: a front's view of a file volume in service.
//!
//! A call looks at the state under its lock, and fetches what is not in RAM without it
//! ([`crate::look`]). A change has its turn meanwhile: what it was judged by holds until the log
//! has its record, and from then on all calls see it. It is durable with the next
//! [`Files::sync`], or within [`crate::limits::FLUSH_INTERVAL`], as in a local file system; a
//! daemon that is killed keeps it.

mod acls;
mod attributes;
mod bytes;
mod copy;
mod draft;
mod frozen;
mod keeping;
mod naming;
mod numbering;
mod uses;

use crate::caller::Caller;
use crate::format::record::{self, Effect};
use crate::format::rows::Totals;
use crate::home::Home;
use crate::kind::KIND;
use crate::limits;
use crate::look::{Look, Stop, unreadable};
use crate::state::{ORPHANS, State, View, decode_own};
use crate::table;
use crate::types::{Call, Errno, Error, Origin, Space, Time};
pub use bytes::joined;
use draft::Draft;
pub use frozen::is_frozen;
use futures_util::future::{Either, select};
use rekindle_env::{BoxFuture, Env, Moment};
use rekindle_staging::{NewRecord, Staged, Written};
use rekindle_volume::{Handle, Volumes};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// A file volume in service. Clones mean the same one.
#[derive(Clone)]
pub struct Files {
    handle: Handle,
    home: Arc<Home>,
    env: Env,
}

type Done<T> = Result<T, Error>;

/// The turn to change a volume.
type Turn = tokio::sync::OwnedMutexGuard<()>;

/// What is left of the wait for a change that the log has taken.
type Rest = Option<BoxFuture<'static, Result<(), rekindle_staging::Error>>>;

impl Files {
    /// Attaches a volume. A volume of another kind is refused, and stays as it is.
    pub async fn attach(volumes: &Volumes, name: &str) -> Result<Self, rekindle_volume::Error> {
        let handle = volumes.attach_as(name, KIND).await?;
        let home = handle.staged().record_home::<Home>();
        let home = home.ok_or_else(|| {
            rekindle_volume::Error::Invalid(format!("volume '{name}' has no files"))
        })?;
        let files = Self { handle, home, env: volumes.env().clone() };
        match files.ready().await {
            Ok(()) => {}
            Err(Error::Volume(rekindle_volume::Error::Staging(error))) => {
                // A salvage looks what can be had, and says what to do.
                files.staged().notice(&error);
                return Err(error.into());
            }
            Err(Error::Volume(error)) => return Err(error),
            Err(Error::Posix(errno)) => {
                return Err(rekindle_volume::Error::Invalid(errno.to_string()));
            }
        }
        files.tend();
        let _ = files.since();
        Ok(files)
    }

    /// Returns when the volume came into service: from then on its clients are heard here.
    #[must_use]
    pub fn since(&self) -> Moment {
        *self.home.began.get_or_init(|| self.env.now())
    }

    /// Returns the handle that keeps the volume in service.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Appends effects that no call would have.
    #[cfg(test)]
    pub(crate) async fn put_effects(&self, effects: &[Effect]) {
        let turn = self.home.turn.clone().lock_owned().await;
        drop(self.enter(turn, effects).await.unwrap());
    }

    #[cfg(test)]
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    fn staged(&self) -> &Arc<Staged> {
        self.handle.staged()
    }

    /// Returns the most bytes that the volume's files may have. Takes no lock of the staging, which
    /// is held where the state is told of records.
    fn size(&self) -> u64 {
        self.handle.size()
    }

    /// Waits until the state has all that the volume had when it came into service, and reads what
    /// the volume says of itself.
    async fn ready(&self) -> Done<()> {
        self.staged().until_readable().await?;
        // What the log has and flash has not becomes visible with this.
        self.staged().flush().await?;
        loop {
            let root = {
                let state = self.home.state.lock();
                if state.totals.is_some() {
                    return Ok(());
                }
                state.root
            };
            let own = table::get(&self.home.content, &root, ORPHANS).await?;
            let (mut totals, _) = decode_own(own.as_ref()).map_err(|bad| unreadable(&bad))?;
            let mut state = self.home.state.lock();
            if state.root == root {
                state.overlay.apply_to(&mut totals);
                state.totals.get_or_insert(totals);
            }
        }
    }

    /// Whether a change with this origin was carried out before: its reply was lost.
    pub async fn was_done(&self, origin: Origin) -> bool {
        // A change that has its turn may be this one.
        let _turn = self.home.turn.lock().await;
        self.totals(|totals| totals.has(&origin))
    }

    /// Whether a call was carried out before.
    #[must_use]
    pub fn was_called(&self, call: &Call) -> bool {
        self.totals(|totals| totals.has_call(call))
    }

    pub(crate) fn totals<T>(&self, read: impl FnOnce(&Totals) -> T) -> T {
        read(self.home.state.lock().totals.as_ref().expect("a volume is ready before it is used"))
    }

    /// Returns the space of the volume.
    pub async fn space(&self) -> Done<Space> {
        let bytes = self.size();
        self.staged().check_read()?;
        Ok(self.totals(|totals| Space { bytes, bytes_used: totals.bytes, inodes: totals.inodes }))
    }

    /// Makes everything that was answered so far durable.
    pub async fn sync(&self) -> Done<()> {
        // The call that has the next turn may be next on this thread, which is about to write to
        // flash. It goes first: one write makes both durable.
        tokio::task::yield_now().await;
        Ok(self.staged().flush().await?)
    }

    /// Looks at the state until everything that `look_at` needs is in RAM.
    async fn look<T>(&self, look_at: impl Fn(&View<'_>) -> Result<T, Stop>) -> Done<T> {
        self.look_until(|look| self.look_once(look, &look_at)).await
    }

    /// Looks once more for as long as something has to be fetched first.
    async fn look_until<T>(&self, once: impl Fn(&Look<'_>) -> Result<T, Stop>) -> Done<T> {
        let _hold = self.home.content.hold();
        let look = Look::new(&self.home.content);
        let found = loop {
            match once(&look) {
                Ok(found) => break Ok(found),
                // That something is not there is an answer, too.
                Err(Stop::Posix(errno)) => break Err(errno),
                Err(stop) => self.overcome(&look, stop).await?,
            }
        };
        // Another node may have the volume by now.
        self.staged().check_read()?;
        Ok(found?)
    }

    fn look_once<T>(
        &self,
        look: &Look<'_>,
        look_at: impl FnOnce(&View<'_>) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let state = self.home.state.lock();
        check(&state)?;
        look_at(&View { state: &state, look, names: &self.home.names })
    }

    /// Fetches what was missed; any other reason ends the call.
    async fn overcome(&self, look: &Look<'_>, stop: Stop) -> Done<()> {
        match stop {
            // Boxed: it looks at the state in turn.
            Stop::Numbers => Box::pin(self.note_numbers()).await,
            Stop::Miss(miss) => Ok(look.fetch(miss).await.inspect_err(|error| {
                self.staged().notice(&rekindle_staging::Error::Content(error.clone()));
            })?),
            stop => Err(stop.into_error()),
        }
    }

    /// Carries a change out: `plan` drafts it, and may be called again.
    async fn change<T>(
        &self,
        caller: Caller<'_>,
        plan: impl Fn(&mut Draft<'_, '_>) -> Result<T, Stop>,
    ) -> Done<T> {
        let now = self.now();
        let draft = |view: &View<'_>| {
            judge(&caller, view)?;
            // Locked to the end: what the change leaves of the numbers is for the next one.
            let mut numbers = self.home.numbers.lock();
            let mut draft = Draft::new(view, now, numbers.next.clone());
            let outcome = plan(&mut draft)?;
            let left = draft.numbers.clone();
            let effects = draft.effects(self.size(), &caller)?;
            numbers.next = left;
            *self.home.leaving.lock() = effects.iter().filter_map(Effect::removed).collect();
            Ok((outcome, effects))
        };
        let (turn, (outcome, effects)) = self.in_turn(draft).await?;
        let rest = self.enter(turn, &effects).await?;
        if effects.iter().any(|effect| matches!(effect, Effect::Kept { .. })) {
            let client = caller.keeper.map_or(0, |keeper| keeper.client());
            self.home.kept_changes.send_modify(|lately| lately.note(client, self.env.now()));
        }
        self.keep_pace(rest).await?;
        Ok(outcome)
    }

    /// Looks at the state until everything that `plan` needs is in RAM, and returns with the turn
    /// in which the plan was made.
    async fn in_turn<T>(&self, plan: impl Fn(&View<'_>) -> Result<T, Stop>) -> Done<(Turn, T)> {
        let mut may_recount = true;
        loop {
            let planned = self.plan_in_turn(&plan).await?;
            match planned {
                Ok(planned) => return Ok(planned),
                Err(lack) if may_recount && self.in_doubt() >= lack => {
                    may_recount = false;
                    self.recount().await;
                }
                Err(_) => {
                    self.staged().check_read()?;
                    return Err(Errno::NOSPC.into());
                }
            }
        }
    }

    /// The same. `Err` in it: the volume lacks so many bytes.
    async fn plan_in_turn<T>(
        &self,
        plan: &impl Fn(&View<'_>) -> Result<T, Stop>,
    ) -> Done<Result<(Turn, T), u64>> {
        let _hold = self.home.content.hold();
        let look = Look::new(&self.home.content);
        loop {
            let turn = self.home.turn.clone().lock_owned().await;
            let stop = match self.look_once(&look, plan) {
                Ok(planned) => return Ok(Ok((turn, planned))),
                Err(stop) => stop,
            };
            drop(turn);
            match stop {
                // Not all was in RAM that the file takes already.
                Stop::Full(_) if look.be_exact() => {}
                Stop::Full(lack) => return Ok(Err(lack)),
                stop => {
                    if matches!(stop, Stop::Posix(_)) {
                        // No record proves that this node still has the volume.
                        self.staged().check_read()?;
                    }
                    self.overcome(&look, stop).await?;
                }
            }
        }
    }

    /// Returns how many bytes a commit may give back.
    fn in_doubt(&self) -> u64 {
        self.home.state.lock().overlay.in_doubt()
    }

    /// Has a commit count what the volume's files take, if the store answers soon.
    async fn recount(&self) {
        let counted = self.env.timeout(limits::RECOUNT_TIME_MAX, self.staged().drain());
        if !matches!(counted.await, Ok(Ok(_))) {
            tracing::debug!("a change is refused by what is known: no commit has counted");
        }
    }

    async fn enter(&self, turn: Turn, effects: &[Effect]) -> Done<Rest> {
        if effects.is_empty() {
            self.staged().check_read()?;
            return Ok(None);
        }
        let bytes = record::encode(effects);
        self.append(turn, &[NewRecord { kind: record::EFFECTS, bytes: &bytes }]).await
    }

    /// Appends records as a group, and waits until the log has taken them: so long they have the
    /// turn, also when the caller goes away.
    async fn append(&self, turn: Turn, records: &[NewRecord<'_>]) -> Done<Rest> {
        let (told, entered) = oneshot::channel();
        *self.home.entered.lock() = Some(told);
        match self.staged().append_records(records, false) {
            Written::Acked => Ok(None),
            Written::NeedsSync(_) => {
                self.flush_later();
                Ok(None)
            }
            // It waits for room, or it must not be hurried.
            Written::Pending(wait) => {
                let taking = async move {
                    let _turn = turn;
                    match select(wait, entered).await {
                        Either::Left((written, _)) => written.map(|()| None),
                        Either::Right((_, rest)) => Ok(Some(rest)),
                    }
                };
                let rest = self.env.run("file-turn", taking).await?;
                self.flush_later();
                Ok(rest)
            }
        }
    }

    /// Has a client that changes more than the store takes wait, as the volume's flow control says.
    /// The rest of that wait, for flash or the store, is for [`Files::sync`].
    async fn keep_pace(&self, rest: Rest) -> Done<()> {
        let Some(rest) = rest else { return Ok(()) };
        match select(rest, self.env.sleep(limits::DELAY_MAX)).await {
            Either::Left((written, _)) => Ok(written?),
            Either::Right(_) => Ok(()),
        }
    }

    /// Makes changes durable soon, though no client waits for that.
    fn flush_later(&self) {
        if self.home.is_flush_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let (staged, home, env) = (self.staged().clone(), self.home.clone(), self.env.clone());
        self.env.spawn("file-flush", async move {
            env.sleep(limits::FLUSH_INTERVAL).await;
            home.is_flush_due.store(false, Ordering::Release);
            if let Err(error) = staged.flush().await {
                tracing::debug!(%error, "changes of a file volume wait for their next flush");
            }
        });
    }

    fn now(&self) -> Time {
        self.env.wall_clock().into()
    }
}

/// Asks the caller's witness.
fn judge(caller: &Caller<'_>, view: &View<'_>) -> Result<(), Stop> {
    caller.witness.map_or(Ok(()), |witness| witness.judge(view).map_err(|halt| halt.0))
}

fn check(state: &State) -> Result<(), Stop> {
    match &state.broken {
        Some(bad) => Err(bad.clone().into()),
        None => Ok(()),
    }
}
