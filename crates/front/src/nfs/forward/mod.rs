//! Calls about volumes that another host serves: they go there, and their replies come back.
//!
//! A connection of a client may have calls about many volumes, so calls are forwarded, not bytes:
//! over a [`Line`] for each machine and volume. The rules of exports are judged at the host that
//! the client came to, and what they say goes along with a call. So do the names by which a call is
//! known when it comes again, which are the same at each host of the store: a line that breaks,
//! and an owner that moves, cost a call nothing but time. It is sent again.
//!
//! The owner's host answers ([`serve`]), and never forwards: so there is no circle.

pub mod frame;
mod line;
mod patience;
mod tell;
#[cfg(test)]
pub(in crate::nfs) mod testing;
#[cfg(test)]
mod tests;
mod visit;

pub use frame::{Ask, Part, Reply, Standing, Told, Who};
pub use line::{Away, Heard, Line, Lines};
pub use patience::{Next, Patience};
pub use visit::{Visited, serve};

use rekindle_env::{BoxFuture, Stream};

/// The way of one machine's calls to the host that serves a volume.
pub trait Way: Send + Sync {
    /// Opens a connection to that host. The error says why there is none.
    fn open(&self) -> BoxFuture<'_, Result<Box<dyn Stream>, String>>;
    /// Whether the volume is served elsewhere than where the last connection went.
    fn has_moved(&self) -> BoxFuture<'_, bool>;
}
