//! Actors in the life of a node that has copies of its log elsewhere: clients.

use super::{BLOCKS, Life, PAUSE, REGION, Run, STORE, Seen, VOLUMES};
use crate::boot::{How, Served, acknowledged};
use crate::dice::Dice;
use crate::heard;
use crate::oracle::{Change, some_change};
use crate::region::{Excuse, Operation, SharedRegion, judge};
use crate::told::{Told, stays_fenced};
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_block::Device;
use rekindle_env::Env;
use rekindle_staging::Written;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time within which a generation that goes on writing has met a newer one.
const MEETS_WITHIN: Duration = Duration::from_secs(30);

impl Run {
    /// Runs one life of a generation: starts the node, and spawns all its actors.
    pub(super) async fn live(
        self: Arc<Self>,
        env: Env,
        generation: usize,
        mut dice: Dice,
    ) -> Result<(), String> {
        let served = match self.start(&env, generation).await {
            Err(why) if self.is_replaced(generation) && why.contains("another copy") => {
                heard::note("copies: a replaced host is refused");
                return Ok(());
            }
            // The holder has a folder, and had no copies yet.
            Err(why) if why.contains("no copy of its log") && !self.has_followed(generation) => {
                heard::note("copies: a start without any is refused");
                self.is_over.store(true, Ordering::Relaxed);
                return Ok(());
            }
            started => started?,
        };
        self.node.lock().get_or_insert(served.id);
        self.taken.fetch_max(generation, Ordering::Relaxed);
        self.last_life.lock()[generation] = (served.incarnation, false);
        if !self.stage.is_ending() {
            let words = STORE[dice.below(STORE.len() as u64) as usize];
            served.faults.set(words.parse().expect("ours"));
            if dice.below(3) == 0 {
                served.lists.set("stale=20%".parse().expect("ours"));
            }
        }
        self.stage.serving.lock()[generation] = Some(served.clone());
        let life = Life { run: self.clone(), generation, served, env: env.clone() };
        for at in 0..VOLUMES {
            let client = life.clone().client(at, dice.fork());
            self.stage.act(&env, generation, "client", client);
        }
        Ok(())
    }

    /// Whether the holders had all of the log of the generation before this one's last life.
    fn has_followed(&self, generation: usize) -> bool {
        generation > 0 && self.last_life.lock()[generation - 1].1
    }

    /// Whether a newer generation may have replaced this one.
    fn is_replaced(&self, generation: usize) -> bool {
        self.newest.load(Ordering::Relaxed) > generation
    }

    async fn start(&self, env: &Env, generation: usize) -> Result<Served, String> {
        let setup = self.setups.lock()[generation].clone();
        let takes = self.taken.load(Ordering::Relaxed) < generation;
        let how = How { takes, ..How::default() };
        match Served::start(env, self.store.clone(), &setup, how.clone()).await {
            Err(why) if takes && why.contains("--older-copies") => {
                if self.has_followed(generation) {
                    return Err(format!("the last life was copied, and it says: {why}"));
                }
                heard::note("copies: of an older life");
                let how = How { older_copies: true, ..how };
                Served::start(env, self.store.clone(), &setup, how).await
            }
            started => started,
        }
    }
}

impl Life {
    async fn pause(&self, dice: &mut Dice, most_ms: u64) {
        self.env.sleep(Duration::from_millis(dice.below(most_ms))).await;
    }

    /// Whether a newer generation may fence this life.
    fn may_be_fenced(&self) -> bool {
        self.run.is_replaced(self.generation)
    }

    fn seen(&self, at: usize) -> Result<Seen, String> {
        let seen = self.run.volumes[at].seen.lock()[self.generation].clone();
        seen.ok_or_else(|| "no look came before".to_owned())
    }

    /// Attaches a volume and judges what it shows; `None` if this life does not serve it, and may
    /// do so.
    pub(super) async fn enter(&self, at: usize) -> Result<Option<Device>, String> {
        let volume = &self.run.volumes[at];
        let name = &volume.name;
        loop {
            let (kind, why) = match self.served.attach(name).await {
                Ok(device) => {
                    return Ok(self.look(at, &device).await?.then_some(device));
                }
                Err(error) if error.kind == Kind::NotFound && self.generation == 0 => {
                    match self.served.create(name, &volume.setup).await {
                        Ok(()) => {
                            volume.is_created.store(true, Ordering::Relaxed);
                            continue;
                        }
                        Err(error) => (error.kind, error.message),
                    }
                }
                Err(error) => (error.kind, error.message),
            };
            let is_new = !volume.is_created.load(Ordering::Relaxed);
            match kind {
                Kind::Fenced if self.may_be_fenced() => return Ok(None),
                Kind::NotFound if is_new => return Ok(None),
                _ if why.contains("lost machine") && self.generation > 0 && volume.is_alone() => {
                    heard::note("copies: a volume without any is refused");
                    return Ok(None);
                }
                kind if kind.is_retryable() => self.env.sleep(PAUSE).await,
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
                kind if kind.is_retryable() => self.env.sleep(PAUSE).await,
                _ => return Err(format!("{}: {error}", volume.name)),
            }
        }
        let told = |why| format!("{} in a new life: {why}", volume.name);
        let judged = |region: &SharedRegion| {
            judge(std::slice::from_ref(region), std::slice::from_ref(&found), Excuse::Nothing)
        };
        let known = volume.seen.lock()[self.generation].clone();
        if let Some(known) = known {
            if self.generation == 0 {
                let before = known.region.lock().clone();
                let drained = volume.drained.swap(0, Ordering::Relaxed);
                volume.past.lock().push((before, drained));
            }
            let before = known.region.lock().clone();
            judged(&known.region).map_err(told)?;
            known.earlier.lock().push(before);
            return Ok(true);
        }
        let before = volume.before(self.generation);
        let mut begins = vec![before.region.lock().clone()];
        begins.extend(before.earlier.lock().clone());
        let mut judgement = Ok(false);
        for (at, mut region) in begins.into_iter().enumerate() {
            region.acknowledged = 0;
            let promised = region.clone();
            let region = Arc::new(Mutex::new(region));
            match judged(&region) {
                Ok(_) => {
                    heard::note("copies: a successor looks");
                    if at > 0 {
                        heard::note("copies: a change that was only seen is gone");
                    }
                    let seen = Seen::new(found, region);
                    seen.earlier.lock().push(promised);
                    volume.seen.lock()[self.generation] = Some(seen);
                    return Ok(true);
                }
                failed => judgement = judgement.and(failed),
            }
        }
        judgement.map_err(told)
    }

    /// Reads and writes as long as the volume is served.
    async fn client(self, at: usize, mut dice: Dice) -> Result<(), String> {
        let name = &self.run.volumes[at].name;
        if self.generation > 0 && dice.below(4) == 0 {
            // Until some clients come, the original may have the volume.
            self.pause(&mut dice, 60_000).await;
        }
        let Some(mut device) = self.enter(at).await? else { return Ok(()) };
        while !self.run.stage.is_ending() {
            let told = self.step(at, &device, &mut dice).await;
            match told.map_err(|why| format!("{name}: {why}"))? {
                Told::Fine => {}
                Told::Nothing => break,
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
            let idle = if dice.below(24) == 0 { 10_000 } else { 200 };
            self.pause(&mut dice, idle).await;
        }
        // The next life shows the fate of the change; the run is not to wait for this client.
        while !self.run.stage.is_ending() {
            self.run.stage.begun.fetch_add(1, Ordering::Relaxed);
            self.pause(&mut dice, 1000).await;
        }
        Ok(())
    }

    /// Writes in a replaced generation until it has met the newer one, which must be soon.
    pub(super) async fn meet(&self) -> Result<(), String> {
        let until = self.env.now() + MEETS_WITHIN;
        let mut dice = Dice::new(7);
        for at in 0..VOLUMES {
            let Some(device) = self.enter_again(at).await? else { continue };
            while self.step(at, &device, &mut dice).await? == Told::Fine {
                if self.env.now() > until {
                    return Err("the replaced generation never meets the newer one".to_owned());
                }
                self.env.sleep(Duration::from_millis(500)).await;
            }
        }
        Ok(())
    }

    /// Attaches a volume of a replaced generation, if it still serves the volume and the fate of
    /// every change is known.
    async fn enter_again(&self, at: usize) -> Result<Option<Device>, String> {
        let volume = &self.run.volumes[at];
        let Ok(seen) = self.seen(at) else { return Ok(None) };
        if seen.region.lock().is_open() {
            return Ok(None);
        }
        match self.served.attach(&volume.name).await {
            Ok(device) => Ok(Some(device)),
            Err(error)
                if matches!(error.kind, Kind::Fenced | Kind::NotFound)
                    || error.kind.is_retryable() =>
            {
                Ok(None)
            }
            Err(error) => Err(format!("{}: {error}", volume.name)),
        }
    }

    async fn step(&self, at: usize, device: &Device, dice: &mut Dice) -> Result<Told, String> {
        self.run.stage.begun.fetch_add(1, Ordering::Relaxed);
        let (seen, volume) = (self.seen(at)?, &self.run.volumes[at]);
        let region = &seen.region;
        let told = |what, error: &_| Told::of(what, error, self.may_be_fenced());
        // What is not a change has an answer even if it fails.
        let unchanged = |told| if told == Told::Nothing { Told::Fine } else { told };
        match dice.below(8) {
            0..=1 => {
                let mut found = vec![0xee; REGION];
                return match device.read(0, &mut found).await {
                    Ok(()) if found == region.lock().expected() => Ok(Told::Fine),
                    Ok(()) => Err("it does not read as what was written there".to_owned()),
                    Err(error) => told("read", &error).map(unchanged),
                };
            }
            2 => {
                let mark = region.lock().mark();
                return match device.handle().staged().drain().await {
                    Ok(_) => {
                        if self.generation == 0 {
                            volume.drained.fetch_max(mark, Ordering::Relaxed);
                            volume.past.lock().clear();
                        }
                        Ok(Told::Fine)
                    }
                    Err(error) => told("drain", &error.into()).map(unchanged),
                };
            }
            _ => {}
        }
        let Change { start, bytes } = some_change(dice, BLOCKS);
        region.lock().submit(&Operation { start, bytes: bytes.clone() });
        let mut was_fenced = self.served.staging.fenced().is_some();
        let written = device.write(start as u64, &bytes, dice.below(4) == 0);
        if dice.below(4) == 0 {
            // Some clients take their time until they ask whether the change is durable.
            self.pause(dice, 3000).await;
        }
        if matches!(written, Ok(Written::NeedsSync(_))) {
            was_fenced = self.served.staging.fenced().is_some();
        }
        if let Err(error) = acknowledged(device, written).await {
            return told("write", &error);
        }
        region.lock().acknowledge(false, self.served.log.view().head.segment);
        seen.earlier.lock().clear();
        if was_fenced {
            return Err("it acknowledges although it is fenced".to_owned());
        }
        self.note_following();
        if let Some(newer) = volume.after(self.generation) {
            heard::note("copies: acknowledged beside a successor");
            if newer.base != region.lock().expected() {
                return Err("it acknowledges what its successor does not have".to_owned());
            }
        }
        Ok(Told::Fine)
    }

    /// Notes whether the holders have all of the log by now.
    fn note_following(&self) {
        if self.served.log.replicas() > 0 && self.served.log.replicas_behind().is_empty() {
            let mut lives = self.run.last_life.lock();
            let (life, has_followed) = &mut lives[self.generation];
            *has_followed |= *life == self.served.incarnation;
        }
    }
}
