//! Actors in a life of one of two nodes: clients, users, a sweep, and a stranger that asks for the
//! other node's volumes.

use super::{BLOCKS, Life, Subject, VOLUMES};
use crate::boot::acknowledged;
use crate::heard;
use crate::oracle::{BLOCK, Change, ClientPart, some_change};
use rekindle_base::random::Random;
use rekindle_base::{Kind, VolumeId};
use rekindle_block::Device;
use rekindle_front::http::Api;
use rekindle_front::http::api::kept::Keep;
use rekindle_volume::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Life {
    /// Spawns an actor.
    pub(super) fn act(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.run.stage.act(&self.env, self.who, name, work);
    }

    async fn pause(&self, dice: &mut Random, most_ms: u64) {
        self.env.sleep(Duration::from_millis(dice.below(most_ms))).await;
    }

    /// Attaches the volume under this name: the one that was there, or a new one if that may be
    /// gone.
    pub(super) async fn enter(&self, at: usize) -> Result<Device, String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        let told = |why: String| format!("{name} cannot be attached: {why}");
        loop {
            let device = match self.served.attach(name).await {
                Ok(device) => device,
                Err(error) if error.kind == Kind::NotFound => {
                    let is_lost = {
                        let state = state.lock();
                        state.id.is_some() && !state.leaving
                    };
                    if is_lost {
                        return Err(format!("{name} is gone"));
                    }
                    let made = self.served.create(name, &self.run.setups[self.who]).await;
                    made.map_err(|error| told(error.message))?;
                    continue;
                }
                // A volume that is being removed ends for all its clients.
                Err(error) if error.kind.is_retryable() || error.kind == Kind::Fenced => {
                    self.env.sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => return Err(told(error.message)),
            };
            let id = device.handle().vault().id;
            self.meet(at, id)?;
            if self.seen.lock().contains(&id) || self.judge(at, id, &device).await? {
                return Ok(device);
            }
        }
    }

    /// Checks the volume that was found under a name, and notes a new one.
    fn meet(&self, at: usize, id: VolumeId) -> Result<(), String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        let mut state = state.lock();
        if state.gone.contains(&id) {
            return Err(format!("{name} is a volume that was removed"));
        }
        if state.id == Some(id) {
            return Ok(());
        }
        if let Some(old) = state.id {
            if !state.leaving {
                return Err(format!("{name} is another volume"));
            }
            heard::note("made anew");
            state.gone.insert(old);
        }
        let acknowledged = state.part.acknowledged;
        (state.id, state.leaving) = (Some(id), self.removing.lock().contains(&at));
        state.part = ClientPart::new(BLOCKS);
        state.part.acknowledged = acknowledged;
        Ok(())
    }

    /// Checks that a volume shows what was acknowledged; `false` if it is removed meanwhile.
    async fn judge(&self, at: usize, id: VolumeId, device: &Device) -> Result<bool, String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        let mut found = Vec::new();
        for block in 0..BLOCKS {
            let mut bytes = vec![0xee; BLOCK];
            match device.read((block * BLOCK) as u64, &mut bytes).await {
                Ok(()) => found.push(Some(bytes)),
                Err(error) if self.expects(at, id, error.kind()) => {
                    self.env.sleep(Duration::from_millis(50)).await;
                    return Ok(false);
                }
                Err(error) => return Err(format!("{name}, block {block}: {error}")),
            }
        }
        let mut state = state.lock();
        if state.id != Some(id) {
            return Ok(false);
        }
        state.part.judge(&found).map_err(|why| format!("{name} in a new life: {why}"))?;
        self.seen.lock().insert(id);
        Ok(true)
    }

    /// Whether a client of this volume may be told this.
    fn expects(&self, at: usize, id: VolumeId, kind: Kind) -> bool {
        let state = self.run.subjects[at].state.lock();
        let is_removed = state.leaving || state.id != Some(id);
        kind.is_retryable() || (is_removed && matches!(kind, Kind::Fenced | Kind::NotFound))
    }

    /// Attaches, reads and writes, and detaches, again and again.
    pub(super) async fn client(self, at: usize, mut dice: Random) -> Result<(), String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        while !self.run.stage.is_ending() {
            let device = self.enter(at).await?;
            let id = device.handle().vault().id;
            for _ in 0..1 + dice.below(6) {
                // A client that does not know the fate of its change waits for a new life, or a new
                // volume.
                if state.lock().part.is_open() {
                    break;
                }
                let done = self.step(at, id, &device, &mut dice).await;
                done.map_err(|why| format!("{name}: {why}"))?;
                self.pause(&mut dice, 200).await;
            }
            if dice.below(8) == 0 {
                match device.handle().staged().drain().await {
                    Ok(_) => heard::note("drained"),
                    Err(error) if self.expects(at, id, error.kind()) => {}
                    Err(error) => return Err(format!("{name}, drain: {error}")),
                }
            }
            drop(device);
            self.pause(&mut dice, 1000).await;
        }
        Ok(())
    }

    async fn step(
        &self,
        at: usize,
        id: VolumeId,
        device: &Device,
        dice: &mut Random,
    ) -> Result<(), String> {
        self.run.stage.begun.fetch_add(1, Ordering::Relaxed);
        let state = &self.run.subjects[at].state;
        if dice.below(3) == 0 {
            let block = dice.below(BLOCKS as u64) as usize;
            let mut found = vec![0xee; BLOCK];
            let read = device.read((block * BLOCK) as u64, &mut found).await;
            let state = state.lock();
            return match read {
                Ok(()) if state.id != Some(id) || state.part.allows(block, &found) => Ok(()),
                Ok(()) => Err(format!("block {block} does not read as what was written")),
                Err(error) => {
                    drop(state);
                    match self.expects(at, id, error.kind()) {
                        true => Ok(()),
                        false => Err(format!("read: {error}")),
                    }
                }
            };
        }
        let Change { start, bytes } = some_change(dice, BLOCKS);
        {
            let mut state = state.lock();
            if state.id != Some(id) {
                return Ok(());
            }
            state.part.submit(Change { start, bytes: bytes.clone() });
        }
        let written = device.write(start as u64, &bytes, dice.below(4) == 0);
        match acknowledged(device, written).await {
            Ok(()) => {
                let mut state = state.lock();
                if state.id == Some(id) {
                    state.part.acknowledge();
                }
                Ok(())
            }
            Err(error) if self.expects(at, id, error.kind()) => Ok(()),
            Err(error) => Err(format!("write: {error}")),
        }
    }

    pub(super) async fn sweeps(self, mut dice: Random) -> Result<(), String> {
        while !self.run.stage.is_ending() {
            self.pause(&mut dice, 3000).await;
            self.served.sweep().await.map_err(|problem| problem.message)?;
        }
        Ok(())
    }

    /// Removes volumes of this node beside their clients, as a user would.
    pub(super) async fn people(self, mut dice: Random) -> Result<(), String> {
        let service = &self.served.service;
        while !self.run.stage.is_ending() {
            self.pause(&mut dice, 8000).await;
            let subjects = 0..self.run.subjects.len();
            let mine: Vec<_> =
                subjects.filter(|&at| self.run.subjects[at].owner == self.who).collect();
            let at = mine[dice.below(VOLUMES as u64) as usize];
            let Subject { name, state, door, .. } = &self.run.subjects[at];
            {
                let _door = door.lock().await;
                let mut state = state.lock();
                if state.id.is_none() {
                    continue;
                }
                state.leaving = true;
                self.removing.lock().insert(at);
            }
            // A removal counts as many requests, so that crashes often fall into it.
            self.run.stage.begun.fetch_add(10, Ordering::Relaxed);
            let (by_force, by_trash) = (dice.below(2) == 0, dice.below(3) == 0);
            let removed = match by_trash {
                true => match service.remove_volume(name, by_force, false).await {
                    Ok(()) => service.purge_volume(name).await,
                    refused => refused,
                },
                false => service.remove_volume(name, by_force, true).await,
            };
            self.removing.lock().remove(&at);
            match removed {
                Ok(()) => heard::note("removed"),
                // The volume is not there, or another task has it.
                Err(error)
                    if error.kind.is_retryable()
                        || matches!(error.kind, Kind::NotFound | Kind::Fenced) => {}
                Err(error) => return Err(format!("{name} cannot be removed: {error}")),
            }
        }
        Ok(())
    }

    /// Asks this node for volumes of the other one.
    pub(super) async fn stranger(self, mut dice: Random) -> Result<(), String> {
        let volumes = &self.served.volumes;
        while !self.run.stage.is_ending() {
            self.pause(&mut dice, 2000).await;
            let at = dice.below(self.run.subjects.len() as u64) as usize;
            let Subject { name, owner, state, door } = &self.run.subjects[at];
            let Ok(_door) = door.try_lock() else { continue };
            let is_there = {
                let state = state.lock();
                state.id.is_some() && !state.leaving
            };
            if !is_there || *owner == self.who {
                continue;
            }
            let Some(id) = self.run.stage.serving.lock()[*owner].as_ref().map(|served| served.id)
            else {
                continue;
            };
            let refused = match dice.below(4) {
                0 => volumes.remove(name, true).await,
                1 => volumes.trash(name, true).await,
                _ => volumes.attach(name).await.map(drop),
            };
            match refused {
                Err(Error::Elsewhere(_, node)) if node == id => {
                    heard::note("another's volume refused");
                }
                Err(error) if error.kind() == Kind::Unavailable => {}
                other => return Err(format!("{name} is another's, and it is told {other:?}")),
            }
        }
        Ok(())
    }
}
