//! The experiments, one file a question.

mod appliance;
mod beside;
mod burst;
mod cold_attach;
mod cold_read;
mod copies;
mod files;
mod files_ahead;
mod files_far;
mod files_names;
mod files_nfs;
mod files_null;
mod files_open;
mod flash;
mod flush;
mod forwarded;
mod ganesha;
mod group_commit;
mod idle;
mod idle_sweep;
mod images;
pub mod ingest;
mod limits;
mod list;
mod many;
mod memory;
mod moves;
mod overload;
mod overwrites;
mod redis;
mod restart;
mod stall;
mod start;
mod stop;
mod takeover;
mod tree;
mod trickle;

use crate::rounds::Bench;
use crate::table::Row;
use anyhow::{Context, Result, bail};
use std::fmt::Write;

/// The secret of the content stores that are measured alone.
const SECRET: [u8; 32] = [7; 32];

/// The settings of a content store that is measured alone: the node's.
fn content_config() -> rekindle_content::Config {
    rekindle_content::Config {
        secret: SECRET,
        compression: rekindle_content::Compression::Zstd,
        parity: None,
        pack_bytes: 16 << 20,
        cache_bytes: 256 << 20,
        index_bytes: 32 << 20,
        uploads: 4,
    }
}

/// An experiment.
pub struct Experiment {
    pub name: &'static str,
    pub question: &'static str,
    pub run: fn(&Bench) -> Result<Vec<Row>>,
}

/// Experiments that belong together: one run, and one section of docs/benchmarks.md.
struct Suite {
    name: &'static str,
    question: &'static str,
    /// The experiments in the order of the table.
    experiments: &'static [Experiment],
}

const SUITES: &[Suite] = &[
    Suite { name: "block", question: "how fast a virtual disk is", experiments: BLOCK },
    Suite { name: "restart", question: "how soon it is back", experiments: RESTART },
    Suite { name: "store", question: "what the content store costs", experiments: STORE },
    Suite { name: "peers", question: "what copies on other hosts cost", experiments: PEERS },
    Suite { name: "files", question: "how fast a mounted file system is", experiments: FILES },
];

const FILES: &[Experiment] = &[
    Experiment {
        name: "files-small",
        question: "small files, durable and not, against a folder of the same disk",
        run: files::small,
    },
    Experiment {
        name: "files-stream",
        question: "a large file into the store and out of it, against the content store alone",
        run: files::stream,
    },
    Experiment {
        name: "files-far",
        question: "a large file out of a store of 30 ms, against that store without files",
        run: files_far::read_far,
    },
    Experiment {
        name: "files-ahead",
        question: "the same, against plain LRU and only data fetched ahead",
        run: files_ahead::run,
    },
    Experiment {
        name: "files-tree",
        question: "a tree's files into a folder store, and again with 5 % changed: borg, restic",
        run: tree::files,
    },
    Experiment {
        name: "files-remove",
        question: "a file of 100 GiB removed",
        run: files_far::remove,
    },
    Experiment {
        name: "files-names",
        question: "many names in one directory, against a folder of the same disk",
        run: files_names::names,
    },
    Experiment {
        name: "files-nfs",
        question: "names and streams over NFS 4.1, against nfs-ganesha over a folder of this disk",
        run: files_nfs::run,
    },
    Experiment {
        name: "files-null",
        question: "a stream through a mount, against a FUSE file system that does nothing",
        run: files_null::run,
    },
    Experiment {
        name: "files-open",
        question: "killed while a client of NFS has a file open, until a stranger has opened it",
        run: files_open::run,
    },
];

const PEERS: &[Experiment] = &[
    Experiment {
        name: "copies-stream",
        question: "a stream with one and with two copies, against one without",
        run: copies::streams,
    },
    Experiment {
        name: "copies-qd1",
        question: "what a copy adds to one write, against a bare write and an echo",
        run: copies::single,
    },
    Experiment {
        name: "forwarded",
        question: "a client at another host than the owner's, against one at the owner's",
        run: forwarded::run,
    },
    Experiment {
        name: "moves",
        question: "what a client sees of a planned move of its volume",
        run: moves::run,
    },
    Experiment {
        name: "takeover",
        question: "what a client sees of the death of its volume's host",
        run: takeover::run,
    },
];

const STORE: &[Experiment] = &[
    Experiment {
        name: "tree",
        question: "a tree's image into a folder store, and again with 5 % changed: borg, restic",
        run: tree::run,
    },
    Experiment {
        name: "images",
        question: "duplicates found in a second image that shares most files: borg, restic",
        run: images::run,
    },
    Experiment {
        name: "overwrites",
        question: "bytes into the store and its space for random 4 KiB writes, by compact_below",
        run: overwrites::run,
    },
    Experiment {
        name: "trickle",
        question: "100 volumes that write 4 KiB every few seconds: requests and space",
        run: trickle::run,
    },
    Experiment {
        name: "idle-sweep",
        question: "requests of a sweep when nothing has changed",
        run: idle_sweep::run,
    },
    Experiment {
        name: "list",
        question: "160,000 packs listed, 60,000 names listed, 10,000 volumes created",
        run: list::run,
    },
    Experiment {
        name: "cold-read",
        question: "cold reads from a store of 20 ms, against that store without a volume",
        run: cold_read::run,
    },
    Experiment {
        name: "beside",
        question: "a quiet volume beside another's stream, against two plain files",
        run: beside::run,
    },
];

const RESTART: &[Experiment] = &[
    Experiment {
        name: "many",
        question: "the first reply of a node with many volumes, against one with few",
        run: many::run,
    },
    Experiment {
        name: "stall",
        question: "what a client sees of a kill under load",
        run: stall::run,
    },
    Experiment {
        name: "cold-attach",
        question: "round trips to a distant store until a volume is open",
        run: cold_attach::run,
    },
    Experiment { name: "stop", question: "a stop with 7,168 attached volumes", run: stop::run },
    Experiment {
        name: "overlay",
        question: "killed with 1 GiB of unfinished writes: when is the overlay ready",
        run: restart::run,
    },
    Experiment {
        name: "redis",
        question: "a kill with 1 GB of data, against redis",
        run: redis::run,
    },
    Experiment {
        name: "ganesha",
        question: "a kill while a client has state, against an NFS server's grace period",
        run: ganesha::run,
    },
    Experiment {
        name: "appliance",
        question: "a whole machine starts with 50 to 400 volumes: cold, and with the host's RAM",
        run: appliance::run,
    },
];

const BLOCK: &[Experiment] = &[
    Experiment { name: "limits", question: "what this machine can do at best", run: limits::run },
    Experiment {
        name: "flash-qd1",
        question: "a write acknowledged from flash, against the disk itself",
        run: flash::one,
    },
    Experiment {
        name: "flash-qd32",
        question: "group commit, against a bare log thread",
        run: flash::many,
    },
    Experiment {
        name: "memory-qd1",
        question: "writes acknowledged from memory, against nbdkit memory",
        run: |bench| memory::run(bench, "memory-qd1", "randwrite", 1),
    },
    Experiment {
        name: "memory-qd32",
        question: "the same, 32 at a time",
        run: |bench| memory::run(bench, "memory-qd32", "randwrite", 32),
    },
    Experiment {
        name: "read-qd1",
        question: "cached reads, against nbdkit memory",
        run: |bench| memory::run(bench, "read-qd1", "randread", 1),
    },
    Experiment {
        name: "read-qd32",
        question: "the same, 32 at a time",
        run: |bench| memory::run(bench, "read-qd32", "randread", 32),
    },
    Experiment {
        name: "flush",
        question: "a FLUSH after each write, against qemu-nbd on a raw file",
        run: flush::run,
    },
    Experiment {
        name: "burst",
        question: "a burst into a slow store, against waiting for the store",
        run: burst::run,
    },
    Experiment {
        name: "overload",
        question: "a burst that does not fit the flash budget",
        run: overload::run,
    },
    Experiment {
        name: "ingest",
        question: "content on one core, against chunk + hash + compress alone",
        run: ingest::run,
    },
    Experiment {
        name: "restart",
        question: "killed with 1 GiB of unfinished writes: when is the overlay ready",
        run: restart::run,
    },
    Experiment {
        name: "start",
        question: "a clean volume's first reply after exec",
        run: start::run,
    },
    Experiment { name: "idle", question: "memory of a thousand idle volumes", run: idle::run },
];

/// The suites and their experiments, for the help.
pub fn list() -> String {
    let mut list = String::new();
    for suite in SUITES {
        let _ = writeln!(list, "\n{}: {}", suite.name, suite.question);
        for experiment in suite.experiments {
            let _ = writeln!(list, "  {:<12} {}", experiment.name, experiment.question);
        }
    }
    list
}

/// The experiments of a suite, or those of them that `only` names.
pub fn chosen(name: &str, only: &[String]) -> Result<Vec<&'static Experiment>> {
    let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
    let suite = SUITES.iter().find(|suite| suite.name == name);
    let suite = suite
        .with_context(|| format!("there is no suite '{name}': there are {}", names.join(", ")))?;
    let names: Vec<_> = suite.experiments.iter().map(|experiment| experiment.name).collect();
    if let Some(slip) = only.iter().find(|only| !names.contains(&only.as_str())) {
        bail!("'{name}' has no experiment '{slip}': it has {}", names.join(", "));
    }
    let is_chosen = |one: &&Experiment| only.is_empty() || only.iter().any(|name| name == one.name);
    Ok(suite.experiments.iter().filter(is_chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_named_with_what_there_is() {
        let only = |name: &str| [name.to_owned()];
        for (suite, name, named) in [
            ("blocks", "flush", "blocks"),
            ("restart", "flush", "stall"),
            ("block", "flash", "flash-qd1"),
        ] {
            let error = chosen(suite, &only(name)).err().expect("a slip").to_string();
            assert!(error.contains(named), "{error}");
        }
        assert_eq!(chosen("block", &only("flush")).unwrap().len(), 1);
        assert!(chosen("block", &[]).unwrap().len() > 1);
    }
}
