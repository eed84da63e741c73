//! Where objects really lie.
