//! A bad store on demand, for tests, simulation and drills: slow, failing, gone, with wrong
//! answers, partly absent, late, stale.

mod past;
mod plan;

pub use plan::{Absent, Gone, Plan};

use crate::backend::mem::Mem;
use crate::contract::one_by_one;
use crate::{Datastore, Error, Got, Listed, Removal, Room, Store, Version, key};
use bytes::Bytes;
use parking_lot::Mutex;
use past::Past;
use rekindle_env::{BoxFuture, Env, Moment};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The switch for the faults of a wrapped store, at run time. Clones share it.
#[derive(Clone)]
pub struct Handle {
    env: Env,
    state: Arc<Mutex<FaultState>>,
}

struct FaultState {
    plan: Plan,
    since: Moment,
    /// The moment from which the line to the store has nothing to carry.
    line_free: Moment,
    /// The store that lies over the absent prefix.
    instead: Store,
    past: Past,
}

impl Handle {
    /// Replaces the plan from now on; the clock of `gone` starts anew.
    pub fn set(&self, plan: Plan) {
        let mut state = self.state.lock();
        (state.plan, state.since, state.instead) = (plan, self.env.now(), Mem::store());
    }

    /// Returns the present plan.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.state.lock().plan.clone()
    }
}

struct Faulty {
    env: Env,
    inner: Store,
    handle: Handle,
}

/// Wraps a store so that `plan` happens to it, and returns the handle that changes the plan.
#[must_use]
pub fn wrap(env: &Env, inner: Store, plan: Plan) -> (Store, Handle) {
    let (since, instead, past) = (env.now(), Mem::store(), Past::default());
    let state = FaultState { plan, since, line_free: since, instead, past };
    let handle = Handle { env: env.clone(), state: Arc::new(Mutex::new(state)) };
    (Arc::new(Faulty { env: env.clone(), inner, handle: handle.clone() }), handle)
}

/// The kind of a wrong answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// The call is done, and its answer is lost.
    Lost,
    /// The call is not done, and the answer is that another writer was faster (a 409).
    FalseConflict,
    /// The call is done, and the answer is that another writer was faster: a retry that met its own
    /// success.
    DoneConflict,
}

/// A write that can be carried out at any time, and more than once.
#[derive(Clone)]
enum Write {
    Put(Bytes),
    Create(Bytes),
    Replace(Bytes, Version),
    Delete,
    DeleteIf(Version),
}

/// The result of a write.
enum Wrote {
    Nothing,
    Version(Version),
    Removal(Removal),
}

impl Write {
    async fn carry_out(self, store: &Store, key: &str) -> Result<Wrote, Error> {
        Ok(match self {
            Write::Put(data) => store.put(key, data).await.map(|()| Wrote::Nothing)?,
            Write::Create(data) => Wrote::Version(store.create(key, data).await?),
            Write::Replace(data, version) => {
                Wrote::Version(store.replace(key, data, &version).await?)
            }
            Write::Delete => store.delete(key).await.map(|()| Wrote::Nothing)?,
            Write::DeleteIf(version) => Wrote::Removal(store.delete_if(key, &version).await?),
        })
    }

    /// The length of what is written.
    fn bytes(&self) -> usize {
        match self {
            Write::Put(data) | Write::Create(data) | Write::Replace(data, _) => data.len(),
            Write::Delete | Write::DeleteIf(_) => 0,
        }
    }

    /// Returns the error with which the store says no; `None` for writes without a condition.
    fn no(&self, key: &str) -> Option<Error> {
        match self {
            Write::Put(_) | Write::Delete => None,
            Write::Create(_) => Some(Error::Exists(key.to_owned())),
            Write::Replace(..) | Write::DeleteIf(_) => Some(Error::Conflict(key.to_owned())),
        }
    }
}

impl Faulty {
    fn chance(&self, percent: f64) -> bool {
        // Without a chance no random number is drawn, so that a seed of an older plan gives the
        // same run.
        if percent <= 0.0 {
            return false;
        }
        // A double holds 53 bits exactly.
        let unit = (self.env.random_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        unit * 100.0 < percent
    }

    fn some_time(&self) -> Duration {
        Duration::from_micros(self.env.random_u64() % Plan::LATE.as_micros() as u64)
    }

    /// Passes a call to the store: this takes time and may fail.
    async fn pass(&self) -> Result<Plan, Error> {
        let (plan, since) = {
            let state = self.handle.state.lock();
            (state.plan.clone(), state.since)
        };
        if plan.is_quiet() {
            return Ok(plan);
        }
        let jitter = u64::try_from(plan.latency.as_nanos()).unwrap_or(u64::MAX);
        if jitter > 0 {
            // Between a half and one and a half of the latency in the plan.
            let extra = Duration::from_nanos(self.env.random_u64() % jitter);
            self.env.sleep(plan.latency / 2 + extra).await;
        }
        if let Some(gone) = plan.gone
            && gone.covers(self.env.now().since(since))
        {
            return Err(self.injected("unreachable for a while"));
        }
        if self.chance(plan.fail_percent) {
            return Err(self.injected("a failed request"));
        }
        Ok(plan)
    }

    /// Waits until the line has carried so many bytes, behind those of other calls.
    async fn carry(&self, bytes: usize) {
        let now = self.env.now();
        let until = {
            let mut state = self.handle.state.lock();
            if state.plan.rate == 0 {
                return;
            }
            let takes = Duration::from_secs_f64(bytes as f64 / state.plan.rate as f64);
            state.line_free = state.line_free.max(now) + takes;
            state.line_free
        };
        self.env.sleep(until.since(now)).await;
    }

    fn injected(&self, what: &str) -> Error {
        Error::Unavailable(format!("{} has an injected fault: {what}", self.inner.describe()))
    }

    /// Returns the prefix that is empty now, and the store that lies there instead.
    fn absent(&self) -> Option<(String, Store)> {
        let state = self.handle.state.lock();
        let absent = state.plan.absent.as_ref()?;
        let now = absent.when.covers(self.env.now().since(state.since));
        now.then(|| (absent.prefix.clone(), state.instead.clone()))
    }

    /// Returns the store that holds a key now.
    fn place(&self, key: &str) -> Store {
        match self.absent() {
            Some((prefix, instead)) if key.starts_with(&prefix) => instead,
            _ => self.inner.clone(),
        }
    }

    async fn read<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let plan = self.pass().await?;
        if self.chance(plan.silent_percent) {
            self.env.sleep(Plan::SILENCE).await;
            return Err(self.injected("no answer"));
        }
        let answer = work.await;
        if self.chance(plan.late_percent) {
            self.env.sleep(self.some_time()).await;
        }
        answer
    }

    /// Carries out a write with the faults of the plan. A write may land and be reported as failed
    /// or as a conflict; it may be reported as a conflict and not land; it may land later, or
    /// twice.
    async fn write(&self, key: &str, write: Write) -> Result<Wrote, Error> {
        let plan = self.pass().await?;
        let place = self.place(key);
        let lie = self.chance(plan.lie_percent).then(|| match &write {
            Write::Put(_) | Write::Delete => Lie::Lost,
            _ => match self.env.random_u64() % 3 {
                0 => Lie::Lost,
                1 => Lie::FalseConflict,
                _ => Lie::DoneConflict,
            },
        });
        let no = write.no(key).unwrap_or_else(|| self.injected("the answer was lost"));
        if lie == Some(Lie::FalseConflict) {
            return Err(no);
        }
        if self.chance(plan.late_percent) {
            self.later(key, write, place);
            return Err(self.injected("an answer that came too late"));
        }
        let silent = self.chance(plan.silent_percent);
        if silent && self.chance(50.0) {
            self.env.sleep(Plan::SILENCE).await;
            return Err(self.injected("no answer"));
        }
        if self.chance(plan.twice_percent) {
            self.later(key, write.clone(), place.clone());
        }
        if plan.stale_percent > 0.0 {
            let before = place.get(key).await.ok();
            self.handle.state.lock().past.object(key, before);
        }
        let conditional = !matches!(write, Write::Put(_) | Write::Delete);
        self.carry(write.bytes()).await;
        let wrote = write.carry_out(&place, key).await?;
        if silent {
            self.env.sleep(Plan::SILENCE).await;
            return Err(self.injected("no answer"));
        }
        if conditional && lie.is_some() && plan.latency > Duration::ZERO {
            // Other writers get time to write on top before the caller looks.
            self.env.sleep(plan.latency).await;
        }
        match lie {
            Some(Lie::Lost) => Err(self.injected("the answer was lost")),
            Some(_) => Err(no),
            None => Ok(wrote),
        }
    }

    /// Lets a write land some time later, whatever the answer was.
    fn later(&self, key: &str, write: Write, place: Store) {
        let (env, key, delay) = (self.env.clone(), key.to_owned(), self.some_time());
        self.env.spawn("store-fault-late", async move {
            env.sleep(delay).await;
            let _ = write.carry_out(&place, &key).await;
        });
    }

    async fn whole(&self, key: &str) -> Result<(Bytes, Version), Error> {
        let plan = self.handle.plan();
        if self.chance(plan.stale_percent)
            && let Some(before) = self.handle.state.lock().past.of_object(key)
        {
            return before.ok_or_else(|| Error::NotFound(key.to_owned()));
        }
        let (data, version) = self.place(key).get(key).await?;
        self.carry(data.len()).await;
        if data.is_empty() || key.starts_with(key::PACKS) || !self.chance(plan.flip_percent) {
            return Ok((data, version));
        }
        let mut wrong = data.to_vec();
        let bit = self.env.random_u64() as usize % (wrong.len() * 8);
        wrong[bit / 8] ^= 1 << (bit % 8);
        Ok((wrong.into(), version))
    }

    async fn page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, Error> {
        let page = self.page_now(prefix, after).await?;
        let plan = self.handle.plan();
        if plan.stale_percent <= 0.0 {
            return Ok(page);
        }
        let before = self.handle.state.lock().past.page(prefix, after, &page);
        let stale = self.chance(plan.stale_percent);
        Ok(before.filter(|_| stale).unwrap_or(page))
    }

    async fn page_now(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, Error> {
        let Some((absent, instead)) = self.absent() else {
            return self.inner.list(prefix, after).await;
        };
        if prefix.starts_with(&absent) {
            return instead.list(prefix, after).await;
        }
        let mut after = after.map(str::to_owned);
        loop {
            let page = self.inner.list(prefix, after.as_deref()).await?;
            let Some(last) = page.last() else { return Ok(page) };
            after = Some(last.key.clone());
            let seen: Vec<Listed> =
                page.into_iter().filter(|object| !object.key.starts_with(&absent)).collect();
            if !seen.is_empty() {
                return Ok(seen);
            }
        }
    }
}

impl Datastore for Faulty {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.write(key, Write::Put(data)).await.map(drop) })
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async move { version(self.write(key, Write::Create(data)).await?) })
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        at: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async move { version(self.write(key, Write::Replace(data, at.clone())).await?) })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(self.read(self.whole(key)))
    }

    fn get_together<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Vec<Got>> {
        if self.handle.state.lock().plan.is_quiet() {
            return self.inner.get_together(keys);
        }
        Box::pin(one_by_one(keys.iter().map(|key| self.get(key)).collect()))
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(self.read(async move {
            let data = self.place(key).get_range(key, range).await?;
            self.carry(data.len()).await;
            Ok(data)
        }))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(self.read(self.page(prefix, after)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.write(key, Write::Delete).await.map(drop) })
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        at: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        Box::pin(async move {
            Ok(match self.write(key, Write::DeleteIf(at.clone())).await? {
                Wrote::Removal(removal) => removal,
                _ => Removal::Done,
            })
        })
    }

    fn room(&self) -> BoxFuture<'_, Result<Room, Error>> {
        Box::pin(self.read(self.inner.room()))
    }

    fn may_be_covered(&self) -> bool {
        self.inner.may_be_covered()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

fn version(wrote: Wrote) -> Result<Version, Error> {
    match wrote {
        Wrote::Version(version) => Ok(version),
        _ => Err(Error::Unavailable("no version came back".to_owned())),
    }
}

#[cfg(test)]
mod tests;
