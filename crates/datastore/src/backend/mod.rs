//! The backends: the places where objects really lie.

pub mod dir;
pub mod mem;
pub mod s3;
