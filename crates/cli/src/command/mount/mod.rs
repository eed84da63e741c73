//! `rekindle mount`: a file volume as a file system of this machine.
//!
//! The kernel waits for this process, and this process waits for the daemon: so a daemon that is
//! restarted is a stall for programs, and no error.
#![expect(clippy::disallowed_methods, reason = "this command has no Env")]

mod direct;
mod dying;
mod folders;
mod kernel;
mod ledger;
mod locks;
mod names;
pub mod pump;
mod unsynced;

use super::client;
use crate::arguments::{Common, Mount};
use crate::client::Client;
use crate::client::{told_if_slow, volume_path};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kernel::Place;
use pump::{Device, Pump};
use rekindle_base::Kind;
use rekindle_front::http::api::{MOUNT_OF, MOUNT_PROTOCOL, Volume};
use rekindle_supervise::signals::StopSignals;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use serde_json::json;
use std::cell::RefCell;
use std::time::Duration;

/// Longest wait for what programs have mapped and changed, when the mount ends while they use it.
const WRITE_BACK: Duration = Duration::from_secs(5);
/// Pause between two attempts to reach the daemon before anything is mounted.
const PAUSE: Duration = Duration::from_millis(100);
/// The kind of volume that is mounted.
const FILE: &str = "file";

/// Runs the command until the folder is unmounted, or a signal ends it.
pub fn run(common: &Common, mount: &Mount) -> Outcome {
    let (place, hidden) = Place::find(&mount.folder)?;
    let client = client(common)?;
    let path = volume_path(&mount.name, "");
    let volume = find(&client, &path)?;
    check(&volume)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        let door = Door::new(&client, &mount.name);
        let connect = async || door.connect().await;
        let first = first(&mut stop, connect).await?;
        let device = place.mount(mount)?;
        let pump = Pump::new(Device::new(device)?, random()?);
        let mut pumping = std::pin::pin!(pump.run(first, connect));
        let mut unmounting = std::pin::pin!(async {
            stop.next().await;
            unmount(&place, &mut stop).await
        });
        let mut is_ready = false;
        loop {
            tokio::select! {
                ended = &mut pumping => {
                    let is_broken_off = ended.is_ok() && place.is_there();
                    if is_broken_off {
                        output::tell(&format!(
                            "rekindle: the mount on {} was broken off (umount -f) while in use: \
                             programs that use it get errors now",
                            place.folder.display()
                        ));
                        let _ = place.unmount(true);
                    }
                    // Programs get errors: without a process behind it the mount is dead. It stays,
                    // so that no one writes into the folder below.
                    return ended.map_err(|failure| failure.next(format!(
                        "programs get errors at {} until `umount {}` takes the mount away",
                        place.folder.display(),
                        output::quoted(&place.folder)
                    )));
                }
                () = &mut unmounting => {
                    // What programs have open and locked ends with their mount.
                    pump.leave.notify_one();
                    let _ = pumping.await;
                    return Ok(());
                }
                () = pump.ready.notified(), if !is_ready => {
                    is_ready = true;
                    place.read_ahead();
                    announce(common, &mount.name, &place, hidden);
                }
            }
        }
    })
}

/// Finds the volume. A daemon that is restarted, or whose store is away, is waited for: programs
/// would write into the plain folder meanwhile. No daemon at all is an error.
fn find(client: &Client, path: &str) -> Outcome<Volume> {
    let mut interrupts = client.interrupts()?;
    let mut is_told = false;
    loop {
        match client.get(path) {
            Err(failure) if is_away(&failure) && client.is_there() => {
                tell_once(&mut is_told, &failure);
            }
            found => return found,
        }
        interrupts.pause(PAUSE);
        if interrupts.interrupted() {
            return Err(broken_off());
        }
    }
}

/// Makes the first connection, in the same way.
async fn first<P>(stop: &mut StopSignals, connect: impl AsyncFn() -> Outcome<P>) -> Outcome<P> {
    let mut is_told = false;
    loop {
        let connected = tokio::select! {
            _ = stop.next() => return Err(broken_off()),
            connected = told_if_slow(connect()) => connected,
        };
        match connected {
            Err(failure) if is_away(&failure) => tell_once(&mut is_told, &failure),
            connected => return connected,
        }
        tokio::select! {
            _ = stop.next() => return Err(broken_off()),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Whether the same request may succeed later.
fn is_away(failure: &Failure) -> bool {
    failure.kind == Kind::Unavailable.to_string()
}

fn tell_once(is_told: &mut bool, failure: &Failure) {
    if !std::mem::replace(is_told, true) {
        let cause = failure.cause.as_deref().map(|cause| format!(": {cause}")).unwrap_or_default();
        output::tell(&format!("rekindle: the mount waits: {}{cause}", failure.error));
    }
}

fn broken_off() -> Failure {
    Failure::new("broken off before the file system was mounted").kind(Kind::Unavailable)
}

/// The way of a mount to the daemon, to the same content each time.
pub struct Door<'a> {
    client: &'a Client,
    name: &'a str,
    /// What the daemon has said that the mount is of.
    of: RefCell<Option<String>>,
}

impl<'a> Door<'a> {
    pub fn new(client: &'a Client, name: &'a str) -> Self {
        Self { client, name, of: RefCell::default() }
    }

    /// Connects. A name that is another volume's by now is refused, and so is a volume that went
    /// back to an earlier content: what programs hold would be other files there.
    pub async fn connect(&self) -> Outcome<TokioIo<Upgraded>> {
        let of = self.of.borrow().clone();
        let more = of.as_deref().map(|of| (MOUNT_OF, of));
        let path = volume_path(self.name, "/mount");
        match self.client.upgrade(&path, MOUNT_PROTOCOL, more).await {
            Ok((pipe, headers)) => {
                let told = headers.get(MOUNT_OF).and_then(|of| of.to_str().ok());
                self.of.replace(told.map(str::to_owned).or(of));
                Ok(pipe)
            }
            Err(refused) => Err(explain(self.client, self.name, refused).await),
        }
    }
}

/// Explains why a connection was refused. A part of the volume that is not in the store now is no
/// volume that does not exist: it may come back, and requests wait for it.
async fn explain(client: &Client, name: &str, refused: Failure) -> Failure {
    let is_kind = |kind: Kind| refused.kind == kind.to_string();
    let lacks_content = match is_kind(Kind::NotFound) {
        true => client.has(&volume_path(name, "")).await,
        false => is_kind(Kind::Damaged),
    };
    if !lacks_content {
        return refused;
    }
    let next =
        format!("`rekindle status` says why, and `rekindle salvage run {name}` what would be lost");
    refused.next(next).kind(Kind::Damaged)
}

/// Refuses a volume that is no file system.
pub fn check(volume: &Volume) -> Outcome {
    if volume.kind == FILE {
        return Ok(());
    }
    if let Some(reason) = &volume.reason {
        return Err(Failure::new(format!("volume '{}' cannot be served", volume.name))
            .because(reason)
            .next("`rekindle verify` names what is damaged"));
    }
    Err(Failure::new(format!(
        "volume '{}' is a '{}' volume, and no file system",
        volume.name, volume.kind
    ))
    .next("create one with `rekindle fs create`")
    .kind(Kind::Unsupported))
}

fn announce(common: &Common, volume: &str, place: &Place, hidden: usize) {
    let folder = place.folder.display();
    if common.json {
        return output::json(&json!({"volume": volume, "folder": place.folder}));
    }
    if hidden > 0 {
        output::tell(&format!(
            "rekindle: {folder} is not empty: what is in it ({hidden}) is hidden meanwhile"
        ));
    }
    output::line(&format!(
        "mounted '{volume}' at {folder}; Ctrl-C or `umount {}` takes it away",
        output::quoted(&place.folder)
    ));
}

/// Takes the mount away after a signal: lazily when it is in use, or at the next signal. Completes
/// when the pump is not needed any more.
async fn unmount(place: &Place, stop: &mut StopSignals) {
    let (blocking, busy) = (place.clone(), place.folder.display());
    if place.is_covered() {
        // The kernel would take away what is on top.
        return output::tell(&format!(
            "rekindle: another mount is on top of {busy}, and stays: programs that use the volume \
             get errors now, and `umount -l {}` is for both",
            output::quoted(&place.folder)
        ));
    }
    // The kernel first writes what programs have mapped: the pump must go on meanwhile.
    let unmounting = tokio::task::spawn_blocking(move || blocking.unmount(false));
    let unmounted = tokio::select! {
        unmounted = unmounting => unmounted.is_ok_and(|unmounted| unmounted.is_ok()),
        _ = stop.next() => false,
    };
    if unmounted {
        // The kernel's end tells the pump. There is none as long as a container has the mount, too.
        let _ = stop.next().await;
        return;
    }
    output::tell(&format!("rekindle: {busy} is in use: programs that use it get errors now"));
    let mapped = place.clone();
    tokio::select! {
        _ = tokio::task::spawn_blocking(move || mapped.write_back()) => {}
        () = tokio::time::sleep(WRITE_BACK) => {}
        _ = stop.next() => {}
    }
    let lazily = place.clone();
    let _ = tokio::task::spawn_blocking(move || lazily.unmount(true)).await;
}

/// Draws the number of a mount.
pub fn random() -> Outcome<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
