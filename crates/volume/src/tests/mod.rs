//! Volumes over a simulated machine and a store in memory.

mod bed;
mod catalog;
mod collecting;
mod crash;
mod damage;
mod life;
mod naming;
mod random;
mod salvaging;
mod stopping;
mod watching;
