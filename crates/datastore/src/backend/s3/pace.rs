//! The number of concurrent large uploads to the store.
//!
//! On a narrow connection each of many concurrent uploads takes so long that something breaks it
//! off, and none ever finishes. So an upload that breaks off halves the number, down to one; each
//! success raises it slowly.

use crate::limits::{UPLOAD_BYTES_LARGE, UPLOADS_AT_ONCE_MAX};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) struct Pace {
    state: Mutex<Uploads>,
    changed: Notify,
}

struct Uploads {
    at_once: f64,
    busy: usize,
}

/// The right of one upload to run, until it is dropped.
pub(super) struct Turn<'a> {
    /// `None` for small uploads, which are not counted.
    pace: Option<&'a Pace>,
}

impl Default for Pace {
    fn default() -> Self {
        let state = Uploads { at_once: UPLOADS_AT_ONCE_MAX as f64, busy: 0 };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl Pace {
    /// Waits until an upload of `bytes` may begin.
    pub(super) async fn turn(&self, bytes: usize) -> Turn<'_> {
        if bytes < UPLOAD_BYTES_LARGE {
            return Turn { pace: None };
        }
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no notification is missed.
            changed.as_mut().enable();
            if self.begin() {
                return Turn { pace: Some(self) };
            }
            changed.await;
        }
    }

    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.busy == 0 || ((state.busy + 1) as f64) <= state.at_once;
        state.busy += usize::from(may);
        may
    }
}

impl Turn<'_> {
    pub(super) fn went_well(&self) {
        if let Some(pace) = self.pace {
            let mut state = pace.state.lock();
            state.at_once = (state.at_once + 1.0 / state.at_once).min(UPLOADS_AT_ONCE_MAX as f64);
        }
    }

    pub(super) fn broke_off(&self) {
        if let Some(pace) = self.pace {
            let mut state = pace.state.lock();
            // Half of the uploads that are under way, not of those that would be permitted.
            let before = state.at_once.min(state.busy as f64);
            state.at_once = (before / 2.0).max(1.0);
            // A store that is away breaks off each attempt.
            if state.at_once < before {
                tracing::warn!(
                    at_once = state.at_once.floor(),
                    "an upload broke off, so there are fewer at once"
                );
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(pace) = self.pace {
            pace.state.lock().busy -= 1;
            pace.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn now(pace: &Pace) -> Option<Turn<'_>> {
        pace.turn(UPLOAD_BYTES_LARGE).now_or_never()
    }

    #[test]
    fn after_an_upload_that_broke_off_there_are_fewer_at_once_and_more_when_all_goes_well() {
        let pace = Pace::default();
        let four: Vec<_> = (0..4).map(|_| now(&pace).unwrap()).collect();
        four[0].broke_off();
        drop(four);
        let two = (now(&pace).unwrap(), now(&pace).unwrap());
        assert!(now(&pace).is_none(), "the third waits");
        assert!(pace.turn(100).now_or_never().is_some(), "a record does not");
        two.0.broke_off();
        two.1.broke_off();
        drop(two);
        for round in 0..20 {
            let one = now(&pace).unwrap();
            assert!(round > 0 || now(&pace).is_none(), "never less than one, and now one only");
            one.went_well();
        }
        let more: Vec<_> = (0..5).map_while(|_| now(&pace)).collect();
        assert_eq!(more.len(), 5);
    }
}
