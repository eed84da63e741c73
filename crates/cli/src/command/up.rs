//! `rekindle up`: settle the settings, serve, and say so.

use crate::arguments::{Common, Up};
use crate::config_file::{self, Settings};
use crate::folder;
use rekindle_env::Address;
use rekindle_front::uri;
use rekindle_node::config::Token;
use rekindle_supervise::Service;
use rekindle_supervise::sockets::Role;
use rekindle_supervise::worker::Ready;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use std::path::{Path, PathBuf};

/// Runs the command; gives the exit code.
pub fn run(common: &Common, up: &Up) -> Outcome<u8> {
    rekindle_env::real::access::keep_private();
    rekindle_env::real::descriptors::outlive_file_size();
    let Settings { dir, mut config, sockets } = settle(up)?;
    let dir = folder::of_server(common.dir.as_deref().or(dir.as_deref()))?;
    config.dir.clone_from(&dir);
    must_be_text(&[Some(&dir), config.warm.as_ref(), up.config.as_ref()])?;
    let mut notes = Vec::new();
    let service = Service::open(dir.clone(), config, &sockets, &mut notes)?
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

/// Settles the settings: command line and environment (clap has joined them) over the file over the
/// defaults.
fn settle(up: &Up) -> Outcome<Settings> {
    let mut settings = match &up.config {
        Some(path) => config_file::read(path)?,
        None => Settings::default(),
    };
    let Settings { config, sockets, .. } = &mut settings;
    // The number is good once: a worker that is started again has the same one.
    config.take_identity = up.take_identity.then(|| std::process::id().into());
    config.older_copies = up.older_copies;
    over(&mut config.store, up.store.as_ref());
    over(&mut config.store_fault, up.store_fault.as_ref());
    over(&mut config.flash_bytes, up.flash_budget.as_ref());
    over(&mut config.warm, up.warm.as_ref());
    over(&mut config.warm_bytes, up.warm_size.as_ref());
    over(&mut config.warm_frames_bytes, up.warm_frames.as_ref());
    over(&mut config.cache_bytes, up.cache.as_ref());
    over(&mut config.parity, up.parity.as_ref());
    over(&mut config.read_ahead, up.read_ahead.as_ref());
    over(&mut config.direct_path, up.direct_path.as_ref());
    let cluster = &mut config.cluster;
    if let Some(place) = &up.advertise {
        cluster.advertise = place.as_ref().map(ToString::to_string);
    }
    cluster.join = up.join.clone().map(Token::new);
    over(&mut cluster.domain, up.domain.as_ref());
    over(&mut cluster.name, up.node_name.as_ref());
    over(&mut cluster.spread, up.holder_domains.as_ref());
    over(&mut cluster.hold_bytes, up.hold_budget.as_ref());
    if cluster.advertise.is_some() && cluster.name.is_empty() {
        cluster.name = host_name();
    }
    config.check().map_err(Failure::usage)?;
    for (places, said) in
        [(&mut sockets.nbd, &up.nbd), (&mut sockets.nfs, &up.nfs), (&mut sockets.http, &up.http)]
    {
        if !said.is_empty() {
            *places = said.iter().flatten().cloned().collect();
        }
    }
    over(&mut sockets.group, up.socket_group.as_ref());
    over(&mut sockets.http_group, up.http_socket_group.as_ref());
    // Clients reach a guest only through its host, which was asked the same.
    let in_guest = std::env::var_os(rekindle_appliance::guest::VARIABLE).is_some();
    sockets.insecure |= up.insecure || in_guest;
    Ok(settings)
}

/// The name of this machine, as far as it can be the name of a node.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let plain = |letter: char| if is_plain(letter) { letter } else { '-' };
    name.chars().map(plain).take(rekindle_node::limits::WORD_BYTES_MAX).collect()
}

/// Takes what was said, if anything was.
fn over<T: Clone, S: From<T>>(setting: &mut S, said: Option<&T>) {
    if let Some(said) = said {
        *setting = said.clone().into();
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
                    "start_ms": self.ready.start_ms, "nbd": places(Role::Nbd), "nfs": places(Role::Nfs),
                    "http": places(Role::Http), "notes": notes,
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
            let uri = uri::nbd(place, "vm1");
            output::line(&format!("  nbdinfo '{uri}'"));
            output::line(&format!("  qemu-img convert -n -p disk.qcow2 '{uri}'"));
        }
    }
}

fn endpoint(role: Role, place: &Address) -> String {
    match (role, place) {
        (Role::Nfs, place) => format!(
            "nfs     {}\n  nfs     {}",
            uri::nfs_mount(place, "NAME", "DIR"),
            uri::nfs4_mount(place, "NAME", "DIR")
        ),
        (Role::Nbd, place) => format!("nbd     {}", uri::nbd(place, "NAME")),
        (Role::Http, Address::Tcp(place)) => {
            format!("http    http://{place}/  (/metrics, /healthz, /openapi.json)")
        }
        (Role::Http, Address::Unix(path)) => format!("http    {}", path.display()),
    }
}
