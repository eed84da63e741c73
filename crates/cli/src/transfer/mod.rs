//! Images of disks, into volumes and out of them: raw ones by our own NBD client, others by
//! `qemu-img`; trees of files in [`trees`].

mod mark;
mod pipe;
mod qcow2;
mod qemu;
mod raw;
mod stream;
mod target;
pub mod trees;

use crate::arguments::{Common, Create, Export, Format, Import, Writes};
use crate::client::{Client, Interrupts, volume_path};
use crate::command::{client, create};
use crate::nbd::{self, Breaker};
use mark::Mark;
use rekindle_base::Kind;
use rekindle_base::limits::SECTOR_BYTES;
use rekindle_base::units::format_size;
use rekindle_env::Address;
use rekindle_front::http::api::Volume;
use rekindle_nbd_client::{NbdClient, Refusal};
use rekindle_supervise::endpoints;
use rekindle_supervise::signals::StopSignals;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use target::Target;

/// Time between two looks for Ctrl-C, and at the progress.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait of an import for clients of its volume that are on their way out.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// The progress of a transfer, for a user who watches; listens for Ctrl-C.
struct Watch<'a> {
    what: &'static str,
    /// Ends a wait for an answer at Ctrl-C.
    breaker: Breaker,
    bar: indicatif::ProgressBar,
    interrupts: Interrupts<'a>,
    began: Instant,
    looked: Instant,
    total: u64,
}

#[expect(clippy::disallowed_methods, reason = "the command line has no Env")]
fn now() -> Instant {
    Instant::now()
}

impl<'a> Watch<'a> {
    /// Makes a watch, which listens for Ctrl-C from now on.
    fn new(client: &'a Client, what: &'static str) -> Outcome<Self> {
        let (bar, interrupts) = (output::progress(), client.interrupts()?);
        let breaker = Breaker::default();
        break_off_at_signal(&breaker)?;
        Ok(Self { what, breaker, bar, interrupts, began: now(), looked: now(), total: 0 })
    }

    /// Starts the clock: `total` bytes are moved from now on.
    fn begin(&mut self, total: u64) {
        (self.total, self.began) = (total, now());
    }

    fn broken_off(&self) -> Failure {
        Failure::new(format!("the {} was broken off", self.what)).kind(Kind::Unavailable)
    }

    /// Opens a connection that ends when the user ends the transfer.
    fn connect(&self, place: &Address, name: &str, patience: Duration) -> Outcome<NbdClient> {
        nbd::open_until(place, name, patience, &self.breaker).map_err(|error| broken(place, &error))
    }

    /// Judges a failure: a connection that we have cut is no failure of the daemon.
    fn judged<T>(&self, outcome: Outcome<T>) -> Outcome<T> {
        outcome.map_err(|failure| match self.breaker.is_broken() {
            true => self.broken_off(),
            false => failure,
        })
    }

    /// Shows that `done` bytes of the disk are dealt with. Fails when the user ends the transfer.
    fn look(&mut self, done: u64) -> Outcome {
        let time = now();
        if time - self.looked < LOOK {
            return Ok(());
        }
        self.looked = time;
        let left = (self.total - done.min(self.total)) as f64;
        let eta = (time - self.began).as_secs_f64() * left / done.max(1) as f64;
        let eta = Duration::try_from_secs_f64(eta).unwrap_or_default().as_millis();
        let line = format!(
            "{}: {} of {}, about {} left",
            self.what,
            format_size(done),
            format_size(self.total),
            output::time(u64::try_from(eta).unwrap_or(u64::MAX))
        );
        output::show_share(&self.bar, &line, done, self.total);
        if self.interrupts.interrupted() || self.breaker.is_broken() {
            return Err(self.broken_off());
        }
        Ok(())
    }
}

/// Ends the wait for an answer at Ctrl-C: while the log is full or the store away, a request may be
/// answered after minutes.
fn break_off_at_signal(breaker: &Breaker) -> Outcome {
    let failed = |error| Failure::new("cannot hear signals").because(error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let mut signals = {
        let _entered = runtime.enter();
        StopSignals::new().map_err(failed)?
    };
    let breaker = breaker.clone();
    let listen = move || {
        runtime.block_on(signals.next());
        breaker.break_off();
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(failed)?;
    Ok(())
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Refuses a file system: it is no disk. `instead` is the command for it.
fn check_kind(volume: &Volume, instead: &str) -> Outcome {
    if volume.kind != "file" {
        return Ok(());
    }
    Err(Failure::new(format!("volume '{}' is a file system, and no disk", volume.name))
        .next(format!("`rekindle fs {instead}` copies folders"))
        .kind(Kind::Unsupported))
}

/// `volume import`.
pub fn import(common: &Common, import: &Import) -> Outcome {
    if stream::is_standard(&import.file) {
        return import_stream(common, import);
    }
    let client = client(common)?;
    let mut watch = Watch::new(&client, "import")?;
    let format = import.format.unwrap_or(format_of(&import.file));
    if format == Format::Qcow2 && import.resume {
        return Err(Failure::usage("only a raw image can be gone on with").next(
            "`--overwrite` begins again, or `qemu-img convert -O raw` makes a raw one first",
        ));
    }
    let (image_bytes, note) = match format {
        Format::Raw => (raw::size(&import.file)?, note(import)?),
        Format::Qcow2 => (qemu::size(import)?, None),
    };
    let (volume, fresh) = prepare(&client, import, image_bytes)?;
    let place = endpoints::nbd(client.dir())?;
    let mark = Mark::new(client.dir(), &volume.id, &import.file)?;
    if import.resume && !fresh {
        mark.check(&import.volume)?;
    }
    mark.set();
    watch.begin(image_bytes);
    let written = match format {
        Format::Raw => raw::import(&place, import, fresh, &mut watch),
        Format::Qcow2 => qemu::import(import, &place, fresh, &mut watch).and_then(|written| {
            // Behind the image lies the former content of the volume.
            let tail = image_bytes.next_multiple_of(SECTOR_BYTES);
            let mut cleared = || raw::clear(&place, &import.volume, tail, &mut watch);
            if fresh { Ok(()) } else { cleared() }.map(|()| written)
        }),
    };
    let written = watch.judged(written).map_err(|failure| how_to_go_on(failure, format))?;
    mark.remove();
    drop(watch);
    say_imported(common, &import.volume, (image_bytes, written), note);
    Ok(())
}

/// `volume import -`: an image whose size is known at its end only, and that cannot be read again.
fn import_stream(common: &Common, import: &Import) -> Outcome {
    if import.format == Some(Format::Qcow2) {
        return Err(Failure::usage("only a raw image can come from standard input"));
    }
    if import.resume {
        return Err(Failure::usage("what comes from standard input cannot be compared again")
            .next("--overwrite begins from the start"));
    }
    let client = client(common)?;
    let mut watch = Watch::new(&client, "import")?;
    let found: Outcome<Volume> = client.get(&volume_path(&import.volume, ""));
    if import.size.is_none() && found.is_err_and(|why| why.kind == Kind::NotFound.to_string()) {
        return Err(Failure::usage("the size of what comes from standard input is not known")
            .next("say how large the volume is to be, as in --size 20G"));
    }
    let (_, fresh) = prepare(&client, import, import.size.unwrap_or(0))?;
    let place = endpoints::nbd(client.dir())?;
    let mut note = None;
    let look = |head: &[u8]| note = note_on(head, &import.file, import.format);
    let imported = raw::import_stream(&place, import, fresh, &mut watch, look);
    let bytes = watch.judged(imported).map_err(|failure| how_to_go_on(failure, Format::Qcow2))?;
    drop(watch);
    say_imported(common, &import.volume, bytes, note);
    Ok(())
}

fn say_imported(
    common: &Common,
    volume: &str,
    (image_bytes, written): (u64, u64),
    note: Option<String>,
) {
    if common.json {
        return output::json(&json!({
            "imported": volume, "image_bytes": image_bytes, "written_bytes": written, "note": note,
        }));
    }
    let size = format_size(image_bytes);
    output::line(&format!("volume '{volume}' holds the image of {size}; it is flushed"));
    if let Some(note) = note {
        output::tell(&format!("rekindle: {note}"));
    }
}

/// Chooses the format by the file's name: the guest has written the disk's content, which must not
/// choose how the disk is read.
fn format_of(file: &Path) -> Format {
    let ends_so = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("qcow2"));
    if ends_so { Format::Qcow2 } else { Format::Raw }
}

/// A kind of file that is no raw image, by bytes at its beginning.
struct FileKind {
    name: &'static str,
    at: usize,
    magic: &'static [u8],
    mend: &'static str,
}

const UNPACK: &str = "if it is one, unpack it first";
const CONVERT: &str =
    "if it is one that you trust, make a raw image of it first: qemu-img convert -O raw";
const QCOW2: &str = "if it is one that you trust, import it with --format qcow2";

const KINDS: [FileKind; 8] = [
    FileKind { name: "a qcow2 image", at: 0, magic: b"QFI\xfb", mend: QCOW2 },
    FileKind { name: "a VMDK image", at: 0, magic: b"KDMV", mend: CONVERT },
    FileKind { name: "a VHDX image", at: 0, magic: b"vhdxfile", mend: CONVERT },
    FileKind { name: "a VDI image", at: 64, magic: b"\x7f\x10\xda\xbe", mend: CONVERT },
    FileKind { name: "a gzip file", at: 0, magic: b"\x1f\x8b\x08", mend: UNPACK },
    FileKind { name: "an xz file", at: 0, magic: b"\xfd7zXZ\0", mend: UNPACK },
    FileKind { name: "a zstd file", at: 0, magic: b"\x28\xb5\x2f\xfd", mend: UNPACK },
    FileKind { name: "a bzip2 file", at: 0, magic: b"BZh", mend: UNPACK },
];

/// Returns a note on a choice that the user may not have meant.
fn note(import: &Import) -> Outcome<Option<String>> {
    let file = &import.file;
    let head = qcow2::begin(file).map_err(|error| unusable(file, &error))?;
    Ok(note_on(&head, file, import.format))
}

/// The same, by the first bytes of the file.
fn note_on(head: &[u8], file: &Path, format: Option<Format>) -> Option<String> {
    let known = KINDS
        .iter()
        .find(|kind| head.get(kind.at..).is_some_and(|head| head.starts_with(kind.magic)));
    let note = |kind: &FileKind| {
        let FileKind { name, mend, .. } = kind;
        format!(
            "{} begins as {name} does, and was taken as a raw image, byte by byte; {mend}",
            file.display()
        )
    };
    known.filter(|_| format.is_none()).map(note)
}

fn how_to_go_on(failure: Failure, format: Format) -> Failure {
    if failure.next.is_some() {
        return failure;
    }
    let how = match format {
        Format::Raw => "with --resume goes on",
        Format::Qcow2 => "with --overwrite begins again",
    };
    failure.next(format!("the volume holds a part of the image; the same command {how}"))
}

/// Makes the volume, or checks that it may be used. Returns whether it is known to be all zeros.
fn prepare(client: &Client, import: &Import, image_bytes: u64) -> Outcome<(Volume, bool)> {
    let path = volume_path(&import.volume, "");
    let found: Option<Volume> = match client.get(&path) {
        Ok(volume) => Some(volume),
        Err(failure) if failure.kind == Kind::NotFound.to_string() => None,
        Err(failure) => return Err(failure),
    };
    found.iter().try_for_each(|volume| check_kind(volume, "import"))?;
    let needed = image_bytes.next_multiple_of(SECTOR_BYTES);
    let size = found.as_ref().map_or(import.size.unwrap_or(needed), |volume| volume.size);
    if size < needed {
        return Err(Failure::usage(format!(
            "the image of {image_bytes} bytes does not fit into a volume of {size}"
        ))
        .next("choose a larger volume"));
    }
    match found {
        None if size == 0 => Err(Failure::usage("the image is empty")),
        None => {
            create::agree(import.policy, import.ack)?;
            let wanted = Create {
                name: import.volume.clone(),
                size,
                writes: Writes {
                    policy: import.policy,
                    ack: import.ack,
                    copies: 0,
                    on_missing_copy: rekindle_staging::MissingCopy::default(),
                },
                kind: None,
                block_size: None,
            };
            Ok((client.post("/api/v1/volumes", &create::request(&wanted))?, true))
        }
        Some(volume) if import.overwrite || import.resume => {
            let volume = settled(client, &path, import, volume)?;
            may_be_written(import, &volume)?;
            Ok((volume, false))
        }
        Some(volume) => {
            let goes_on = !stream::is_standard(&import.file)
                && import.format.unwrap_or(format_of(&import.file)) == Format::Raw
                && Mark::new(client.dir(), &volume.id, &import.file)
                    .and_then(|mark| mark.check(&import.volume))
                    .is_ok();
            Err(Failure::new(format!("there is a volume '{}' already", import.volume))
                .next(match goes_on {
                    true => {
                        "--resume goes on with the import that broke off; --overwrite begins again"
                    }
                    false => "--overwrite loses its content",
                })
                .kind(Kind::Exists))
        }
    }
}

/// Returns the volume once its clients have gone, or as it is after [`SETTLE_TIME`]. The node
/// counts the connection of an import that was just broken off until it has written all that it
/// got.
#[expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]
fn settled(client: &Client, path: &str, import: &Import, volume: Volume) -> Outcome<Volume> {
    let began = Instant::now();
    let mut volume = volume;
    while volume.clients > 0 && !import.force && began.elapsed() < SETTLE_TIME {
        std::thread::sleep(LOOK);
        volume = client.get(path)?;
    }
    Ok(volume)
}

/// Refuses an import that may not write over an existing volume.
fn may_be_written(import: &Import, volume: &Volume) -> Outcome {
    let name = &import.volume;
    if let Some(size) = import.size.filter(|&size| size != volume.size) {
        let (has, wanted) = (format_size(volume.size), format_size(size));
        return Err(Failure::usage(format!("volume '{name}' has {has}, and not {wanted}")).next(
            format!(
                "--size is for a new volume: `rekindle volume resize {} ...`",
                output::quoted(name)
            ),
        ));
    }
    if volume.clients > 0 && !import.force {
        let clients = volume.clients;
        return Err(Failure::new(format!(
            "volume '{name}' has {clients} client(s): its content would change under them"
        ))
        .next("disconnect them first, or insist with --force")
        .kind(Kind::Conflict));
    }
    Ok(())
}

/// `volume export`.
pub fn export(common: &Common, export: &Export) -> Outcome {
    let client = client(common)?;
    let mut watch = Watch::new(&client, "export")?;
    let format = export.format.unwrap_or(format_of(&export.file));
    if format == Format::Qcow2 && export.skip_damaged {
        return Err(Failure::usage("--skip-damaged is for raw files")
            .next("export it raw, then `qemu-img convert -f raw -O qcow2`"));
    }
    let volume: Volume = client.get(&volume_path(&export.name, ""))?;
    check_kind(&volume, "export")?;
    let place = endpoints::nbd(client.dir())?;
    let source = match &export.snapshot {
        Some(snapshot) => format!("{}@{snapshot}", export.name),
        None => export.name.clone(),
    };
    let target = Target::open(&export.file, export.force, &watch.breaker)?;
    let (bytes, damaged) = match format {
        Format::Raw => {
            let read = raw::export(&place, &source, &target, export.skip_damaged, &mut watch);
            watch.judged(read)?
        }
        Format::Qcow2 if target.is_device() || target.is_stream() => {
            let what = "only a raw image is written over a disk, or to standard output";
            return Err(Failure::usage(what).next("add --format raw"));
        }
        Format::Qcow2 => {
            // A snapshot may have another size than its volume.
            let bytes = watch.connect(&place, &source, raw::PATIENCE)?.size;
            qemu::export(&place, &source, &target.file, &mut watch)?;
            (bytes, Vec::new())
        }
    };
    let is_stream = target.is_stream();
    watch.judged(target.finish())?;
    drop(watch);
    if is_stream {
        // Standard output has the disk.
        for bytes in &damaged {
            let stretch = raw::stretch(bytes);
            output::tell(&format!("{stretch} cannot be read: zeros are in their place"));
        }
        return Ok(());
    }
    if common.json {
        let damaged: Vec<_> = damaged
            .iter()
            .map(|bytes| json!({"offset": bytes.start, "bytes": bytes.end - bytes.start}))
            .collect();
        output::json(&json!({
            "exported": export.name, "snapshot": export.snapshot, "file": export.file,
            "bytes": bytes, "damaged": damaged,
        }));
        return Ok(());
    }
    let (size, file) = (format_size(bytes), export.file.display());
    let of =
        export.snapshot.as_ref().map_or_else(String::new, |name| format!("snapshot '{name}' of "));
    output::line(&format!("{of}volume '{}' of {size} is in {file}", export.name));
    for bytes in &damaged {
        let stretch = raw::stretch(bytes);
        output::line(&format!("  {stretch} cannot be read: zeros are in their place"));
    }
    Ok(())
}

fn unusable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot use {}", file.display())).because(error)
}

fn broken(place: &Address, error: &std::io::Error) -> Failure {
    if let Some(Refusal { export, text, .. }) = Refusal::of(error) {
        return Failure::new(format!("the daemon does not open '{export}'")).because(text);
    }
    Failure::new(format!("the daemon at {place} stopped answering"))
        .because(error)
        .kind(Kind::Unavailable)
}
