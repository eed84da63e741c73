//! A bad store on demand, for tests, simulation and drills: slow, failing, gone, lying.

mod plan;

pub use plan::{Gone, Plan};

use crate::{Datastore, Error, Listed, Store, Version};
use bytes::Bytes;
use env::{BoxFuture, Env, Moment};
use parking_lot::Mutex;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

/// Switches the faults of a wrapped store at run time; clones switch the same.
#[derive(Clone)]
pub struct Handle {
    env: Env,
    state: Arc<Mutex<(Plan, Moment)>>,
}

impl Handle {
    /// What goes wrong from now on; the clock of `gone` starts anew.
    pub fn set(&self, plan: Plan) {
        *self.state.lock() = (plan, self.env.now());
    }

    /// What goes wrong now.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.state.lock().0.clone()
    }
}

struct Faulty {
    env: Env,
    inner: Store,
    handle: Handle,
}

/// A store to which `plan` happens, and the handle to change that.
#[must_use]
pub fn wrap(env: &Env, inner: Store, plan: Plan) -> (Store, Handle) {
    let handle = Handle { env: env.clone(), state: Arc::new(Mutex::new((plan, env.now()))) };
    (Arc::new(Faulty { env: env.clone(), inner, handle: handle.clone() }), handle)
}

/// How a call is lied about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// It is done, and the answer is lost.
    Lost,
    /// It is not done, and the answer is that somebody else was faster (a 409).
    FalseConflict,
    /// It is done, and the answer is that somebody else was faster: a retry that met its own success.
    DoneConflict,
}

impl Faulty {
    fn chance(&self, percent: f64) -> bool {
        // 53 bits are what a double holds exactly.
        let unit = (self.env.random_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        percent > 0.0 && unit * 100.0 < percent
    }

    /// The way to the store: it takes time and may fail.
    async fn pass(&self) -> Result<Plan, Error> {
        let (plan, since) = self.handle.state.lock().clone();
        if plan.is_quiet() {
            return Ok(plan);
        }
        let jitter = u64::try_from(plan.latency.as_nanos()).unwrap_or(u64::MAX);
        if jitter > 0 {
            // From a half to one and a half of what was asked for.
            let extra = std::time::Duration::from_nanos(self.env.random_u64() % jitter);
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

    fn injected(&self, what: &str) -> Error {
        Error::Unavailable(format!("{} has an injected fault: {what}", self.inner.describe()))
    }

    async fn read<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.pass().await?;
        work.await
    }

    /// A write that has no condition may land and be reported as failed.
    async fn write(&self, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let plan = self.pass().await?;
        let is_lost = self.chance(plan.lie_percent);
        work.await?;
        if is_lost { Err(self.injected("the answer was lost")) } else { Ok(()) }
    }

    /// A conditional write may land or not and be reported otherwise.
    async fn conditional(
        &self,
        conflict: Error,
        work: impl Future<Output = Result<Version, Error>>,
    ) -> Result<Version, Error> {
        let plan = self.pass().await?;
        let lie = self.chance(plan.lie_percent).then(|| match self.env.random_u64() % 3 {
            0 => Lie::Lost,
            1 => Lie::FalseConflict,
            _ => Lie::DoneConflict,
        });
        if lie == Some(Lie::FalseConflict) {
            return Err(conflict);
        }
        let version = work.await?;
        if lie.is_some() && plan.latency > std::time::Duration::ZERO {
            // Time for others to write on top before the caller looks.
            self.env.sleep(plan.latency).await;
        }
        match lie {
            Some(Lie::Lost) => Err(self.injected("the answer was lost")),
            Some(_) => Err(conflict),
            None => Ok(version),
        }
    }
}

impl Datastore for Faulty {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.write(self.inner.put(key, data)))
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(self.conditional(Error::Exists(key.to_owned()), self.inner.create(key, data)))
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(
            self.conditional(
                Error::Conflict(key.to_owned()),
                self.inner.replace(key, data, version),
            ),
        )
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(self.read(self.inner.get(key)))
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(self.read(self.inner.get_range(key, range)))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(self.read(self.inner.list(prefix, after)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.write(self.inner.delete(key)))
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[cfg(test)]
mod tests;
