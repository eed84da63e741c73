//! The power button: a press (QEMU's `system_powerdown`, a cloud's console) asks for an orderly
//! end.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Read;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

const EVENTS: &str = "/dev/input";
/// An event: time (16 bytes), type:u16, code:u16, value:i32.
const EVENT_BYTES: usize = 24;
const KEY: u16 = 1;
const POWER: u16 = 116;

/// The process that is asked for an orderly end at a press.
#[derive(Clone, Default)]
pub struct Pressed(Arc<AtomicI32>);

/// Listens at every input device.
#[expect(clippy::disallowed_methods, reason = "the first process of a machine has no Env")]
pub fn watch() -> Pressed {
    let pressed = Pressed::default();
    for entry in std::fs::read_dir(EVENTS).into_iter().flatten().flatten() {
        let Ok(mut device) = File::open(entry.path()) else { continue };
        let pressed = pressed.clone();
        std::thread::spawn(move || {
            let mut event = [0; EVENT_BYTES];
            while device.read_exact(&mut event).is_ok() {
                if is_press(&event) {
                    pressed.stop();
                }
            }
        });
    }
    pressed
}

impl Pressed {
    /// Makes `process` the one that a press ends.
    pub fn stops(&self, process: &Child) {
        self.0.store(Pid::from_child(process).as_raw_pid(), Ordering::Release);
    }

    fn stop(&self) {
        if let Some(pid) = Pid::from_raw(self.0.load(Ordering::Acquire)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

fn is_press(event: &[u8; EVENT_BYTES]) -> bool {
    let number = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
    (number(16), number(18), number(20)) == (KEY, POWER, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_press_of_this_key_counts() {
        let mut event = [0; EVENT_BYTES];
        assert!(!is_press(&event));
        event[16..24].copy_from_slice(&[1, 0, 116, 0, 1, 0, 0, 0]);
        assert!(is_press(&event));
        event[20] = 0;
        assert!(!is_press(&event), "let go");
    }
}
