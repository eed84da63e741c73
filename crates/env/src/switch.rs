//! A switch that is turned on once.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// A flag that is turned on once, and stays so. The tasks that wait for it wake in the order in
/// which they came: tokio's `watch` wakes them in any order, and then a seed would not be one run.
#[derive(Debug, Default)]
pub struct Switch {
    on: AtomicBool,
    turned: Notify,
}

impl Switch {
    /// Turns the switch on; no effect when it is on already.
    pub fn turn_on(&self) {
        self.on.store(true, Ordering::Release);
        self.turned.notify_waiters();
    }

    /// Whether the switch is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Waits until the switch is on.
    pub async fn wait(&self) {
        // A `Notified` counts from its creation on, so that no turn is missed between the look and
        // the wait.
        let turned = self.turned.notified();
        if !self.is_on() {
            turned.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Faults, World};
    use std::sync::{Arc, Mutex};

    /// The order in which 20 waiting tasks wake. The seed draws the order in which tasks run; the
    /// switch adds no chance of its own.
    fn order(seed: u64) -> Vec<u32> {
        let world = World::new(seed, Faults::none());
        let (switch, woken) = (Arc::new(Switch::default()), Arc::new(Mutex::new(Vec::new())));
        let env = world.env();
        for number in 0..20 {
            let (switch, woken) = (switch.clone(), woken.clone());
            env.spawn("waiter", async move {
                switch.wait().await;
                woken.lock().unwrap().push(number);
            });
        }
        world.block_on(async {
            env.sleep(std::time::Duration::from_millis(1)).await;
            assert!(!switch.is_on() && woken.lock().unwrap().is_empty());
            switch.turn_on();
            switch.wait().await;
            env.sleep(std::time::Duration::from_millis(1)).await;
        });
        woken.lock().unwrap().clone()
    }

    #[test]
    fn all_wake_and_a_seed_is_one_order() {
        for seed in 0..10 {
            let mut woken = order(seed);
            assert_eq!(woken, order(seed));
            woken.sort_unstable();
            assert_eq!(woken, (0..20).collect::<Vec<_>>());
        }
    }
}
