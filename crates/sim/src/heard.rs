//! What happened in a run that a run is there for. A run in which nothing of it happens proves little, so it is counted,
//! and the tests ask that each of it did happen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How often each thing happened.
pub type Counts = BTreeMap<&'static str, u64>;

/// What the system says aloud when it happens.
const SAYINGS: &[(&str, &str)] = &[
    ("an earlier commit has landed late", "late verdict"),
    ("the volume's share of flash is full", "flash full"),
    ("destaging changes that flash does not have", "destaged without flash"),
    ("a chunk is damaged: it is read once more", "read again"),
];

thread_local! {
    static COUNTS: RefCell<Counts> = RefCell::default();
}

/// Counts one more.
pub fn note(what: &'static str) {
    note_many(what, 1);
}

/// Counts so many more.
pub fn note_many(what: &'static str, count: u64) {
    COUNTS.with_borrow_mut(|counts| *counts.entry(what).or_default() += count);
}

/// Adds up.
pub fn add(sum: &mut Counts, counts: &Counts) {
    for (&what, &count) in counts {
        *sum.entry(what).or_default() += count;
    }
}

/// Runs something in this thread, and gives what happened in it.
pub fn listen<T>(work: impl FnOnce() -> T) -> (T, Counts) {
    COUNTS.take();
    let aloud = std::env::var_os("REKINDLE_ALOUD").is_some();
    let result = tracing::subscriber::with_default(Ear { aloud }, work);
    (result, COUNTS.take())
}

/// Hears what the system says.
struct Ear {
    /// Repeats it.
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
