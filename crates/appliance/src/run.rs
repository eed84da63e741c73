//! `rekindle appliance run`: keeps an appliance alive. After any end that was not asked for, the
//! guest is started again, and the memory that outlives it makes that a warm start.
#![expect(clippy::disallowed_methods, reason = "this command has no Env")]

use crate::forward::{Gate, Way};
use crate::monitor::{Event, Monitor};
use crate::qemu::{self, Accelerator};
use crate::{CONSOLE, Description, ENDS, PANIC, RESET, SAID, SERVES};
use clap::Args;
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_supervise::access;
use rekindle_supervise::endpoints::{Endpoints, Lock};
use rekindle_supervise::signals::{StopSignals, until};
use rekindle_supervise::sockets::{Listening, Role, WantedSockets};
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use rekindle_terminal::words::{AddressOrOff, address, size};
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// Longest time for a guest to switch itself off.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for a guest to be off once nothing else of it is left.
const OFF_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a QEMU that died is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// Most deaths of QEMU before a guest has ever served: a port may have been taken in between.
const TRIES_MAX: u32 = 2;
/// Longest time for an answer of a guest that says it serves.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Lines of the console that are shown when the guest gives up.
const CONSOLE_LINES: usize = 15;

// The way in which a user wants an appliance run: the comments are its help.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle appliance run /srv/appliance
  rekindle appliance run /srv/appliance --store s3://bucket/prefix --ram 2G
  rekindle appliance run /srv/appliance -- --cache 512M --flash-budget 4G

A panic or a reset of the guest, and the death of QEMU, start it again: warm,
because its memory is a file in this host's /dev/shm. That file stays after
the end; remove it to start without it (then only what was acknowledged from
flash or flushed is there). AWS_* variables are passed on. Ctrl-C or SIGTERM
switches the guest off; a second one does not wait. Its console is in
DIR/console.log. Clients reach the guest only through the sockets printed
here.")]
pub struct Run {
    /// The appliance
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Serve NBD here besides DIR/nbd.sock: unix:PATH or HOST:PORT; repeatable
    #[arg(long, value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    pub nbd: Vec<AddressOrOff>,
    /// Serve the JSON API here besides DIR/rekindle.sock: unix:PATH or HOST:PORT; repeatable
    #[arg(long, value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    pub http: Vec<AddressOrOff>,
    /// Allow TCP addresses that other machines reach: clients are not authenticated, and nothing is
    /// encrypted
    #[arg(long)]
    pub insecure: bool,
    /// Let this group use the NBD sockets too [default: only the user who runs the appliance]
    #[arg(long, value_name = "GROUP", value_parser = access::group)]
    pub socket_group: Option<u32>,
    /// Where the bulk lies: s3://BUCKET/PREFIX [default: the data disk]
    #[arg(long, env = "REKINDLE_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// The guest's own RAM
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    pub ram: u64,
    /// The guest's processors
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub cpus: u16,
    /// Who runs the guest's code: the processor (kvm), or QEMU itself (tcg)
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub accelerator: Accelerator,
    /// A command for the guest to run once, when it serves, with its output on the console
    #[arg(long, hide = true)]
    pub then: Option<String>,
    /// Further arguments of QEMU
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub qemu: Option<String>,
    /// Further arguments of `rekindle up` in the guest
    #[arg(last = true, value_name = "UP ARGUMENTS")]
    pub up: Vec<String>,
}

impl Run {
    fn sockets(&self) -> WantedSockets {
        let asked = |places: &[AddressOrOff]| places.iter().flatten().cloned().collect();
        WantedSockets {
            nbd: asked(&self.nbd),
            nfs: Vec::new(),
            http: asked(&self.http),
            group: self.socket_group,
            http_group: None,
            insecure: self.insecure,
        }
    }
}

/// Keeps an appliance alive until the guest is off or cannot be started; returns the exit code.
/// Prints its events, as JSON with `json`.
pub fn run(run: &Run, json: bool) -> Outcome<u8> {
    rekindle_env::real::access::keep_private();
    let description = Description::read(&run.folder)?;
    let folder = run.folder.canonicalize()?;
    let _lock = Lock::take(&folder)?;
    let mut notes = Vec::new();
    let sockets = run.sockets().open(&folder, &mut notes)?;
    let endpoints = Endpoints { guest: true, ..Endpoints::of(&sockets, 0) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let keeper = Keeper {
            json,
            gate: Gate::new(&sockets)?,
            stop: StopSignals::new()?,
            child: signal(SignalKind::child())?,
            reset: signal(SignalKind::from_raw(RESET.as_raw()))?,
            panic: signal(SignalKind::from_raw(PANIC.as_raw()))?,
            notes,
            sockets: &sockets,
            description,
            run,
            served: false,
            serving: false,
            tries: 0,
            stopping: None,
            ending: None,
            began: Instant::now(),
            cause: "start",
        };
        // A full disk must not end the appliance: a client that knows the folder finds the sockets
        // without this file.
        if let Err(failure) = endpoints.write(&folder) {
            failure.print(false);
        }
        keeper.keep(&folder).await
    })
}

struct Keeper<'a> {
    json: bool,
    gate: Gate,
    stop: StopSignals,
    child: Signals,
    reset: Signals,
    panic: Signals,
    notes: Vec<String>,
    sockets: &'a [Listening],
    description: Description,
    run: &'a Run,
    /// Whether a guest of this run has ever served.
    served: bool,
    /// Whether the present guest serves.
    serving: bool,
    /// Count of the deaths of QEMU.
    tries: u32,
    /// Time at which the guest was asked to switch itself off.
    stopping: Option<Instant>,
    /// Time at which nothing was left of the guest but to be switched off.
    ending: Option<Instant>,
    /// Begin and cause of the present start of the guest.
    began: Instant,
    cause: &'static str,
}

/// The end of a QEMU.
enum End {
    /// The guest switched itself off.
    Off,
    Died(ExitStatus),
}

/// A word of the guest on its second serial port.
enum Word {
    Serves,
    Ends,
}

/// An event while QEMU runs.
enum News {
    Monitor(Event),
    Said(io::Result<Word>),
    Child,
    Stop,
    Reset,
    Panic,
    Late,
}

impl Keeper<'_> {
    async fn keep(mut self, folder: &Path) -> Outcome<u8> {
        loop {
            let end = self.once(folder).await?;
            self.gate.close();
            match end {
                _ if self.stopping.is_some() => break,
                End::Off if self.served => break,
                End::Off => {
                    return Err(gave_up("the guest switched itself off before it served", folder));
                }
                End::Died(status) if !self.served && self.tries >= TRIES_MAX => {
                    return Err(gave_up(
                        &format!("QEMU ended with {status} before the guest served"),
                        folder,
                    ));
                }
                End::Died(status) => {
                    self.say(
                        &format!("QEMU ended with {status}; starting it again"),
                        &json!({ "event": "died" }),
                    );
                    self.tries += 1;
                    tokio::time::sleep(RESTART_PAUSE).await;
                    self.begin("died");
                }
            }
        }
        self.say("the guest is off", &json!({ "event": "ended" }));
        Ok(0)
    }

    /// Runs one QEMU, from its start to its end.
    async fn once(&mut self, folder: &Path) -> Outcome<End> {
        let machine = qemu::start(folder, &self.description, self.run)?;
        let way = Way { nbd: machine.nbd, http: machine.http };
        let (child, monitor, signal) = machine.take();
        let mut child = KilledOnDrop(child);
        let mut monitor = Monitor::new(monitor.into()).await?;
        let signal = std::os::unix::net::UnixStream::from(signal);
        signal.set_nonblocking(true)?;
        let mut signal = UnixStream::from_std(signal)?;
        let mut off = false;
        loop {
            match self.listen(&mut monitor, &mut signal).await {
                News::Said(Ok(Word::Serves)) => self.serves(way).await,
                News::Said(Ok(Word::Ends)) => self.ending = Some(Instant::now()),
                News::Said(Err(_)) | News::Child => {
                    if let Some(status) = child.ended().await? {
                        return Ok(if off && status.success() {
                            End::Off
                        } else {
                            End::Died(status)
                        });
                    }
                }
                News::Monitor(Event::PoweredOff) => off = true,
                // The firmware resets once more while it starts: a reset before the guest serves is
                // the same start.
                News::Monitor(Event::Reset { by_guest }) if self.serving => {
                    self.gate.close();
                    self.begin(if by_guest { "guest-reset" } else { "reset" });
                    let line = json!({ "event": "reset", "by_guest": by_guest });
                    self.say("the guest was reset and starts again", &line);
                }
                News::Monitor(Event::Reset { .. }) => {}
                News::Reset => drop(monitor.execute("system_reset").await),
                News::Panic => drop(monitor.execute("inject-nmi").await),
                // The first signal asks the guest, if it is able to hear; the second ends QEMU
                // without asking.
                News::Stop if self.stopping.is_none() && self.served => {
                    self.stopping = Some(Instant::now());
                    let _ = monitor.execute("system_powerdown").await;
                }
                News::Late if self.ending.is_some() => {
                    off = true;
                    self.ending = None;
                    let _ = monitor.execute("quit").await;
                }
                News::Stop | News::Late => {
                    self.stopping = Some(Instant::now());
                    let _ = monitor.execute("quit").await;
                }
            }
        }
    }

    async fn listen(&mut self, monitor: &mut Monitor, signal: &mut UnixStream) -> News {
        let late = match (self.ending, self.stopping) {
            (Some(since), _) => Some(since + OFF_PATIENCE),
            (None, stopping) => stopping.map(|since| since + STOP_PATIENCE),
        };
        tokio::select! {
            biased;
            event = monitor.next() => News::Monitor(event),
            said = word(signal) => News::Said(said),
            _ = self.child.recv() => News::Child,
            _ = self.stop.next() => News::Stop,
            _ = self.reset.recv() => News::Reset,
            _ = self.panic.recv() => News::Panic,
            () = until(late) => News::Late,
        }
    }

    fn begin(&mut self, cause: &'static str) {
        self.serving = false;
        self.ending = None;
        (self.began, self.cause) = (Instant::now(), cause);
    }

    /// Opens the gate when the daemon in the guest, which says that it serves, answers from here.
    async fn serves(&mut self, way: Way) {
        let end = Instant::now() + ANSWER_PATIENCE;
        while !answers(way.http).await {
            if Instant::now() > end {
                self.say(
                    "the guest says that it serves, but does not answer",
                    &json!({ "event": "silent" }),
                );
                break;
            }
        }
        let took = self.began.elapsed();
        self.gate.open(way);
        self.serving = true;
        let first = !std::mem::replace(&mut self.served, true);
        let places = |wanted: Role| -> Vec<String> {
            let here = self.sockets.iter().filter(|socket| socket.role == wanted);
            here.map(|socket| socket.address.to_string()).collect()
        };
        let (nbd, http) = (places(Role::Nbd), places(Role::Http));
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let line = json!({
            "event": "serves", "cause": self.cause, "after_ms": milliseconds, "nbd": nbd, "http": http, "notes": self.notes,
            "accelerator": qemu::accelerator(self.run.accelerator), "memory": self.description.memory,
        });
        self.say(
            &format!("the guest serves, {} ms after its {}", milliseconds, cause(self.cause)),
            &line,
        );
        if first && !self.json {
            self.banner(&nbd, &http);
        }
    }

    fn banner(&self, nbd: &[String], http: &[String]) {
        let memory = &self.description.memory;
        nbd.iter().for_each(|place| output::line(&format!("  nbd      {place}")));
        http.iter().for_each(|place| output::line(&format!("  http     {place}")));
        output::line(&format!(
            "  memory   {} of this host, {}",
            format_size(memory.bytes),
            memory.path.display()
        ));
        output::line(&format!(
            "  guest    {}, {}",
            self.description.kernel,
            qemu::accelerator(self.run.accelerator)
        ));
        self.notes.iter().for_each(|note| output::line(&format!("  note     {note}")));
        let folder = self.run.folder.display();
        output::line("Next:");
        output::line(&format!("  rekindle volume create vm1 --size 20G --dir {folder}"));
        output::line(&format!(
            "  rekindle appliance reset {folder}        warm: nothing acknowledged is lost"
        ));
        output::line(&format!("  rekindle stop --dir {folder}"));
    }

    fn say(&self, text: &str, line: &Value) {
        if self.json {
            output::line(&line.to_string())
        } else {
            output::line(&format!("rekindle: {text}"))
        }
    }
}

fn cause(word: &str) -> &str {
    match word {
        "start" => "start",
        "died" => "QEMU had died",
        _ => "reset",
    }
}

/// A QEMU that is killed when it is dropped: no task waits for it any more.
struct KilledOnDrop(Child);

impl KilledOnDrop {
    /// Returns the exit status if QEMU has ended: that takes milliseconds after the end of its
    /// connections.
    async fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        for _ in 0..20 {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(None)
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the guest's word on its second serial port.
async fn word(signal: &mut UnixStream) -> io::Result<Word> {
    loop {
        match signal.read_u8().await? {
            SERVES => return Ok(Word::Serves),
            ENDS => return Ok(Word::Ends),
            _ => {}
        }
    }
}

/// Whether the API answers, within a moment.
async fn answers(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await?;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await?;
        io::Result::Ok(first.starts_with(b"HTTP/1.1 "))
    };
    matches!(tokio::time::timeout(Duration::from_millis(500), ask).await, Ok(Ok(true)))
}

/// Makes a failure that shows the end of the console: the cause is there.
fn gave_up(what: &str, folder: &Path) -> Failure {
    let path: PathBuf = folder.join(CONSOLE);
    let end = |path: &Path| {
        let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.len().saturating_sub(CONSOLE_LINES);
        lines.get(last..).unwrap_or_default().join("\n")
    };
    let (qemu, console) = (end(&folder.join(SAID)), end(&path));
    Failure::new(what)
        .because(format!("QEMU said: {qemu}\nits console ends with\n{console}"))
        .next(format!("all of it is in {}", path.display()))
        .kind(Kind::Unavailable)
}
