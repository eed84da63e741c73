//! A file volume: inodes, directories and extents over chunks of content.

mod files;
mod types;

pub use files::Files;
pub use types::*;
