//! Standard error. A pipe or a terminal that is not read holds up a process that writes to it: a
//! daemon leaves that wait to a thread of its own.

use crate::limits;
use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The lines that wait for the thread.
struct Waiting {
    text: Vec<u8>,
    /// Messages that found no room after those.
    left_out: u64,
    /// Whether the thread has taken lines that are not written yet.
    is_writing: bool,
}

static WAITING: Mutex<Waiting> =
    Mutex::new(Waiting { text: Vec::new(), left_out: 0, is_writing: false });
static CHANGED: Condvar = Condvar::new();
static HAS_THREAD: AtomicBool = AtomicBool::new(false);

impl Waiting {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.left_out == 0
    }
}

/// Makes this process wait no more for the reader of standard error. Without a thread, writes wait
/// as before. The thread does not outlive an `exec`.
pub fn never_wait() {
    let begin = || std::thread::Builder::new().name("standard-error".to_owned()).spawn(write_on);
    if !HAS_THREAD.swap(true, Ordering::AcqRel) && begin().is_err() {
        HAS_THREAD.store(false, Ordering::Release);
    }
}

/// Writes a message, of whole lines. A failure to write (a full disk behind standard error, a
/// terminal that is gone) is ignored: a process that keeps others alive must not die of a message.
pub fn write(message: &[u8]) {
    if !HAS_THREAD.load(Ordering::Acquire) {
        let _ = io::stderr().lock().write_all(message);
        return;
    }
    let mut waiting = WAITING.lock();
    let length = waiting.text.len() + message.len();
    // The message after one that was left out is left out too: the count then stands in its place.
    if waiting.left_out > 0 || length > limits::STANDARD_ERROR_BYTES_MAX {
        waiting.left_out += 1;
    } else {
        waiting.text.extend_from_slice(message);
    }
    CHANGED.notify_all();
}

/// Waits until everything is written, but no longer than `patience`: before the process ends, or
/// becomes another one.
pub fn flush(patience: Duration) {
    let mut waiting = WAITING.lock();
    let is_owed = |waiting: &mut Waiting| waiting.is_writing || !waiting.is_empty();
    CHANGED.wait_while_for(&mut waiting, is_owed, patience);
}

fn write_on() {
    let mut waiting = WAITING.lock();
    loop {
        CHANGED.wait_while(&mut waiting, |waiting| waiting.is_empty());
        let text = std::mem::take(&mut waiting.text);
        let left_out = std::mem::take(&mut waiting.left_out);
        waiting.is_writing = true;
        parking_lot::MutexGuard::unlocked(&mut waiting, || {
            // Each line by itself: several processes may share a pipe, and a short line stays whole
            // there.
            for line in text.split_inclusive(|&byte| byte == b'\n') {
                let _ = io::stderr().lock().write_all(line);
            }
            if left_out > 0 {
                let _ = writeln!(
                    io::stderr().lock(),
                    "rekindle: {left_out} message(s) left out here: standard error was not read"
                );
            }
        });
        waiting.is_writing = false;
        CHANGED.notify_all();
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests of the real machine")]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    use std::time::Instant;

    /// Variable that tells the test below to be the process that writes.
    const VARIABLE: &str = "REKINDLE_TEST_OF_STANDARD_ERROR";
    const MESSAGES: usize = 100_000;
    const PATIENCE: Duration = Duration::from_secs(1);

    fn written_by_the_child() {
        never_wait();
        let began = Instant::now();
        for number in 0..MESSAGES {
            write(format!("message {number:>20}\n").as_bytes());
        }
        flush(PATIENCE);
        println!("\nwaited {}", began.elapsed().as_millis());
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
        flush(10 * PATIENCE);
        write(b"last\n");
        flush(10 * PATIENCE);
        std::process::exit(0);
    }

    #[test]
    fn a_reader_that_stops_holds_up_no_writer_and_is_told_what_it_missed() {
        if std::env::var_os(VARIABLE).is_some() {
            written_by_the_child();
        }
        let name = "real::standard_error::tests::a_reader_that_stops_holds_up_no_writer_and_is_told_what_it_missed";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let waited = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .find_map(|line| line.unwrap().strip_prefix("waited ")?.parse().ok())
            .map(Duration::from_millis);
        let waited = waited.expect("it says how long it waited");
        assert!(PATIENCE <= waited && waited < 10 * PATIENCE, "{waited:?}");

        drop(child.stdin.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        // Once, or a few times: what waits is written when the writer has its turn.
        let (mut next, mut left_out) = (0, 0);
        let mut lines = said.lines();
        for line in lines.by_ref() {
            let notice = line.strip_prefix("rekindle: ").and_then(|rest| {
                rest.strip_suffix(" message(s) left out here: standard error was not read")
            });
            match notice {
                Some(count) => left_out += count.parse::<usize>().unwrap(),
                None if line == format!("message {:>20}", next + left_out) => next += 1,
                None => {
                    assert_eq!((line, next + left_out), ("last", MESSAGES));
                    break;
                }
            }
        }
        assert_eq!(lines.next(), None);
        assert!(0 < left_out && left_out < MESSAGES, "{left_out}");
        assert!(child.wait().unwrap().success());
    }
}
