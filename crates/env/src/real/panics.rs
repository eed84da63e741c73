//! The end of a process that has met a bug.
//!
//! A task that panics is gone: every task that waits for it, or for a lock or a mark that it held,
//! waits for ever. A process that dies is back in some milliseconds, with everything that was
//! acknowledged.

use super::standard_error;
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::process::abort;
use std::time::Duration;

/// Time that the last messages get to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Makes every panic, of any thread, end the process after a log message, also where panics unwind
/// (a debug build).
pub fn end_process() {
    let before = take_hook();
    set_hook(Box::new(move |panic| {
        // Standard error may be a pipe that is not read.
        let _ = std::thread::Builder::new().spawn(end_soon);
        tell(panic);
        standard_error::flush(LAST_WORDS);
        before(panic);
        abort();
    }));
}

#[expect(clippy::disallowed_methods, reason = "the process ends")]
fn end_soon() {
    std::thread::sleep(LAST_WORDS);
    abort();
}

fn tell(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(
        thread = thread.name().unwrap_or("unnamed"),
        %place,
        reason = panic.payload_as_str().unwrap_or("unknown"),
        "a bug: this process ends, because others would wait for it for ever"
    );
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests of the real machine")]
mod tests {
    use rustix::fs::OFlags;
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    /// Variable that tells the test below that its process shall end.
    const VARIABLE: &str = "REKINDLE_TEST_OF_PANICS";

    #[test]
    fn a_panic_of_a_task_that_nobody_watches_ends_the_process() {
        if let Ok(kind) = std::env::var(VARIABLE) {
            super::end_process();
            let (env, runtime) = crate::real::env().unwrap();
            let work = async { panic!("the bug") };
            match kind.as_str() {
                "background" => drop(env.spawn("test", work)),
                "session" => drop(env.spawn_session("test", work)),
                _ => drop(runtime.handle().spawn_blocking(|| panic!("the bug"))),
            }
            // A wait for the task would last for ever.
            std::thread::sleep(Duration::from_secs(60));
            return;
        }
        let name = "real::panics::tests::a_panic_of_a_task_that_nobody_watches_ends_the_process";
        let command = |kind| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([name, "--exact", "--nocapture"]).env(VARIABLE, kind).stdin(Stdio::null());
            command
        };
        let (_reader, mut full) = std::io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&full, OFlags::NONBLOCK).unwrap();
        while full.write(&[b'.'; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&full, OFlags::empty()).unwrap();
        let mut unread = command("background").stdout(Stdio::null()).stderr(full).spawn().unwrap();
        let ended = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            unread.try_wait().unwrap()
        });
        let _ = unread.kill();
        assert_eq!(ended.and_then(|status| status.signal()), Some(6), "its words are waited for");
        for kind in ["background", "session", "blocking"] {
            let ended = command(kind).output().unwrap();
            assert_eq!(ended.status.signal(), Some(6), "{kind}: {:?}", ended.status);
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert!(said.contains("the bug"), "{kind}: {said}");
        }
    }
}
