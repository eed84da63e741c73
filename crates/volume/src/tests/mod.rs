//! Tests of volumes on a simulated machine and a store in memory.

mod bed;
#[path = "../../../staging/tests/staging/blocks.rs"]
mod blocks;
mod collecting;
mod crash;
mod damage;
mod held;
mod kinds;
mod late;
mod life;
mod lists;
mod losses;
#[path = "../../../staging/tests/staging/map.rs"]
mod map;
mod moving;
mod naming;
mod random;
mod record_cache;
mod resizing;
mod salvaging;
mod snapshots;
mod stopping;
mod sweeping;
mod trash;
mod versions;
mod watching;
