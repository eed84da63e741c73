//! `rekindle inspect`: decode anything of ours, offline, read-only.
//!
//! The first bytes of an object tell its kind; where they are damaged, its name does. The decoders
//! are those of the crates that write the formats.

mod arena;
mod folder;
mod pack;
mod record;
mod report;
mod segment;

use crate::arguments::{Common, Inspect};
use rekindle_base::Kind;
use rekindle_datastore::key;
use rekindle_terminal::failure::{EXIT_FAILED, Failure, Outcome};
use report::Report;
use rustix::fs::OFlags;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longest object that is read whole, bytes: the longest pack.
const BYTES_MAX: u64 = 1 << 30;

/// Runs the command; exit code 1 when something is damaged.
pub fn run(common: &Common, inspect: &Inspect) -> Outcome<u8> {
    let report = report(common, inspect)?;
    common.shown(&report.json(), || report.print(inspect.all));
    Ok(if report.problems.is_empty() { 0 } else { EXIT_FAILED })
}

fn report(common: &Common, inspect: &Inspect) -> Outcome<Report> {
    let path = PathBuf::from(&inspect.path);
    if let (None, true) = (&inspect.store, path.exists()) {
        return of_path(&inspect.path, &path);
    }
    let url = match &inspect.store {
        Some(url) => url.clone(),
        None => {
            crate::folder::of_client(common.dir.as_deref())?.join("store").display().to_string()
        }
    };
    let missing = || {
        Failure::new(format!("there is neither a file nor an object '{}'", inspect.path))
            .because(format!("objects were looked for in {url}"))
            .next("name a file, or a key of the store that --store or --dir names")
            .kind(Kind::NotFound)
    };
    // Opening a store makes its folder; inspect makes nothing.
    if let Ok(rekindle_datastore::Url::Folder(folder)) = url.parse()
        && !folder.is_dir()
    {
        return Err(missing());
    }
    let bytes = fetch(&url, &inspect.path)?.ok_or_else(missing)?;
    Ok(of_bytes(&inspect.path, &bytes))
}

fn of_path(subject: &str, path: &Path) -> Outcome<Report> {
    if path.is_dir() {
        return folder::report(subject, path);
    }
    let mut magic = [0; 8];
    let failed = |error| Failure::new(format!("cannot read {subject}")).because(error);
    let read_magic = open(path).and_then(|mut file| file.read_exact(&mut magic));
    if read_magic.is_ok() && magic == *b"RKNDLwrm"
        || path.extension().is_some_and(|extension| extension == "warm")
    {
        return arena::report(subject, path);
    }
    let bytes = read(path).map_err(|failure| failure.cause.clone().map_or(failure, failed))?;
    Ok(of_bytes(subject, &bytes))
}

/// Reports on bytes; their beginning tells their kind, or else their name.
fn of_bytes(subject: &str, bytes: &[u8]) -> Report {
    let begins = |magic: &[u8]| bytes.starts_with(magic);
    let named = |part: &str| subject.contains(part);
    if begins(b"RKNDLseg") || named(".seg") {
        segment::report(subject, bytes)
    } else if begins(b"RKNDLdur") || named("known-end") {
        segment::known_end(subject, bytes)
    } else if begins(b"RKPACK\0\0") {
        pack::report(subject, bytes)
    } else if begins(b"RKMOVED\0") {
        pack::moved(subject, bytes)
    } else if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        record::report(subject, bytes)
    } else if named("packs/") {
        pack::report(subject, bytes)
    } else if named("moved/") {
        pack::moved(subject, bytes)
    } else if named(".json") || key::MARKED.into_iter().any(named) {
        record::report(subject, bytes)
    } else {
        let mut report = Report::new(subject, "unknown");
        report.problem("neither its first bytes nor its name tell what it is");
        report
    }
}

/// Opens a file. Another user may have put a pipe there: without `NONBLOCK`, the open would wait.
#[expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    std::fs::File::options().read(true).custom_flags(flags).open(path)
}

/// Reads a file, at most [`BYTES_MAX`].
fn read(path: &Path) -> Outcome<Vec<u8>> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read {}", path.display())).because(error)
    };
    let mut bytes = Vec::new();
    open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes)).map_err(failed)?;
    Ok(bytes)
}

/// Fetches an object of a store; `None` when it does not exist.
fn fetch(url: &str, key: &str) -> Outcome<Option<Vec<u8>>> {
    let failed = |error: rekindle_datastore::Error| {
        Failure::new(format!("cannot read '{key}' in {url}")).because(&error).kind(error.kind())
    };
    let (env, runtime) = rekindle_env::real::env()?;
    runtime.block_on(async {
        let store = rekindle_datastore::open(&env, url).await.map_err(failed)?;
        match store.get(key).await {
            Ok((bytes, _)) => Ok(Some(bytes.to_vec())),
            // A text that cannot be a key names no object either.
            Err(rekindle_datastore::Error::NotFound(_) | rekindle_datastore::Error::Invalid(_)) => {
                Ok(None)
            }
            Err(error) => Err(failed(error)),
        }
    })
}
