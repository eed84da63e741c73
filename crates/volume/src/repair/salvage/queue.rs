//! The salvage queue: decides which volume is salvaged next, and by which worker. Pure: no clock,
//! no I/O; the driver is the parent module.
//!
//! A volume has one request: another one joins it while it waits or runs. The choice of workers
//! starves no device (a datastore): first a device that has requests and no worker, in turn; then
//! any that has requests, in turn. On a device the highest priority goes first, and of equal ones
//! the oldest request.

use crate::limits;
use rekindle_env::Moment;
use std::collections::BTreeMap;

/// A request to salvage a volume, waiting or running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// URL of its datastore.
    pub device: String,
    pub reason: String,
    pub priority: u64,
    pub asked: Moment,
    /// When a waiting client last raised the priority.
    raised: Option<Moment>,
    /// Order of arrival.
    order: u64,
    /// The worker's number; `None` while the request waits.
    pub worker: Option<usize>,
}

/// The result of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The request waits.
    Queued,
    /// The volume has a request already.
    Coalesced,
    /// Too many requests.
    Full,
}

/// The result of cancelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// The request waited and is gone.
    Queued,
    /// A worker has the request, and has to be told.
    Running,
    /// There is no request.
    Nothing,
}

/// The salvage queue of a node.
#[derive(Debug)]
pub(crate) struct Queue {
    /// By volume.
    requests: BTreeMap<String, Request>,
    /// By worker: whether it is busy.
    workers: Vec<bool>,
    next_order: u64,
    /// The device that last got a worker.
    last_device: String,
}

impl Queue {
    pub fn new(workers: usize) -> Self {
        Self {
            requests: BTreeMap::new(),
            workers: vec![false; workers.max(1)],
            next_order: 0,
            last_device: String::new(),
        }
    }

    /// Adds a request for a volume, unless there is one.
    pub fn ask(&mut self, volume: &str, device: &str, reason: &str, now: Moment) -> Asked {
        if self.requests.contains_key(volume) {
            return Asked::Coalesced;
        }
        if self.requests.len() >= limits::SALVAGES_MAX {
            return Asked::Full;
        }
        let request = Request {
            device: device.to_owned(),
            reason: reason.to_owned(),
            priority: 0,
            asked: now,
            raised: None,
            order: self.next_order,
            worker: None,
        };
        self.next_order += 1;
        self.requests.insert(volume.to_owned(), request);
        Asked::Queued
    }

    /// Raises the priority of a volume that a client waits for, at most once in
    /// [`limits::SALVAGE_RAISE_INTERVAL`]. Whether it did.
    pub fn raise(&mut self, volume: &str, now: Moment) -> bool {
        let Some(request) = self.requests.get_mut(volume) else { return false };
        let is_soon =
            request.raised.is_some_and(|last| now.since(last) < limits::SALVAGE_RAISE_INTERVAL);
        if is_soon || request.worker.is_some() {
            return false;
        }
        request.raised = Some(now);
        request.priority += 1;
        true
    }

    /// Gives the next volume to a free worker. Returns both.
    pub fn next(&mut self) -> Option<(String, usize)> {
        let worker = self.workers.iter().position(|works| !works)?;
        let device = self.next_device()?;
        let waiting = self.requests.iter_mut();
        let (volume, request) = waiting
            .filter(|(_, request)| request.worker.is_none() && request.device == device)
            .max_by_key(|(_, request)| (request.priority, std::cmp::Reverse(request.order)))?;
        request.worker = Some(worker);
        let volume = volume.clone();
        self.workers[worker] = true;
        self.last_device = device;
        Some((volume, worker))
    }

    /// Returns the device whose turn it is.
    fn next_device(&self) -> Option<String> {
        let mut devices: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for request in self.requests.values() {
            let (waiting, working) = devices.entry(&request.device).or_default();
            *(if request.worker.is_some() { working } else { waiting }) += 1;
        }
        devices.retain(|_, (waiting, _)| *waiting > 0);
        let idle: Vec<&str> =
            devices.iter().filter(|(_, (_, working))| *working == 0).map(|(url, _)| *url).collect();
        let candidates = if idle.is_empty() { devices.into_keys().collect() } else { idle };
        let after = candidates.iter().find(|device| **device > self.last_device.as_str());
        after.or(candidates.first()).map(|device| (*device).to_owned())
    }

    /// Removes a request whose salvage has ended, and frees its worker.
    pub fn done(&mut self, volume: &str) {
        let worker = self.requests.remove(volume).and_then(|request| request.worker);
        if let Some(works) = worker.and_then(|worker| self.workers.get_mut(worker)) {
            *works = false;
        }
    }

    /// Removes a request that waits.
    pub fn cancel(&mut self, volume: &str) -> Cancelled {
        match self.requests.get(volume) {
            None => Cancelled::Nothing,
            Some(request) if request.worker.is_some() => Cancelled::Running,
            Some(_) => {
                self.requests.remove(volume);
                Cancelled::Queued
            }
        }
    }

    /// Lists all requests: those that run first, then those that wait, the next one first.
    pub fn all(&self) -> Vec<(&str, &Request)> {
        let mut all: Vec<(&str, &Request)> =
            self.requests.iter().map(|(volume, request)| (volume.as_str(), request)).collect();
        all.sort_by_key(|(_, request)| {
            let waits = request.worker.is_none();
            (waits, std::cmp::Reverse(request.priority), request.order)
        });
        all
    }
}

#[cfg(test)]
mod tests;
