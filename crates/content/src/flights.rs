//! Concurrent reads of one chunk at one place make one request. Another copy of it is another flight: damage of the one is
//! no news of the other.

use crate::name::PlaceMap;
use crate::pack::reader::Body;
use crate::{Error, Pointer};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::OnceCell;

type Cell = OnceCell<Result<Body, Error>>;

#[derive(Default)]
pub(crate) struct Flights {
    cells: Mutex<PlaceMap<Arc<Cell>>>,
}

/// One reader's part in a flight.
struct Part<'a> {
    flights: &'a Flights,
    place: Pointer,
    cell: Arc<Cell>,
}

impl Flights {
    /// The result of `read`, which is run by one of those who ask for `place` at the same time; when that one is
    /// dropped, the next one runs its own.
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
        // The map and this part: nobody else waits. A finished flight takes nobody aboard in any case.
        let is_last = Arc::strong_count(&self.cell) <= 2;
        if (is_last || self.cell.initialized())
            && cells.get(&self.place).is_some_and(|cell| Arc::ptr_eq(cell, &self.cell))
        {
            cells.remove(&self.place);
        }
    }
}
