//! Cutting a stream into chunks.
