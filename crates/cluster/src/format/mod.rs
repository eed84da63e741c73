//! What a holder writes beside the copies. Byte tables in `docs/format/copies.md`.

mod ending;

pub use ending::Ending;
pub(crate) use ending::VERSION;
