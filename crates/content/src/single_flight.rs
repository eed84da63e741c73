//! Concurrent reads of one chunk at one place make one request. Another copy of the chunk is
//! another flight: damage of one copy says nothing about the other.

use crate::name::PlaceMap;
use crate::pack::reader::Body;
use crate::{Error, Pointer};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::OnceCell;

type Cell = OnceCell<Result<Body, Error>>;

#[derive(Default)]
pub(crate) struct SingleFlight {
    cells: Mutex<PlaceMap<Arc<Cell>>>,
}

/// One reader's part in a flight.
struct Part<'a> {
    flights: &'a SingleFlight,
    place: Pointer,
    cell: Arc<Cell>,
}

impl SingleFlight {
    /// Returns the result of `read`, which one of the tasks that ask for `place` at the same time
    /// runs for all. When that task is dropped, the next one runs its own.
    pub(crate) async fn share<F>(
        &self,
        place: Pointer,
        read: impl FnOnce() -> F,
    ) -> Result<Body, Error>
    where
        F: Future<Output = Result<Body, Error>>,
    {
        let cell = self.cells.lock().entry(place).or_default().clone();
        let part = Part { flights: self, place, cell };
        part.cell.get_or_init(read).await.clone()
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let mut cells = self.flights.cells.lock();
        // Held by the map and this part only: no other task waits. A finished flight takes no task
        // aboard in any case.
        let is_last = Arc::strong_count(&self.cell) <= 2;
        if (is_last || self.cell.initialized())
            && cells.get(&self.place).is_some_and(|cell| Arc::ptr_eq(cell, &self.cell))
        {
            cells.remove(&self.place);
        }
    }
}
