//! One life of a host: its node, its guests, and the clients that call it.

use super::{BLOCKS, HOSTS, PAUSE, Run, SIZE, Volume};
use crate::boot::{How, Served, Setup, acknowledged};
use crate::heard;
use crate::linear::FIRST;
use crate::oracle::BLOCK;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_env::Env;
use rekindle_front::http::Api;
use rekindle_front::http::api::kept::Keep;
use rekindle_front::http::api::{JobState, MoveVolume};
use rekindle_front::nbd::{ExportError, Target};
use rekindle_node::Export;
use rekindle_staging::Policy;
use rekindle_volume::WriteSettings;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Faults of the store in a life.
const STORE: [&str; 5] =
    ["", "", "latency=2ms", "latency=1ms,fail=5%,lie=10%", "latency=20ms,late=5%"];

impl Run {
    /// Runs a host: its daemon and its clients.
    pub(super) async fn live(
        self: Arc<Self>,
        env: Env,
        host: usize,
        mut dice: Random,
    ) -> Result<(), String> {
        let served = self.start(&env, host).await?;
        self.join(&env, &served, host).await?;
        if !self.is_calm.load(Ordering::Relaxed) {
            let words = STORE[dice.below(STORE.len() as u64) as usize];
            served.faults.set(words.parse().expect("ours"));
        }
        self.stage.serving.lock()[host] = Some(served.clone());
        for at in 0..self.volumes.len() {
            let client = self.clone().client((env.clone(), host, served.clone()), at, dice.fork());
            self.stage.act(&env, host, "client", client);
        }
        if self.files.is_some() {
            let client = self.clone().file_client((env.clone(), host, served.clone()), dice.fork());
            self.stage.act(&env, host, "file-client", client);
        }
        if let Some(moves) = &self.moves {
            let dice = moves.lock().fork();
            let mover = self.clone().mover(env.clone(), served.clone(), dice);
            self.stage.act(&env, host, "mover", mover);
        }
        loop {
            match served.ended() {
                Some(Err(why)) if why.contains("taken over") => {
                    heard::note("cluster: a host goes on as a new node");
                    self.stage.serving.lock()[host] = None;
                    self.replaced[host].store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Some(Err(why)) if why.contains("the flash has failed") => {
                    heard::note("cluster: a host ends with its flash");
                    self.stage.serving.lock()[host] = None;
                    self.replaced[host].store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Some(ended) => return ended,
                None if self.stage.is_ending() => return Ok(()),
                None => env.sleep(PAUSE).await,
            }
        }
    }

    async fn start(&self, env: &Env, host: usize) -> Result<Served, String> {
        let token = loop {
            let token = self.token.lock().clone();
            match token {
                None if host > 0 => env.sleep(PAUSE).await,
                token => break token,
            }
        };
        let setup = Setup { join: token, ..self.setups[host].clone() };
        loop {
            match Served::start(env, self.store.clone(), &setup, How::default()).await {
                Err(_) if self.disks_fail.load(Ordering::Relaxed) => env.sleep(PAUSE).await,
                started => return started,
            }
        }
    }

    /// Makes the cluster, if that is to be done here and yet.
    async fn join(&self, env: &Env, served: &Served, host: usize) -> Result<(), String> {
        if host > 0 || self.token.lock().is_some() {
            return Ok(());
        }
        loop {
            match served.service.init_cluster().await {
                Ok(_) => break,
                Err(error) if error.kind == Kind::Exists => break,
                Err(error) if error.kind.is_retryable() => env.sleep(PAUSE).await,
                Err(error) => return Err(format!("the cluster is not made: {}", error.message)),
            }
        }
        let token = rekindle_node::token(env, &self.setups[host].folder).await;
        let token = token.map_err(|error| error.to_string())?;
        *self.token.lock() = Some(token.ok_or("there is no token")?);
        for (name, setup) in self.names() {
            if let Err(error) = served.create(name, setup).await {
                return Err(format!("{name}: {}", error.message));
            }
        }
        Ok(())
    }

    /// The names of all volumes, and how they were made.
    fn names(&self) -> Vec<(&str, &Setup)> {
        let disks = self.volumes.iter().map(|volume| (volume.name.as_str(), &volume.setup));
        let files = self.files.iter().map(|files| (files.name.as_str(), &files.setup));
        disks.chain(files).collect()
    }

    /// Attaches a volume, if this host serves it.
    async fn attach(&self, served: &Served, volume: &Volume) -> Result<Option<Export>, String> {
        self.attached(volume, served.service.export_here(&volume.name).await)
    }

    /// Attaches a volume, wherever it is served.
    async fn attach_anywhere(
        &self,
        served: &Served,
        volume: &Volume,
    ) -> Result<Option<Export>, String> {
        let attached = served.attach_anywhere(&volume.name).await;
        if let Ok(Export::There { .. }) = attached {
            heard::note("cluster: a client is forwarded");
        }
        self.attached(volume, attached)
    }

    fn attached(
        &self,
        volume: &Volume,
        attached: Result<Export, ExportError>,
    ) -> Result<Option<Export>, String> {
        let error = match attached {
            Ok(device) => {
                if volume.is_refused.swap(false, Ordering::Relaxed) {
                    heard::note("cluster: a volume without copies is back with its machine");
                }
                return Ok(Some(device));
            }
            Err(error) => error,
        };
        if error.message.contains("lost machine") {
            volume.is_refused.store(true, Ordering::Relaxed);
            heard::note("cluster: a volume without copies is refused");
            return if volume.is_alone() { Ok(None) } else { Err(error.message) };
        }
        match error.kind {
            Kind::Io if self.disks_fail.load(Ordering::Relaxed) => Ok(None),
            kind if kind.is_retryable() => Ok(None),
            Kind::Fenced | Kind::NotFound | Kind::Conflict => Ok(None),
            _ => Err(format!("{} cannot be attached: {}", volume.name, error.message)),
        }
    }

    /// Reads and writes a volume wherever it is served on this host.
    async fn client(
        self: Arc<Self>,
        (env, host, served): (Env, usize, Served),
        at: usize,
        mut dice: Random,
    ) -> Result<(), String> {
        let volume = &self.volumes[at];
        let by = format!("{}.{}", super::NAMES[host], served.incarnation);
        let mut device: Option<Export> = None;
        while !self.stage.is_ending() && served.ended().is_none() {
            if !self.has_work(at, host) {
                device = None;
                env.sleep(PAUSE * 2).await;
                continue;
            }
            if device.is_none() {
                device = match self.forwards {
                    true => self.attach_anywhere(&served, volume).await?,
                    false => self.attach(&served, volume).await?,
                };
            }
            let Some(used) = &device else {
                env.sleep(PAUSE * 2).await;
                continue;
            };
            self.stage.begun.fetch_add(1, Ordering::Relaxed);
            let is_fine = match dice.below(3) {
                0 => {
                    let block = match self.may_forward() {
                        true => host % BLOCKS,
                        false => dice.below(BLOCKS as u64) as usize,
                    };
                    self.write(volume, (used, block), &by, &mut dice).await
                }
                1 => self.read(volume, used, &by).await,
                _ => self.read_now(volume, used, &by),
            };
            if !is_fine.map_err(|why| format!("{} by {by}: {why}", volume.name))? {
                device = None;
            }
            let idle = if dice.below(40) == 0 { 2000 } else { 60 };
            env.sleep(Duration::from_millis(dice.below(idle))).await;
        }
        Ok(())
    }

    /// Whether the clients of a host use a volume just now. Where volumes follow their clients, the
    /// work goes from host to host, else every client would hold its volume back.
    fn has_work(&self, at: usize, host: usize) -> bool {
        let is_shared = !self.forwards || self.setups[host].follow.is_none();
        let shift = self.now().as_millis() / super::SHIFT.as_millis();
        is_shared || (shift as usize + at) % HOSTS == host
    }

    /// Moves volumes of this host to others, and those of its guests to itself, too.
    async fn mover(
        self: Arc<Self>,
        env: Env,
        served: Served,
        mut dice: Random,
    ) -> Result<(), String> {
        while !self.stage.is_ending() && served.ended().is_none() {
            env.sleep(Duration::from_millis(dice.below(3000))).await;
            let names = self.names();
            let (name, setup) = names[dice.below(names.len() as u64) as usize];
            if dice.below(4) == 0 {
                self.set(&served, (name, setup), dice.below(2) == 0).await?;
                continue;
            }
            let to = super::NAMES[dice.below(HOSTS as u64) as usize].to_owned();
            let begun = served.service.move_volume(name, MoveVolume { to }).await;
            let mut job = match begun {
                Ok(job) => job,
                Err(error) => {
                    self.may_not_move(&error.kind.to_string(), &error.message)?;
                    continue;
                }
            };
            while job.state == JobState::Running && served.ended().is_none() {
                env.sleep(PAUSE).await;
                job = served.service.job(&job.id).await.map_err(|error| error.message)?;
            }
            match (job.state, job.problem) {
                (JobState::Done, _) => heard::note("cluster: a volume has moved"),
                (JobState::Failed, Some(problem)) => {
                    heard::note("cluster: a move has failed");
                    self.may_not_move(&problem.error, &problem.message)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives a volume of this host other settings: stricter ones, or those that it had first.
    async fn set(
        &self,
        served: &Served,
        (name, setup): (&str, &Setup),
        strict: bool,
    ) -> Result<(), String> {
        let &Setup { policy, copies, .. } = setup;
        let (policy, copies) = if strict { (Policy::Through, 0) } else { (policy, copies) };
        let settings = WriteSettings {
            policy: Some(policy),
            copies: Some(copies),
            ..WriteSettings::default()
        };
        match served.service.set_volume(name, settings).await {
            Ok(_) => heard::note("cluster: a volume has other settings"),
            Err(error) => self.may_not_move(&error.kind.to_string(), &error.message)?,
        }
        Ok(())
    }

    /// Whether a move may fail with an error of this kind.
    fn may_not_move(&self, kind: &str, why: &str) -> Result<(), String> {
        match kind {
            "refused" if why.contains("lost machine") => Ok(()),
            "io" if self.disks_fail.load(Ordering::Relaxed) => Ok(()),
            "fenced" | "not-found" | "conflict" | "invalid" | "unavailable" | "full" => Ok(()),
            _ => Err(format!("a move is refused ({kind}): {why}")),
        }
    }

    /// Writes one block; `false` if the volume is to be attached anew.
    async fn write(
        &self,
        volume: &Volume,
        (device, block): (&Export, usize),
        by: &str,
        dice: &mut Random,
    ) -> Result<bool, String> {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let bytes = value.to_le_bytes().repeat(BLOCK / 8);
        let open = volume.blocks.lock()[block].begin(value, self.now(), by);
        let written = device.write((block * BLOCK) as u64, &bytes, dice.below(4) == 0);
        match acknowledged(device, written).await {
            Ok(()) => {
                volume.blocks.lock()[block].end(open, self.now());
                Ok(true)
            }
            Err(error) => may_fail(&error, self.disks_fail.load(Ordering::Relaxed)),
        }
    }

    async fn read(&self, volume: &Volume, device: &Export, by: &str) -> Result<bool, String> {
        let from = self.now();
        let mut found = vec![0xee; SIZE];
        match device.read(0, &mut found).await {
            Ok(()) => self.note(volume, from, &found, by).map(|()| true),
            Err(error) => may_fail(&error, self.disks_fail.load(Ordering::Relaxed)),
        }
    }

    fn read_now(&self, volume: &Volume, device: &Export, by: &str) -> Result<bool, String> {
        let from = self.now();
        let mut found = vec![0xee; SIZE];
        match device.read_now(0, &mut found) {
            Ok(true) => self.note(volume, from, &found, by).map(|()| true),
            Ok(false) => Ok(true),
            Err(error) => may_fail(&error, self.disks_fail.load(Ordering::Relaxed)),
        }
    }

    fn note(&self, volume: &Volume, from: Duration, found: &[u8], by: &str) -> Result<(), String> {
        for (block, bytes) in found.chunks(BLOCK).enumerate() {
            let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            if bytes.chunks(8).any(|eight| eight != value.to_le_bytes()) {
                return Err(format!("block {block} is a mix of writes"));
            }
            volume.blocks.lock()[block].read(value, (from, self.now()), by);
        }
        Ok(())
    }

    /// Waits until the cluster has settled: see [`super::Story::settle`].
    pub(super) async fn settled(
        self: Arc<Self>,
        env: Env,
        is_up: [bool; HOSTS],
        hosts: usize,
    ) -> Result<(), String> {
        loop {
            self.stage.check()?;
            if self.is_settled(is_up, hosts).await {
                return Ok(());
            }
            env.sleep(PAUSE * 2).await;
        }
    }

    async fn is_settled(&self, is_up: [bool; HOSTS], hosts: usize) -> bool {
        let serving = self.stage.serving.lock().clone();
        let up: Vec<usize> = (0..hosts).filter(|host| is_up[*host]).collect();
        if self.token.lock().is_none() || up.iter().any(|host| serving[*host].is_none()) {
            return false;
        }
        let mut served_somewhere = vec![false; self.volumes.len()];
        let mut has_files = self.files.is_none();
        for served in up.iter().filter_map(|host| serving[*host].as_ref()) {
            let Ok(cluster) = served.service.cluster().await else { return false };
            let is_ready = |holders: &[rekindle_front::http::api::CopiesHolder]| {
                up.len() < 2 || holders.iter().any(|holder| holder.ready)
            };
            let all_serve = cluster.guests.iter().all(|guest| guest.state != "starting");
            let guests = cluster.guests.iter().filter(|guest| guest.state == "serving");
            let mut ready = guests.map(|guest| is_ready(&guest.holders));
            if !(cluster.member && is_ready(&cluster.holders) && all_serve && ready.all(|one| one))
            {
                return false;
            }
            has_files |= self.serves_files(served).await;
            for (at, volume) in self.volumes.iter().enumerate() {
                served_somewhere[at] |= matches!(self.attach(served, volume).await, Ok(Some(_)));
            }
        }
        let is_fine = |(volume, is_served): (&Volume, &bool)| volume.is_alone() || *is_served;
        has_files && self.volumes.iter().zip(&served_somewhere).all(is_fine)
    }

    /// Reads every volume that a host serves, at the end.
    pub(super) async fn read_all(self: Arc<Self>, env: &Env) -> Result<(), String> {
        self.read_files(env).await?;
        let serving = self.stage.serving.lock().clone();
        for volume in &self.volumes {
            let mut is_read = false;
            for served in serving.iter().flatten() {
                let Some(device) = self.attach(served, volume).await? else { continue };
                while !self.read(volume, &device, "the end").await? {
                    env.sleep(PAUSE).await;
                }
                is_read = true;
            }
            if !is_read && !volume.is_alone() {
                return Err(format!("{} is not served in the end", volume.name));
            }
        }
        Ok(())
    }
}

/// Whether a client may see an error, whose change may have happened or not; `false`: it connects
/// anew.
fn may_fail(error: &rekindle_volume::Error, disks_fail: bool) -> Result<bool, String> {
    match error.kind() {
        // A guest's log is on a disk with copies.
        Kind::Io if disks_fail => Ok(false),
        Kind::Fenced => {
            heard::note("fenced: told");
            Ok(false)
        }
        // The protocol has one number for all that may be over soon.
        Kind::Io if is_forwarded(error) => Ok(false),
        kind if kind.is_retryable() => Ok(false),
        _ => Err(error.to_string()),
    }
}

fn is_forwarded(error: &rekindle_volume::Error) -> bool {
    matches!(error, rekindle_volume::Error::Staging(rekindle_staging::Error::Forwarded { .. }))
}

const _: () = assert!(FIRST == 0, "a block that was never written reads as zeros");
