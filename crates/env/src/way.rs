//! Giving way: background threads let the others go first.

use std::cell::Cell;

thread_local! {
    static GIVEN: Cell<u64> = const { Cell::new(0) };
}

/// Lets a thread that waits for the processor go first, such as the one of a session whose client
/// has just asked. Work that keeps a background thread busy for long calls this between two pieces
/// of some ten thousand bytes: without it, the kernel looks at the other threads only at its next
/// tick, four milliseconds away at worst, and a lower weight does not change that. Costs a
/// microsecond when no other thread waits.
pub fn give_way() {
    GIVEN.set(GIVEN.get() + 1);
    std::thread::yield_now();
}

/// Returns how often the calling thread has given way: for tests that bound the work between two
/// times.
#[must_use]
pub fn ways_given() -> u64 {
    GIVEN.get()
}
