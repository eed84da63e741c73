//! Concurrent reads of one place make one request. Another copy of a chunk is another flight:
//! damage of one copy says nothing about the other.
//!
//! No reader leads a flight: each task that waits for it may carry it on. A client that takes no
//! replies stops its session's reads where they are, and the other readers go on without it.

use crate::Error;
use crate::name::NameHasher;
use futures_util::future::{FutureExt, Shared};
use parking_lot::Mutex;
use rekindle_env::BoxFuture;
use std::hash::{BuildHasherDefault, Hash};

type Flight<V> = Shared<BoxFuture<'static, Result<V, Error>>>;
/// By place, the flight and the number of its readers.
type Flights<K, V> = hashbrown::HashMap<K, (Flight<V>, usize), BuildHasherDefault<NameHasher>>;

/// The reads that are under way, by place.
pub(crate) struct SingleFlight<K, V> {
    flights: Mutex<Flights<K, V>>,
}

/// One reader's part in a flight.
struct FlightReader<'a, K: Hash + Eq, V: Clone> {
    flights: &'a Mutex<Flights<K, V>>,
    place: K,
    flight: Flight<V>,
}

impl<K, V> Default for SingleFlight<K, V> {
    fn default() -> Self {
        Self { flights: Mutex::default() }
    }
}

impl<K: Hash + Eq + Copy, V: Clone> SingleFlight<K, V> {
    /// Whether no task reads anything.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.flights.lock().is_empty()
    }

    /// Whether a task reads this place.
    pub(crate) fn is_under_way(&self, place: &K) -> bool {
        self.flights.lock().contains_key(place)
    }

    /// Returns the result of `read`, which the first of the tasks that ask for `place` at the same
    /// time gives for all. The read goes on for as long as one of them waits.
    pub(crate) async fn share<F>(&self, place: K, read: impl FnOnce() -> F) -> Result<V, Error>
    where
        F: Future<Output = Result<V, Error>> + Send + 'static,
    {
        let part = {
            let mut flights = self.flights.lock();
            let begin = || (read().boxed().shared(), 0);
            let (flight, readers) = flights.entry(place).or_insert_with(begin);
            *readers += 1;
            FlightReader { flights: &self.flights, place, flight: flight.clone() }
        };
        part.flight.clone().await
    }
}

impl<K: Hash + Eq, V: Clone> Drop for FlightReader<'_, K, V> {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        // After a finished flight another one may have begun here.
        let present = flights.get_mut(&self.place);
        let Some((_, readers)) = present.filter(|(flight, _)| flight.ptr_eq(&self.flight)) else {
            return;
        };
        *readers -= 1;
        // A finished flight takes no reader aboard, and a later one asks anew.
        if *readers == 0 || self.flight.peek().is_some() {
            let removed = flights.remove(&self.place);
            // A read that is broken off here is dropped without the lock.
            drop(flights);
            drop(removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    const PLACE: u64 = 32;

    /// A request that a test answers.
    #[derive(Default)]
    struct Request {
        begun: AtomicU32,
        answer: Notify,
    }

    async fn ask(request: Arc<Request>) -> Result<&'static str, Error> {
        request.begun.fetch_add(1, Ordering::Relaxed);
        request.answer.notified().await;
        Ok("chunk")
    }

    #[test]
    fn a_flight_goes_on_when_a_reader_stops_or_goes_away() {
        let (flights, request) = (SingleFlight::default(), Arc::new(Request::default()));
        let read = || Box::pin(flights.share(PLACE, || ask(request.clone())));
        let mut stopped = read();
        assert!(stopped.as_mut().now_or_never().is_none());
        let mut gone = read();
        assert!(gone.as_mut().now_or_never().is_none());
        let mut waiting = read();
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(gone);
        // The first reader is not polled any more.
        request.answer.notify_one();
        assert_eq!(waiting.now_or_never().unwrap().unwrap(), "chunk");
        assert_eq!(request.begun.load(Ordering::Relaxed), 1);
        assert!(flights.is_empty(), "a later reader asks anew");
        assert!(stopped.now_or_never().unwrap().is_ok());
    }

    #[test]
    fn the_last_reader_to_go_away_breaks_the_flight_off() {
        let (flights, request) = (SingleFlight::default(), Arc::new(Request::default()));
        let mut readers: Vec<_> =
            (0..3).map(|_| Box::pin(flights.share(PLACE, || ask(request.clone())))).collect();
        for reader in &mut readers {
            assert!(reader.as_mut().now_or_never().is_none());
        }
        assert_eq!(Arc::strong_count(&request), 2);
        drop(readers);
        assert_eq!(Arc::strong_count(&request), 1);
        assert!(flights.is_empty());
    }
}
