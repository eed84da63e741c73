//! Actors in one of two lives of a node: clients and a sweep.

use super::{BLOCKS, Life, NEW, OLD, REGION, Seen, VOLUMES};
use crate::boot::acknowledged;
use crate::heard;
use crate::oracle::{Change, some_change};
use crate::region::{Excuse, Operation, SharedRegion, judge};
use crate::told::{Told, stays_fenced};
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_block::Device;
use rekindle_staging::{Policy, Written};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time within which a life that goes on writing has met a newer one.
const MEETS_WITHIN: Duration = Duration::from_secs(30);

impl Life {
    /// Spawns an actor.
    pub(super) fn act(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.run.stage.act(&self.env, self.which, name, work);
    }

    async fn pause(&self, dice: &mut Random, most_ms: u64) {
        self.env.sleep(Duration::from_millis(dice.below(most_ms))).await;
    }

    /// Whether this life may be fenced.
    fn may_be_fenced(&self) -> bool {
        self.which == OLD && self.run.is_copied.load(Ordering::Relaxed)
    }

    fn region(&self, at: usize) -> Result<SharedRegion, String> {
        let volume = &self.run.volumes[at];
        if self.which == OLD {
            return Ok(volume.old.clone());
        }
        let new = volume.new.lock().clone();
        new.map(|new| new.region).ok_or_else(|| "no client looked".to_owned())
    }

    /// Attaches a volume and judges what it shows; `None` if this life is fenced.
    pub(super) async fn enter(&self, at: usize) -> Result<Option<Device>, String> {
        let name = &self.run.volumes[at].name;
        loop {
            let (kind, why) = match self.served.attach(name).await {
                Ok(device) => {
                    return Ok(self.look(at, &device).await?.then_some(device));
                }
                Err(error) if error.kind == Kind::NotFound && self.which == OLD => {
                    match self.served.create(name, &self.run.setup).await {
                        Ok(()) => continue,
                        Err(error) => (error.kind, error.message),
                    }
                }
                Err(error) => (error.kind, error.message),
            };
            match kind {
                Kind::Fenced if self.may_be_fenced() => return Ok(None),
                kind if kind.is_retryable() => self.env.sleep(Duration::from_millis(50)).await,
                _ => return Err(format!("{name} cannot be attached: {why}")),
            }
        }
    }

    /// Judges what a volume shows at the beginning of a life; `false` if this life is fenced.
    async fn look(&self, at: usize, device: &Device) -> Result<bool, String> {
        let volume = &self.run.volumes[at];
        let mut found = vec![0xee; REGION];
        while let Err(error) = device.read(0, &mut found).await {
            match error.kind() {
                Kind::Fenced if self.may_be_fenced() => return Ok(false),
                kind if kind.is_retryable() => self.env.sleep(Duration::from_millis(50)).await,
                _ => return Err(format!("{}: {error}", volume.name)),
            }
        }
        let told = |why| format!("{} in a new life: {why}", volume.name);
        let fell_back = |region: &SharedRegion, excuse| {
            judge(std::slice::from_ref(region), std::slice::from_ref(&found), excuse)
        };
        let known = volume.new.lock().clone();
        if self.which == OLD {
            let before =
                (volume.old.lock().clone(), volume.floor.swap(0, Ordering::Relaxed) as usize);
            volume.earlier.lock().push(before);
            fell_back(&volume.old, Excuse::Nothing).map_err(told)?;
            return Ok(true);
        }
        if let Some(known) = known {
            fell_back(&known.region, Excuse::Nothing).map_err(told)?;
            return Ok(true);
        }
        let region = volume.old.lock().clone();
        let floor = volume.floor.load(Ordering::Relaxed) as usize;
        let mut begins = vec![(region, floor)];
        if self.run.setup.policy == Policy::Back {
            begins.extend(volume.earlier.lock().clone());
        } else {
            // These policies acknowledge only what the store has, so it is there, whichever life
            // acknowledged it.
            begins[0].1 = begins[0].0.mark();
        }
        let mut judged = Err("nothing to compare it with".to_owned());
        for (mut region, floor) in begins {
            region.flushed(floor);
            region.acknowledged = 0;
            let region = Arc::new(Mutex::new(region));
            judged = fell_back(&region, Excuse::Unflushed).map(|fell_back| (fell_back, region));
            if judged.is_ok() {
                break;
            }
        }
        let (fell_back, region) = judged.map_err(told)?;
        if fell_back {
            heard::note("the newer life goes on from less");
        }
        volume.new.lock().get_or_insert(Seen { base: found.clone(), region });
        Ok(true)
    }

    /// Reads and writes as long as the volume is served, now and then with a long pause.
    pub(super) async fn client(self, at: usize, mut dice: Random) -> Result<(), String> {
        let name = &self.run.volumes[at].name;
        if self.which == NEW && dice.below(2) == 0 {
            // Some clients come late to the copy; until then, the first one may have the volume.
            self.pause(&mut dice, 200_000).await;
        }
        let mut siesta = self.run.siesta;
        let Some(mut device) = self.enter(at).await? else { return Ok(()) };
        while !self.run.stage.is_ending() {
            let told = self.step(at, &device, &mut dice).await;
            match told.map_err(|why| format!("{name}: {why}"))? {
                Told::Fine => {}
                Told::Nothing => return Ok(()),
                Told::Fenced => return stays_fenced(&self.env, &device).await,
            }
            if dice.below(16) == 0 {
                drop(device);
                // A volume that is being drained is not detached.
                let _ = self.served.volumes.detach(name).await;
                match self.enter(at).await? {
                    Some(again) => device = again,
                    None => return Ok(()),
                }
            }
            if self.may_be_fenced() {
                self.env.sleep(std::mem::take(&mut siesta)).await;
            }
            let idle = if dice.below(24) == 0 { 60_000 } else { 400 };
            self.pause(&mut dice, idle).await;
        }
        Ok(())
    }

    /// Writes in the older life until it has met the newer one, which must be soon.
    pub(super) async fn meet(&self) -> Result<(), String> {
        let until = self.env.now() + MEETS_WITHIN;
        let mut dice = Random::new(7);
        for at in 0..VOLUMES {
            let Some(device) = self.enter_again(at).await? else { continue };
            while self.step(at, &device, &mut dice).await? == Told::Fine {
                if self.env.now() > until {
                    return Err("the older life never meets the newer one".to_owned());
                }
                self.env.sleep(Duration::from_millis(500)).await;
            }
        }
        Ok(())
    }

    /// Attaches a volume of the older life, if the life still serves it and the fate of every
    /// change is known.
    async fn enter_again(&self, at: usize) -> Result<Option<Device>, String> {
        let volume = &self.run.volumes[at];
        if volume.old.lock().is_open() {
            return Ok(None);
        }
        match self.served.attach(&volume.name).await {
            Ok(device) => Ok(Some(device)),
            Err(error) if error.kind == Kind::Fenced || error.kind.is_retryable() => Ok(None),
            Err(error) => Err(format!("{}: {error}", volume.name)),
        }
    }

    pub(super) async fn step(
        &self,
        at: usize,
        device: &Device,
        dice: &mut Random,
    ) -> Result<Told, String> {
        self.run.stage.begun.fetch_add(1, Ordering::Relaxed);
        let (region, staging) = (self.region(at)?, &self.served.staging);
        let told = |what, error: &_| Told::of(what, error, self.may_be_fenced());
        match dice.below(8) {
            0..=1 => {
                let mut found = vec![0xee; REGION];
                return match device.read(0, &mut found).await {
                    Ok(()) if found == region.lock().expected() => Ok(Told::Fine),
                    Ok(()) => Err("it does not read as what was written there".to_owned()),
                    Err(error) => match told("read", &error)? {
                        Told::Nothing => Ok(Told::Fine),
                        told => Ok(told),
                    },
                };
            }
            2 => {
                let mark = region.lock().mark() as u64;
                match device.handle().staged().drain().await {
                    // The store had these changes before the newer life looked, so the newer life
                    // must have them.
                    Ok(_) if self.which == OLD && self.run.volumes[at].new.lock().is_none() => {
                        self.run.volumes[at].floor.fetch_max(mark, Ordering::Relaxed);
                        self.run.volumes[at].earlier.lock().clear();
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let told = told("drain", &error.into())?;
                        return Ok(if told == Told::Fenced { told } else { Told::Fine });
                    }
                }
                return Ok(Told::Fine);
            }
            _ => {}
        }
        let Change { start, bytes } = some_change(dice, BLOCKS);
        region.lock().submit(&Operation { start, bytes: bytes.clone() });
        let mut was_fenced = staging.fenced().is_some();
        let written = device.write(start as u64, &bytes, dice.below(4) == 0);
        if dice.below(4) == 0 {
            // Some clients take their time until they ask whether the change is durable.
            self.pause(dice, 8000).await;
        }
        if matches!(written, Ok(Written::NeedsSync(_))) {
            was_fenced = staging.fenced().is_some();
        }
        if let Err(error) = acknowledged(device, written).await {
            return told("write", &error);
        }
        region.lock().acknowledge(false, self.served.log.view().head.segment);
        if was_fenced {
            return Err("it acknowledges although it is fenced".to_owned());
        }
        let new = self.run.volumes[at].new.lock().clone().filter(|_| self.which == OLD);
        if let Some(new) = new {
            heard::note("acknowledged beside the newer life");
            let is_there = new.base == region.lock().expected();
            if self.run.setup.policy != Policy::Back && !is_there {
                return Err("it acknowledges what the newer life does not have".to_owned());
            }
        }
        Ok(Told::Fine)
    }

    pub(super) async fn sweeps(self, mut dice: Random) -> Result<(), String> {
        while !self.run.stage.is_ending() {
            self.pause(&mut dice, 8000).await;
            if self.may_be_fenced() && !self.run.siesta.is_zero() {
                return Ok(());
            }
            match self.served.sweep().await {
                // The newer life sweeps, too, and asks no other life of its own node.
                Err(problem) if self.may_be_fenced() => {
                    tracing::debug!("not swept: {}", problem.message);
                }
                swept => drop(swept.map_err(|problem| problem.message)?),
            }
        }
        Ok(())
    }
}
