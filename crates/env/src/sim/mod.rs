//! Seeded twins with faults.
