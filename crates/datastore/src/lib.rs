//! Access to the shared capacity store: a folder or an S3 bucket that the operator already runs
//! well.
//!
//! [`Datastore`] is the contract; [`backend`]s fulfil it (`dir`, `s3`, `mem`). [`layer`]s stack on
//! it (retry, meter, latency and faults). `tests/conformance` is the suite that every backend
//! passes.
//!
//! Everything mutable in the store is a [`record`]: replaced by conditional write only, and judged
//! by reading back after any failure.

pub mod backend;
mod backoff;
mod contract;
mod error;
pub mod identity;
pub mod key;
pub mod layer;
pub mod limits;
mod open;
mod probe;
pub mod record;
mod secret;

pub use backoff::Policy;
pub use contract::{Datastore, Got, Listed, Removal, Room, Store, Tag, Version};
pub use error::Error;
pub use identity::{FORMATS, Identity};
pub use key::{name_key, name_of_key};
pub use open::{Url, open, open_known};
pub use probe::probe;
pub use secret::Secret;
