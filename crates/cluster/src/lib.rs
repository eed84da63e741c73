//! Copies of logs on other nodes: the holder that keeps them on flash, and the peer that a log's
//! copier calls. Which nodes are alive, which of them holds copies for which, and a takeover are
//! not here yet.
//!
//! The copies of a node's log lie as its own flash folder lies, so that a node can start from them.
//! [`rekindle_log::Replica`] says what each call means; a holder answers when the effect is
//! durable.
//!
//! | module | its part | calls |
//! | --- | --- | --- |
//! | `peer` | the replica that a log calls | `hello`, `connection` |
//! | `serve` | accepts peers, and bounds them | `hello`, `connection`, `holder` |
//! | `hello` | both ends prove that they know the secret | `connection` |
//! | `connection` | sends and receives frames in time | `wire` |
//! | `wire` | the bytes of a frame | none |
//! | `holder` | the copies of all nodes: sessions, budget, release | `copies` |
//! | `copies` | the copies of one node's log on flash | `format` |
//! | `format` | the record of a sync that ends | none |

mod connection;
mod copies;
mod format;
mod hello;
mod holder;
pub mod limits;
mod peer;
mod room;
mod serve;
#[cfg(test)]
mod tests;
pub mod wire;

pub use format::Ending;
pub use hello::{Identity, Secret};
pub use holder::{Held, HeldNode, Holder, adopt};
pub use peer::{Holders, Peer, Settings};
pub use serve::serve;

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] = [("copies", format::VERSION)];
