//! `rekindle up`: settle the settings, serve, and say so.

use crate::arguments::{Common, Up};
use crate::client::escape;
use crate::config_file::{self, Settings};
use crate::folder;
use crate::parse::Place;
use rekindle_env::Address;
use rekindle_supervise::Service;
use rekindle_supervise::sockets::{Role, WantedSockets};
use rekindle_supervise::worker::Ready;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use std::path::{Path, PathBuf};

/// Runs the command; gives the exit code.
pub fn run(common: &Common, up: &Up) -> Outcome<u8> {
    rekindle_env::real::access::keep_private();
    rekindle_env::real::descriptors::outlive_file_size();
    let settings = match &up.config {
        Some(path) => config_file::read(path)?,
        None => Settings::default(),
    };
    let named = common.dir.as_deref().or(settings.dir.as_deref());
    let dir = folder::of_server(named)?;
    let config = configure(&dir, up, &settings)?;
    must_be_text(&[Some(&dir), config.warm.as_ref(), up.config.as_ref()])?;
    let mut notes = Vec::new();
    let service = Service::open(dir.clone(), config, &wanted_sockets(up, settings), &mut notes)?
        .diagnostics(up.verbose, up.log_format);
    let (places, json) = (service.places(), common.json);
    service.run(move |ready: &Ready, supervised: bool| {
        let ready = ready.clone();
        let print = move || {
            Banner { dir: &dir, ready: &ready, places: &places, notes: &notes, supervised }
                .print(json);
        };
        // The supervisor waits for no reader of the output, and for no disk that the search meets.
        let _ = std::thread::Builder::new().name("banner".to_owned()).spawn(print);
    })
}

/// Refuses a path that is not text: addresses of sockets and the worker's handover are text.
fn must_be_text(paths: &[Option<&PathBuf>]) -> Outcome {
    match paths.iter().flatten().find(|path| path.to_str().is_none()) {
        None => Ok(()),
        Some(path) => {
            Err(Failure::usage(format!("the path '{}' is not text (UTF-8)", path.display()))
                .next("choose another name, or a link to it"))
        }
    }
}

/// Merges command line and environment (clap has joined them), then the file, then the defaults.
fn configure(dir: &Path, up: &Up, settings: &Settings) -> Outcome<rekindle_node::Config> {
    let mut config = rekindle_node::Config::new(dir.to_owned());
    config.store = up.store.clone().or_else(|| settings.store.clone());
    // The number is good once: a worker that is started again has the same one.
    config.take_identity = up.take_identity.then(|| std::process::id().into());
    config.store_fault = up.store_fault.clone().or_else(|| settings.store_fault.clone());
    config.flash_bytes = up.flash_budget.or(settings.flash_budget);
    config.warm = up.warm.clone().or_else(|| settings.warm.clone());
    config.warm_bytes = up.warm_size.or(settings.warm_size);
    config.warm_frames_bytes = up.warm_frames.or(settings.warm_frames);
    config.cache_bytes = up.cache.or(settings.cache).unwrap_or(config.cache_bytes);
    config.index_bytes = settings.index.unwrap_or(config.index_bytes);
    config.requests_bytes = settings.requests.unwrap_or(config.requests_bytes);
    config.held_bytes = settings.held.unwrap_or(config.held_bytes);
    config.compression = settings.compression.unwrap_or(config.compression);
    config.parity = up.parity.or(settings.parity).unwrap_or(config.parity);
    config.read_ahead = up.read_ahead.or(settings.read_ahead).unwrap_or(config.read_ahead);
    config.direct_path = up.direct_path.or(settings.direct_path).unwrap_or(config.direct_path);
    let destage = &settings.destage;
    config.destage.age = destage.age.unwrap_or(config.destage.age);
    config.destage.bytes = destage.bytes.unwrap_or(config.destage.bytes);
    config.destage.batch_bytes = destage.batch.unwrap_or(config.destage.batch_bytes);
    config.destage.workers = destage.workers.unwrap_or(config.destage.workers);
    config.destage.deadline = destage.deadline.unwrap_or(config.destage.deadline);
    let sweep = &settings.sweep;
    config.sweep.interval = sweep.interval.unwrap_or(config.sweep.interval);
    config.sweep.percent = sweep.percent.unwrap_or(config.sweep.percent);
    config.sweep.grace = sweep.grace.unwrap_or(config.sweep.grace);
    config.sweep.compact_below = sweep.compact_below.unwrap_or(config.sweep.compact_below);
    config.stop_parallel = settings.stop_parallel.unwrap_or(config.stop_parallel);
    config.stuck_after = settings.stuck_after.unwrap_or(config.stuck_after);
    let collector = &settings.collector;
    config.collector.idle = collector.idle.unwrap_or(config.collector.idle);
    config.collector.interval = collector.interval.unwrap_or(config.collector.interval);
    config.collector.batch = collector.batch.unwrap_or(config.collector.batch);
    let scrub = &settings.scrub;
    config.scrub.interval = scrub.interval.unwrap_or(config.scrub.interval);
    config.scrub.bytes_per_second = scrub.rate.unwrap_or(config.scrub.bytes_per_second);
    let prices = &settings.prices;
    config.prices.write = prices.write.unwrap_or(config.prices.write);
    config.prices.read = prices.read.unwrap_or(config.prices.read);
    config.prices.stored = prices.stored.unwrap_or(config.prices.stored);
    config.prices.received = prices.received.unwrap_or(config.prices.received);
    config.check().map_err(Failure::usage)?;
    Ok(config)
}

/// Merges the addresses likewise, and who may use them.
fn wanted_sockets(up: &Up, settings: Settings) -> WantedSockets {
    let asked = |line: &[Place], file: Option<Vec<Place>>| {
        let places = if line.is_empty() { file.unwrap_or_default() } else { line.to_vec() };
        places.into_iter().flatten().collect()
    };
    // Clients reach a guest only through its host, which was asked the same.
    let in_guest = std::env::var_os(rekindle_appliance::guest::VARIABLE).is_some();
    WantedSockets {
        nbd: asked(&up.nbd, settings.nbd),
        http: asked(&up.http, settings.http),
        group: up.socket_group.or(settings.socket_group),
        http_group: up.http_socket_group.or(settings.http_socket_group),
        insecure: up.insecure || settings.insecure == Some(true) || in_guest,
    }
}

/// The message that is printed once, when the daemon serves.
struct Banner<'a> {
    /// The suggested commands name this folder: they may be typed in any other.
    dir: &'a Path,
    ready: &'a Ready,
    places: &'a [(Role, Address)],
    notes: &'a [String],
    supervised: bool,
}

impl Banner<'_> {
    fn print(&self, json: bool) {
        // Only now, when the daemon serves: the search costs time.
        let orphans = super::warm::orphans();
        let notes: Vec<&String> = self.notes.iter().chain(&orphans).collect();
        if json {
            let places = |wanted: Role| {
                let here = self.places.iter().filter(move |(role, _)| *role == wanted);
                here.map(|(_, place)| place.to_string()).collect::<Vec<_>>()
            };
            // One line: more may follow in the same stream.
            output::line(
                &serde_json::json!({
                    "node": self.ready.node, "store": self.ready.store, "worker": self.ready.pid,
                    "start_ms": self.ready.start_ms, "nbd": places(Role::Nbd), "http": places(Role::Http),
                    "notes": notes,
                })
                .to_string(),
            );
            return;
        }
        let kept = if self.supervised {
            "is started again when it dies"
        } else {
            "systemd starts it again"
        };
        output::line(&format!(
            "rekindle {} serves after {} ms",
            env!("CARGO_PKG_VERSION"),
            self.ready.start_ms
        ));
        output::line(&format!("  node    {}", self.ready.node));
        output::line(&format!("  worker  pid {}, {kept}", self.ready.pid));
        output::line(&format!("  store   {}", self.ready.store));
        for (role, place) in self.places {
            output::line(&format!("  {}", endpoint(*role, place)));
        }
        for note in notes {
            output::line(&format!("  note    {note}"));
        }
        self.next();
    }

    fn next(&self) {
        let dir = format!(" --dir {}", output::quoted(self.dir));
        output::line("Next:");
        output::line(&format!("  rekindle volume create vm1 --size 20G{dir}"));
        let nbd = self.places.iter().filter(|(role, _)| *role == Role::Nbd).map(|(_, place)| place);
        if let Some(place) = nbd.min_by_key(|place| matches!(place, Address::Tcp(_))) {
            let uri = nbd_uri(place, "vm1");
            output::line(&format!("  nbdinfo '{uri}'"));
            output::line(&format!("  qemu-img convert -n -p disk.qcow2 '{uri}'"));
        }
    }
}

fn endpoint(role: Role, place: &Address) -> String {
    match (role, place) {
        (Role::Nbd, place) => format!("nbd     {}", nbd_uri(place, "NAME")),
        (Role::Http, Address::Tcp(place)) => {
            format!("http    http://{place}/  (/metrics, /healthz, /openapi.json)")
        }
        (Role::Http, Address::Unix(path)) => format!("http    {}", path.display()),
    }
}

/// Returns the URI of a volume, for NBD clients.
pub fn nbd_uri(place: &Address, volume: &str) -> String {
    match place {
        Address::Tcp(place) => format!("nbd://{place}/{volume}"),
        Address::Unix(path) => {
            // Slashes may stay as they are, and are read more easily.
            let path = escape(&path.display().to_string()).replace("%2F", "/");
            format!("nbd+unix:///{volume}?socket={path}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_uri_is_escaped() {
        let place = Address::Unix("/srv/a b&c#d?e%f/größe/nbd.sock".into());
        assert_eq!(
            nbd_uri(&place, "vm1"),
            "nbd+unix:///vm1?socket=/srv/a%20b%26c%23d%3Fe%25f/gr%C3%B6%C3%9Fe/nbd.sock"
        );
    }
}
