//! Tests of the whole log.
