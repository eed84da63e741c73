//! Keeps a daemon serving: the supervisor, its worker, and what both hand to their successors.
//!
//! [`Service`] is `rekindle up`: it takes the folder, finds warm memory, opens the sockets, and
//! serves. By hand it becomes a supervisor (`supervisor`), which starts the worker (`child`) as
//! another process of this binary ([`worker`]) and another one when that dies (`restart`,
//! `memory_holder`). Under systemd it serves itself. `rekindle upgrade` leaves a request
//! ([`upgrade`]): the supervisor becomes the new binary by `exec` with everything kept open
//! (`reexec`), and [`resume_after_exec`] goes on there.
//!
//! Commands find a daemon by its folder ([`endpoints`]). The appliance, which keeps a virtual
//! machine in place of a worker, uses the same sockets ([`sockets`]) and locks.

#![warn(clippy::print_stderr, clippy::print_stdout)]

pub mod access;
mod child;
pub mod endpoints;
pub mod formats;
pub mod ivshmem;
mod memory;
mod memory_holder;
mod reexec;
mod restart;
mod service;
pub mod signals;
pub mod sockets;
mod supervisor;
pub mod upgrade;
pub mod worker;

pub use reexec::resume_after_exec;
pub use service::Service;
