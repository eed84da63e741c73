//! Concurrent reads of one chunk make one request.

use crate::Error;
use crate::name::{Name, NameMap};
use crate::pack::reader::Body;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::OnceCell;

type Cell = OnceCell<Result<Body, Error>>;

#[derive(Default)]
pub(crate) struct Flights {
    cells: Mutex<NameMap<Arc<Cell>>>,
}

/// One reader's part in a flight.
struct Part<'a> {
    flights: &'a Flights,
    name: Name,
    cell: Arc<Cell>,
}

impl Flights {
    /// The result of `read`, which is run by one of those who ask for `name` at the same time; when that one is
    /// dropped, the next one runs its own.
    pub(crate) async fn share<F>(&self, name: Name, read: impl FnOnce() -> F) -> Result<Body, Error>
    where
        F: Future<Output = Result<Body, Error>>,
    {
        let cell = self.cells.lock().entry(name).or_default().clone();
        let part = Part { flights: self, name, cell };
        part.cell.get_or_init(read).await.clone()
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let mut cells = self.flights.cells.lock();
        // The map and this part: nobody else waits. A finished flight takes nobody aboard in any case.
        let is_last = Arc::strong_count(&self.cell) <= 2;
        if (is_last || self.cell.initialized())
            && cells.get(&self.name).is_some_and(|cell| Arc::ptr_eq(cell, &self.cell))
        {
            cells.remove(&self.name);
        }
    }
}
