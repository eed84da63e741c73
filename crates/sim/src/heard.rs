//! Counts of the rare events that a run exists for. A run in which none of them happens proves
//! little, so the tests require that each did happen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Number of times that each event happened.
pub type Counts = BTreeMap<&'static str, u64>;

/// Messages of the log that stand for an event.
const SAYINGS: &[(&str, &str)] = &[
    ("an earlier commit has landed late", "late verdict"),
    ("the volume's share of flash is full", "flash full"),
    ("destaging changes that flash does not have", "destaged without flash"),
    ("a chunk is damaged: it is read once more", "read again"),
    ("was removed: what the log had of it is not needed", "changes of a removed volume"),
    ("replaced, as a vault says", "fenced: by a vault"),
    ("replaced, as a look says", "fenced: by a look"),
    ("a copy of the log is behind", "cluster: a copy is behind"),
    ("a lost node goes on here", "cluster: taken over"),
    ("follows its clients", "cluster: a volume followed its clients"),
    ("with records that no client was told of", "map: began again"),
];

thread_local! {
    static COUNTS: RefCell<Counts> = RefCell::default();
}

/// Counts one more event.
pub fn note(what: &'static str) {
    note_many(what, 1);
}

/// Counts so many more events.
pub fn note_many(what: &'static str, count: u64) {
    if count == 0 {
        return;
    }
    COUNTS.with_borrow_mut(|counts| *counts.entry(what).or_default() += count);
}

/// Whether an event has happened in this run.
pub fn happened(what: &'static str) -> bool {
    COUNTS.with_borrow(|counts| counts.contains_key(what))
}

/// Adds counts to a sum.
pub fn add(sum: &mut Counts, counts: &Counts) {
    for (&what, &count) in counts {
        *sum.entry(what).or_default() += count;
    }
}

/// Runs `work` in this thread, and returns its result with the events.
pub fn listen<T>(work: impl FnOnce() -> T) -> (T, Counts) {
    COUNTS.take();
    let aloud = std::env::var_os("REKINDLE_ALOUD").is_some();
    let result = tracing::subscriber::with_default(Ear { aloud }, work);
    (result, COUNTS.take())
}

/// Subscriber that counts the messages of the system.
struct Ear {
    /// Whether messages are printed, too.
    aloud: bool,
}

struct Message<'a>(&'a mut String, bool);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => fmt::write(self.0, format_args!("{value:?}")),
            other if self.1 => fmt::write(self.0, format_args!(" {other}={value:?}")),
            _ => Ok(()),
        };
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Message(&mut text, self.aloud));
        if self.aloud && *event.metadata().level() <= Level::INFO {
            eprintln!("{} {text}", event.metadata().level());
        }
        for (saying, what) in SAYINGS {
            if text.contains(saying) {
                note(what);
            }
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
