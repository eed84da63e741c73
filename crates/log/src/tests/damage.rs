//! Bits that turned, files that are gone: seen, reported, and confined.

use super::*;
