//! `up` run by hand: keeps the sockets, starts the worker, starts another one at once when it dies,
//! goes on as another binary when asked to (`reexec`).
//!
//! The supervisor does nothing that could fail under load: it holds no data, reads no store, and
//! waits for no reader of its messages. The work that may fail is in the worker. The sockets, and
//! warm memory without a file, end with the supervisor: so only a signal ends it, or a worker that
//! was told to end or never served. Any other failure is printed, and the attempt repeated.
#![expect(
    clippy::disallowed_methods,
    reason = "the supervisor outlives every process that has an Env"
)]

use crate::child::Worker;
use crate::endpoints::{Endpoints, Lock};
use crate::restart::Restarts;
use crate::signals::{StopSignals, until};
use crate::sockets::Listening;
use crate::upgrade::{self, Answer, Arrival};
use crate::worker::{Handover, Ready};
use rekindle_env::real::standard_error;
use rekindle_terminal::failure::{EXIT_FENCED, EXIT_UNCLEAN, Failure, Outcome};
use rekindle_terminal::output::tell;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::oneshot;

/// A function that tells the user, once, that the daemon serves.
pub type Announce = Box<dyn FnOnce(&Ready)>;

/// A supervisor, with everything that outlives its workers.
pub struct Supervisor {
    pub dir: PathBuf,
    pub handover: Handover,
    pub sockets: Vec<Listening>,
    /// Held for as long as the supervisor lives.
    pub lock: Lock,
    /// Warm memory without a file, if that was asked for: held for the workers.
    pub memory: Option<OwnedFd>,
    /// Called once, when the first worker serves; `None` after an upgrade: a worker has served.
    pub announce: Option<Announce>,
    /// Path from which this binary was started. Another file may be there by now.
    pub program: PathBuf,
    /// The upgrade that this process is in the middle of.
    pub arrival: Option<Arrival>,
}

/// An event that the supervisor waits for.
enum News {
    /// Child processes changed.
    Child,
    /// A signal asks the supervisor to stop.
    Stop(Signal),
    /// The worker serves.
    Ready(Ready),
    /// `rekindle upgrade` asks for another binary.
    Upgrade,
    /// The check of that binary has ended, with this result.
    Checked(PathBuf, Outcome),
    /// The old worker does not end.
    Late,
    /// Time to write the endpoints again.
    Owed,
}

/// A check of another binary, under way.
type Check = oneshot::Receiver<(PathBuf, Outcome)>;

struct Ears {
    child: Signals,
    stop: StopSignals,
    upgrade: Signals,
}

/// The present state of a supervisor.
struct Present {
    worker: Worker,
    /// The process that serves; 0 before the first one does.
    serving: u32,
    /// Time at which to write the endpoints again, after a failure.
    owed: Option<Instant>,
    restarts: Restarts,
    /// Whether a signal has asked the supervisor to stop.
    stopping: bool,
    /// Deadline for the end of the previous binary's worker, while it is the one that runs.
    retiring: Option<Instant>,
    check: Option<Check>,
    /// The version before an upgrade that has ended: named when workers keep dying since.
    upgraded_from: Option<String>,
}

/// Pause between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Supervises until the worker is told to stop. Returns the exit code.
    pub fn run(mut self) -> Outcome<u8> {
        standard_error::never_wait();
        let build = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = self.insist(|| build().map_err(Failure::from))?;
        let ended = runtime.block_on(async {
            let mut ears = self.insist(Ears::new)?;
            let Some(now) = self.begin(&mut ears).await? else { return Ok(0) };
            Ok(self.supervise(now, ears).await)
        });
        // A check of another binary may be under way.
        runtime.shutdown_background();
        ended
    }

    /// Repeats an attempt until it succeeds: after an upgrade clients wait at our sockets. Before
    /// the first service the failure is returned instead.
    fn insist<T>(&self, attempt: impl Fn() -> Outcome<T>) -> Outcome<T> {
        loop {
            match attempt() {
                Err(failure) if self.announce.is_none() => failure.print(false),
                ended => return ended,
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Starts or adopts the first worker; `None` when a signal asks us to stop before there is one.
    async fn begin(&mut self, ears: &mut Ears) -> Outcome<Option<Present>> {
        let old = self.arrival.as_ref().and_then(|arrival| arrival.worker).and_then(Worker::adopt);
        let serving = old.as_ref().map_or(0, |old| old.pid().unsigned_abs());
        let retiring = self.arrival.as_ref().filter(|_| old.is_some()).map(Arrival::deadline);
        // The sockets are open: a client that connects waits.
        let owed = self.write_endpoints(serving, None);
        let mut restarts = Restarts::default();
        let worker = match old {
            Some(old) => {
                old.signal(Signal::TERM);
                Some(old)
            }
            None if self.announce.is_some() => Some(self.start_once()?),
            None => self.start(&mut restarts, ears).await,
        };
        Ok(worker.map(|worker| Present {
            worker,
            serving,
            owed,
            restarts,
            stopping: false,
            retiring,
            check: None,
            upgraded_from: None,
        }))
    }

    /// Supervises, and returns the exit code. The result is no [`Outcome`] on purpose: no failure
    /// in here ends the supervisor.
    async fn supervise(mut self, mut now: Present, mut ears: Ears) -> u8 {
        // The worker may have ended before its end could be heard.
        let mut news = News::Child;
        loop {
            match news {
                News::Ready(ready) => self.ready(&mut now, &ready),
                News::Owed => now.owed = self.write_endpoints(now.serving, now.owed),
                News::Stop(signal) => {
                    now.stopping = true;
                    now.worker.signal(signal);
                }
                News::Upgrade => self.check(&mut now),
                News::Checked(binary, checked) => {
                    now.check = None;
                    // `reexec` returns only when it fails.
                    let refusal = match checked {
                        Ok(()) if now.retiring.is_some() || now.stopping => continue_later(),
                        Ok(()) => self.reexec(&binary, &now.worker),
                        Err(failure) => failure,
                    };
                    Answer::refused(refusal).write(&self.dir);
                }
                News::Late => {
                    now.retiring = None;
                    now.worker.signal(Signal::KILL);
                }
                News::Child => {
                    if let Some(status) = now.worker.ended()
                        && let Some(code) = self.replace(&mut now, &mut ears, status).await
                    {
                        return code;
                    }
                }
            }
            news = ears.listen(&mut now).await;
        }
    }

    /// Writes the endpoints. Returns when to try again, if they could not be written (a full disk):
    /// clients that know the folder find its sockets without them.
    fn write_endpoints(&self, serving: u32, owed: Option<Instant>) -> Option<Instant> {
        let written = Endpoints::of(&self.sockets, serving).upgradable().write(&self.dir);
        let failure = written.err()?;
        if owed.is_none() {
            failure.print(false);
        }
        Some(Instant::now() + AGAIN)
    }

    fn ready(&mut self, now: &mut Present, ready: &Ready) {
        now.serving = ready.pid;
        now.owed = self.write_endpoints(now.serving, now.owed);
        if let Some(announce) = self.announce.take() {
            announce(ready);
        }
        if let Some(arrival) = self.arrival.take() {
            // The way back to the previous binary ends here: formats may go forward from now on.
            now.upgraded_from = Some(arrival.change.from.clone());
            let answer = arrival.answer(ready.pid);
            tell(&format!("rekindle: {answer}"));
            answer.write(&self.dir);
        }
    }

    /// Begins the check of the binary that `rekindle upgrade` asks for.
    fn check(&self, now: &mut Present) {
        if now.check.is_some() || self.arrival.is_some() || now.stopping {
            Answer::refused(continue_later()).write(&self.dir);
            return;
        }
        match upgrade::take_request(&self.dir, &self.program) {
            Ok(binary) => now.check = Some(check(binary)),
            Err(failure) => Answer::refused(failure).write(&self.dir),
        }
    }

    /// Starts another worker after one has ended, or returns the exit code.
    async fn replace(
        &mut self,
        now: &mut Present,
        ears: &mut Ears,
        status: ExitStatus,
    ) -> Option<u8> {
        let retired = self.arrival.as_mut().is_some_and(|arrival| arrival.worker.take().is_some());
        now.retiring = None;
        // Before its first service a worker that gives up has said why: a wrong URL does not mend
        // itself.
        let gives_up = self.announce.is_some() && status.code().is_some();
        if now.stopping || gives_up || (status.success() && !retired) {
            return Some(exit_code(status));
        }
        if status.code() == Some(EXIT_UNCLEAN.into()) && !retired {
            // It was asked to stop, and has said what failed.
            return Some(EXIT_UNCLEAN);
        }
        if status.code() == Some(EXIT_FENCED.into()) {
            // Another worker would be fenced too. This one has said why.
            tell(
                "rekindle: the worker is fenced, and none is started any more: `rekindle up --take-identity` goes on with this folder",
            );
            return Some(EXIT_FENCED);
        }
        if !retired {
            if self.arrival.as_mut().is_some_and(Arrival::died) {
                self.give_up(&ended(status));
            }
            let wait = now.restarts.wait_after(now.worker.age());
            let (ended, after) = (ended(status), after(wait));
            tell(&format!("rekindle: the worker {ended}; starting another{after}"));
            if let (false, Some(from)) = (wait.is_zero(), &now.upgraded_from) {
                tell(&format!(
                    "rekindle: it keeps dying since the upgrade from {from}: `rekindle upgrade --binary OLD` goes back"
                ));
            }
            if ears.pause(wait).await {
                return Some(0);
            }
        }
        match self.start(&mut now.restarts, ears).await {
            Some(worker) => now.worker = worker,
            None => return Some(0),
        }
        None
    }

    fn start_once(&self) -> Outcome<Worker> {
        let restarted = self.announce.is_none();
        Worker::start(&self.program, &self.handover, &self.sockets, restarted)
    }

    /// Starts a worker, after any number of attempts; `None` when a signal asks us to stop.
    async fn start(&mut self, restarts: &mut Restarts, ears: &mut Ears) -> Option<Worker> {
        loop {
            match self.start_once() {
                Ok(worker) => return Some(worker),
                // No process, no descriptor, no memory: other processes give them back.
                Err(failure) => failure.print(false),
            }
            if self.arrival.as_mut().is_some_and(Arrival::died) {
                self.give_up("could not be started");
            }
            if ears.pause(restarts.wait_after_failure()).await {
                return None;
            }
        }
    }
}

impl Supervisor {
    /// Goes back to the previous binary, since this binary's workers do not come to serve. Returns
    /// when that is impossible.
    fn give_up(&mut self, ended: &str) {
        let Some(mut arrival) = self.arrival.take() else { return };
        if let Some(back) = arrival.back.take() {
            let why = format!("its worker {ended} before it served, again and again");
            tell(&format!("rekindle: {why}: going back to {}", arrival.change.from));
            self.go_back(&back, &arrival.change, why).print(false);
        }
        self.arrival = Some(arrival);
    }
}

/// Refuses a second upgrade, or one during a stop.
fn continue_later() -> Failure {
    Failure::new("the daemon is already being upgraded or stopped")
        .next("wait for that to end, then look at `rekindle status`")
        .kind(rekindle_base::Kind::Conflict)
}

impl Ears {
    fn new() -> Outcome<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            stop: StopSignals::new()?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    async fn listen(&mut self, now: &mut Present) -> News {
        let (check, retiring, owed) = (&mut now.check, now.retiring, now.owed);
        tokio::select! {
            // First the worker's report: it counts even if the worker has died since.
            biased;
            ready = now.worker.ready() => News::Ready(ready),
            _ = self.child.recv() => News::Child,
            signal = self.stop.next() => News::Stop(signal),
            _ = self.upgrade.recv() => News::Upgrade,
            (binary, checked) = ended_check(check) => News::Checked(binary, checked),
            () = until(retiring) => News::Late,
            () = until(owed) => News::Owed,
        }
    }

    /// Waits; `true` when a signal asks us to stop meanwhile.
    async fn pause(&mut self, wait: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(wait) => false,
            _ = self.stop.next() => true,
        }
    }
}

/// Checks another binary, in a thread of its own.
fn check(binary: PathBuf) -> Check {
    let (tell, told) = oneshot::channel();
    // Without a thread the sender is dropped: that is an answer too.
    let _ = std::thread::Builder::new().spawn(move || {
        let checked = upgrade::check(&binary);
        let _ = tell.send((binary, checked));
    });
    told
}

async fn ended_check(check: &mut Option<Check>) -> (PathBuf, Outcome) {
    match check {
        Some(check) => check.await.unwrap_or_else(|_| {
            let failure = Failure::new("the new binary could not be checked")
                .next("try again: the machine may be short of threads or memory");
            (PathBuf::new(), Err(failure))
        }),
        None => std::future::pending().await,
    }
}

/// Returns the exit code that a parent shell would report.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, Some(code)) => format!("ended with exit code {code}"),
        _ => "ended".to_owned(),
    }
}

fn after(wait: Duration) -> String {
    if wait.is_zero() { String::new() } else { format!(" in {} ms", wait.as_millis()) }
}
