//! The end of a life. A random step would not do, since most lives have done all their work by
//! then. So a life ends a few steps after a given number of client requests have begun, and the
//! crash falls among work that is acknowledged and not finished.

use rekindle_base::random::Random;
use rekindle_env::sim::{Stop, World};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

/// Number of requests that clients have begun.
pub type Begun = Arc<AtomicU64>;

/// End of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The life ends when its work is done.
    Work,
    /// The life is cut off while it starts.
    Start(Stop),
    /// The life is cut off at the stop that follows after so many requests have begun.
    Request(u64, Stop),
}

impl End {
    /// Draws an end for a life with so many requests.
    pub fn draw(dice: &mut Random, requests: u64) -> Self {
        match dice.below(16) {
            0 => Self::Start(Stop::Step(1 + dice.below(150))),
            1 => Self::Start(Stop::DiskOperation(1 + dice.below(20))),
            2..=5 => {
                Self::Request(1 + dice.below(requests), Stop::DiskOperation(1 + dice.below(6)))
            }
            _ => Self::Request(1 + dice.below(requests), Stop::Step(1 + dice.below(40))),
        }
    }
}

/// Runs `work` until `end`; `None` if `work` was cut off.
pub fn run<T>(
    world: &World,
    end: End,
    begun: &Begun,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (requests, stop) = match end {
        End::Work => return Some(world.block_on(work)),
        End::Start(stop) => return world.block_on_until(stop, work),
        End::Request(requests, stop) => (requests, stop),
    };
    let mut work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    let early = world.block_on(std::future::poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if begun.load(Ordering::Relaxed) >= requests => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    }));
    match early {
        Some(value) => Some(value),
        // The world drops `work` at the stop, so that whatever it leaves unfinished counts as
        // interrupted.
        None => world.block_on_until(stop, work),
    }
}
