//! A cluster: nodes over one store that keep copies of one another's logs, and take lost nodes
//! over.
//!
//! The copies of a node's log lie as its own flash folder lies, so that a node can start from them.
//! [`rekindle_log::Replica`] says what each call means; a holder answers when the effect is
//! durable. `docs/notes/fencing.md` says why two lives of a node never serve at one time.
//!
//! | module | its part | calls |
//! | --- | --- | --- |
//! | `machine` | the fence, as pure decisions | none |
//! | `owner` | a life with copies elsewhere: its holders | `machine`, `peer`, `beats` |
//! | `watch` | a holder's watch over silent owners, the takeover | `machine`, `holder` |
//! | `holder` | the copies of all nodes: promises, sessions, budget | `machine`, `copies` |
//! | `copies` | the copies of one node's log on flash | `format` |
//! | `serve` | accepts other nodes, and bounds them | `hello`, `connection`, `holder` |
//! | `peer` | the replica that a log calls | `calls` |
//! | `beats` | the beats to one holder | `calls` |
//! | `calls` | connects to other nodes, and knows who calls | `hello`, `tls`, `roster` |
//! | `hello` | both ends prove that they know the secret | `connection` |
//! | `forward` | sessions of clients at other hosts | `calls` |
//! | `connection` | sends and receives frames in time | `wire` |
//! | `wire` | the bytes of a frame | none |
//! | `tls` | keys and encryption | none |
//! | `secret` | the secret of the cluster | none |
//! | `roster` | the nodes, as their records name them | none |
//! | `format` | the record of a sync that ends | none |

mod beats;
mod calls;
mod connection;
mod copies;
mod format;
pub mod forward;
mod hello;
mod holder;
pub mod limits;
pub mod machine;
pub mod owner;
mod peer;
mod room;
pub mod roster;
mod secret;
mod serve;
#[cfg(test)]
mod tests;
mod tls;
pub mod watch;
pub mod wire;

pub use calls::Calls;
pub use format::Ending;
pub use holder::{Held, HeldNode, Holder, adopt};
pub use peer::Peer;
pub use secret::{BadToken, Secret};
pub use serve::{Desk, Drain, serve};
pub use tls::{Channel, Fingerprint, Key, Tls};

/// The newest version that this binary knows of each format of this crate.
pub const FORMATS: [(&str, u32); 1] = [("copies", format::VERSION)];
