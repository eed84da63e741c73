//! Counts calls, bytes, errors and time; calls also by the part of the store that they are for.

use crate::{Datastore, Error, Got, Listed, Removal, Room, Store, Version, key};
use bytes::Bytes;
use rekindle_env::{BoxFuture, Env};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Put.
    Put,
    /// Create.
    Create,
    /// Replace.
    Replace,
    /// Get.
    Get,
    /// Get of a range.
    GetRange,
    /// List.
    List,
    /// Delete.
    Delete,
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 7] = [
        Call::Put,
        Call::Create,
        Call::Replace,
        Call::Get,
        Call::GetRange,
        Call::List,
        Call::Delete,
    ];

    /// Returns the name for users and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Call::Put => "put",
            Call::Create => "create",
            Call::Replace => "replace",
            Call::Get => "get",
            Call::GetRange => "get_range",
            Call::List => "list",
            Call::Delete => "delete",
        }
    }
}

/// The parts of a store, by which requests are counted: each has other causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorePart {
    /// Packs of data: commits and compaction write them; clients, checks and compaction read them.
    Data,
    /// Packs of metadata: likewise.
    Metadata,
    /// Vaults and names of volumes: each commit writes a vault; lists and sweeps read them.
    Records,
    /// Records of nodes.
    Nodes,
    /// The sweep's own records, and notes of moved chunks.
    Sweep,
    /// The rest.
    Other,
}

impl StorePart {
    /// All of them.
    pub const ALL: [StorePart; 6] = [
        StorePart::Data,
        StorePart::Metadata,
        StorePart::Records,
        StorePart::Nodes,
        StorePart::Sweep,
        StorePart::Other,
    ];

    /// Returns the name for users and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StorePart::Data => "data",
            StorePart::Metadata => "metadata",
            StorePart::Records => "records",
            StorePart::Nodes => "nodes",
            StorePart::Sweep => "sweep",
            StorePart::Other => "other",
        }
    }

    /// Returns the part in which a key, or a listed prefix, lies.
    fn of(key: &str) -> Self {
        const PARTS: [(&str, StorePart); 7] = [
            (key::PACKS_DATA, StorePart::Data),
            (key::PACKS_META, StorePart::Metadata),
            (key::VOLUMES, StorePart::Records),
            (key::NAMES, StorePart::Records),
            (key::NODES, StorePart::Nodes),
            (key::SWEEP, StorePart::Sweep),
            (key::MOVED, StorePart::Sweep),
        ];
        let found = PARTS.into_iter().find(|(prefix, _)| key.starts_with(prefix));
        found.map_or(StorePart::Other, |(_, part)| part)
    }
}

/// The measurements of one kind of call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Calls that have ended.
    pub calls: u64,
    /// Calls that failed otherwise than with the answer no (`NotFound`, `Exists`, `Conflict`).
    pub errors: u64,
    /// Payload of successful calls in both directions, bytes.
    pub bytes: u64,
    /// Moving average of the duration of a call; the last 8 or so count.
    pub latency: Duration,
}

#[derive(Default)]
struct Gauge {
    calls: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latency_nanos: AtomicU64,
}

/// The readings of a metered store. Clones share them.
#[derive(Clone, Default)]
pub struct Meter {
    gauges: Arc<[Gauge; 7]>,
    requests: Arc<[[AtomicU64; 7]; 6]>,
}

impl Meter {
    /// Returns the measurements so far.
    #[must_use]
    pub fn read(&self, call: Call) -> Reading {
        let gauge = &self.gauges[call as usize];
        Reading {
            calls: gauge.calls.load(Relaxed),
            errors: gauge.errors.load(Relaxed),
            bytes: gauge.bytes.load(Relaxed),
            latency: Duration::from_nanos(gauge.latency_nanos.load(Relaxed)),
        }
    }

    /// Returns how many calls of a kind there were for a part of the store.
    #[must_use]
    pub fn requests(&self, part: StorePart, call: Call) -> u64 {
        self.requests[part as usize][call as usize].load(Relaxed)
    }

    fn add(&self, part: StorePart, call: Call, took: Duration, bytes: u64, failed: bool) {
        self.requests[part as usize][call as usize].fetch_add(1, Relaxed);
        let gauge = &self.gauges[call as usize];
        gauge.calls.fetch_add(1, Relaxed);
        gauge.errors.fetch_add(u64::from(failed), Relaxed);
        gauge.bytes.fetch_add(bytes, Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = gauge.latency_nanos.load(Relaxed);
        // Concurrent calls may lose each other's share of the average: harmless.
        let after = if before == 0 { nanos } else { before - before / 8 + nanos / 8 };
        gauge.latency_nanos.store(after, Relaxed);
        let name = call.name();
        metrics::counter!("rekindle_store_calls_total", "call" => name).increment(1);
        metrics::counter!("rekindle_store_requests_total", "call" => name, "part" => part.name())
            .increment(1);
        metrics::counter!("rekindle_store_bytes_total", "call" => name).increment(bytes);
        if failed {
            metrics::counter!("rekindle_store_errors_total", "call" => name).increment(1);
        }
        metrics::histogram!("rekindle_store_seconds", "call" => name).record(took.as_secs_f64());
    }
}

struct Metered {
    env: Env,
    inner: Store,
    meter: Meter,
}

/// Wraps a store so that its calls are measured, and returns the meter to read.
#[must_use]
pub fn wrap(env: &Env, inner: Store) -> (Store, Meter) {
    let meter = Meter::default();
    (Arc::new(Metered { env: env.clone(), inner, meter: meter.clone() }), meter)
}

impl Metered {
    async fn measure<T>(
        &self,
        (call, key): (Call, &str),
        work: impl Future<Output = Result<T, Error>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Result<T, Error> {
        let began = self.env.now();
        let result = work.await;
        let took = self.env.now().since(began);
        self.note((call, key), took, &result, bytes);
        result
    }

    fn note<T>(
        &self,
        (call, key): (Call, &str),
        took: Duration,
        result: &Result<T, Error>,
        bytes: impl FnOnce(&T) -> usize,
    ) {
        let payload = result.as_ref().map_or(0, bytes);
        let failed = !matches!(
            result,
            Ok(_) | Err(Error::NotFound(_) | Error::Exists(_) | Error::Conflict(_))
        );
        self.meter.add(StorePart::of(key), call, took, payload as u64, failed);
    }
}

impl Datastore for Metered {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        let bytes = data.len();
        Box::pin(self.measure((Call::Put, key), self.inner.put(key, data), move |()| bytes))
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        let bytes = data.len();
        Box::pin(self.measure((Call::Create, key), self.inner.create(key, data), move |_| bytes))
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        let bytes = data.len();
        Box::pin(self.measure(
            (Call::Replace, key),
            self.inner.replace(key, data, version),
            move |_| bytes,
        ))
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(self.measure((Call::Get, key), self.inner.get(key), |(data, _)| data.len()))
    }

    fn get_together<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Vec<Got>> {
        Box::pin(async move {
            let began = self.env.now();
            let found = self.inner.get_together(keys).await;
            let each = u32::try_from(found.len().max(1)).unwrap_or(u32::MAX);
            let took = self.env.now().since(began) / each;
            for (key, got) in keys.iter().zip(&found) {
                self.note((Call::Get, key), took, got, |(data, _)| data.len());
            }
            found
        })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(self.measure((Call::GetRange, key), self.inner.get_range(key, range), Bytes::len))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(self.measure((Call::List, prefix), self.inner.list(prefix, after), |_| 0))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.measure((Call::Delete, key), self.inner.delete(key), |()| 0))
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        Box::pin(self.measure((Call::Delete, key), self.inner.delete_if(key, version), |_| 0))
    }

    fn room(&self) -> BoxFuture<'_, Result<Room, Error>> {
        self.inner.room()
    }

    fn may_be_covered(&self) -> bool {
        self.inner.may_be_covered()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
