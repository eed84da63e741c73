//! The result of work that runs elsewhere.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::oneshot;

/// The end at which work leaves its result.
pub(crate) struct Sender<T> {
    // Dropped in this order: whether the work panicked is known before the receiver wakes up.
    fate: Fate,
    value: oneshot::Sender<T>,
}

/// Notes a panic of the thread that drops it.
struct Fate(Arc<AtomicBool>);

impl Drop for Fate {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

impl<T> Sender<T> {
    pub(crate) fn send(self, value: T) {
        // A receiver that is gone does not want it.
        let _ = self.value.send(value);
        drop(self.fate);
    }
}

/// Makes both ends. The future panics if the work has. It never ends if the work was dropped
/// before its end: the process is about to end then, and takes no further step.
pub(crate) fn channel<T: Send + 'static>(
    what: &'static str,
) -> (Sender<T>, impl Future<Output = T> + Send + 'static) {
    let (sender, receiver) = oneshot::channel();
    let panicked = Arc::new(AtomicBool::new(false));
    let fate = Fate(panicked.clone());
    let result = async move {
        match receiver.await {
            Ok(value) => value,
            Err(_) if panicked.load(Ordering::Acquire) => panic!("{what} panicked"),
            Err(_) => std::future::pending().await,
        }
    };
    (Sender { fate, value: sender }, result)
}
