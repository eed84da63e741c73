//! Images of disks, into volumes and out of them: raw ones by our own client of NBD, others by `qemu-img`.

mod pipe;
mod qemu;
mod raw;

use crate::arguments::{Common, Create, Export, Format, Import};
use crate::client::{Client, Interrupts, escape};
use crate::command::{client, volume};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::supervise::endpoints;
use base::Kind;
use base::limits::SECTOR_BYTES;
use base::units::format_size;
use env::Address;
use front::http::api::Volume;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

const QCOW2: [u8; 4] = *b"QFI\xfb";
/// Between two looks at Ctrl-C and the progress.
const LOOK: Duration = Duration::from_millis(200);

/// How far a transfer is, for whoever watches; hears Ctrl-C.
struct Watch<'a> {
    what: &'static str,
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
    fn new(client: &'a Client, what: &'static str, total: u64) -> Outcome<Self> {
        let (bar, interrupts) = (output::progress(), client.interrupts()?);
        Ok(Self { what, bar, interrupts, began: now(), looked: now(), total })
    }

    /// `done` bytes of the disk are dealt with. An error when somebody wants it to end.
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
        if self.interrupts.interrupted() {
            return Err(
                Failure::new(format!("the {} was broken off", self.what)).kind(Kind::Unavailable)
            );
        }
        Ok(())
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `volume import`.
pub fn import(common: &Common, import: &Import) -> Outcome {
    let client = client(common)?;
    let format = match import.format {
        Some(format) => format,
        None => format_of(&import.file)?,
    };
    let image_bytes = match format {
        Format::Raw => raw::size(&import.file)?,
        Format::Qcow2 => qemu::size(&import.file)?,
    };
    let fresh = prepare(&client, import, image_bytes)?;
    let place = endpoints::nbd(client.dir())?;
    let written = match format {
        Format::Raw => {
            let watch = Watch::new(&client, "import", image_bytes)?;
            raw::import(&place, import, fresh, watch)
        }
        Format::Qcow2 if import.resume => Err(Failure::usage(
            "only a raw image can be gone on with",
        )
        .next("`--overwrite` begins again, or `qemu-img convert -O raw` makes a raw one first")),
        Format::Qcow2 => qemu::import(&import.file, &place, &import.volume, fresh),
    };
    let written = written.map_err(|failure| how_to_go_on(failure, format))?;
    if common.json {
        output::json(&json!({
            "imported": import.volume, "image_bytes": image_bytes, "written_bytes": written,
        }));
    } else {
        let size = format_size(image_bytes);
        output::line(&format!(
            "volume '{}' holds the image of {size}; it is flushed",
            import.volume
        ));
    }
    Ok(())
}

fn how_to_go_on(failure: Failure, format: Format) -> Failure {
    if failure.next.is_some() {
        return failure;
    }
    let how = if format == Format::Raw { "--resume" } else { "--overwrite" };
    failure
        .next(format!("the volume holds a part of the image; the same command with {how} goes on"))
}

/// Makes the volume, or sees that it may be used. Whether it is known to be all zeros.
fn prepare(client: &Client, import: &Import, image_bytes: u64) -> Outcome<bool> {
    let path = format!("/api/v1/volumes/{}", escape(&import.volume));
    let found: Option<Volume> = match client.get(&path) {
        Ok(volume) => Some(volume),
        Err(failure) if failure.kind == Kind::NotFound.to_string() => None,
        Err(failure) => return Err(failure),
    };
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
            volume::agree(import.policy, import.ack)?;
            let create = Create {
                name: import.volume.clone(),
                size,
                policy: import.policy,
                ack: import.ack,
                block_size: 16 << 10,
            };
            let _: Volume = client.post("/api/v1/volumes", &volume::request(&create))?;
            Ok(true)
        }
        Some(_) if import.overwrite || import.resume => Ok(false),
        Some(_) => Err(Failure::new(format!("there is a volume '{}' already", import.volume))
            .next("--resume goes on with an import that broke off; --overwrite loses its content")
            .kind(Kind::Exists)),
    }
}

/// `volume export`.
pub fn export(common: &Common, export: &Export) -> Outcome {
    let client = client(common)?;
    let ends_so = export.file.extension().is_some_and(|ending| ending == "qcow2");
    let format = export.format.unwrap_or(if ends_so { Format::Qcow2 } else { Format::Raw });
    if export.file.exists() && !export.force {
        return Err(Failure::new(format!("{} is there already", export.file.display()))
            .next("choose another name, or replace it with --force")
            .kind(Kind::Exists));
    }
    let volume: Volume = client.get(&format!("/api/v1/volumes/{}", escape(&export.name)))?;
    let place = endpoints::nbd(client.dir())?;
    let part = part_of(&export.file);
    match format {
        Format::Raw => {
            let watch = Watch::new(&client, "export", volume.size)?;
            raw::export(&place, &export.name, &part, watch)?;
        }
        Format::Qcow2 => qemu::export(&place, &export.name, &part)?,
    }
    finish(&part, &export.file)?;
    if common.json {
        output::json(
            &json!({ "exported": export.name, "file": export.file, "bytes": volume.size }),
        );
    } else {
        let size = format_size(volume.size);
        output::line(&format!(
            "volume '{}' of {size} is in {}",
            export.name,
            export.file.display()
        ));
    }
    Ok(())
}

fn part_of(file: &Path) -> std::path::PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// The file is whole: it gets its name, for good.
#[expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]
fn finish(part: &Path, file: &Path) -> Outcome {
    let attempt = || {
        File::open(part)?.sync_all()?;
        std::fs::rename(part, file)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    };
    attempt().map_err(|error| unusable(file, &error))
}

#[expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]
fn format_of(file: &Path) -> Outcome<Format> {
    let mut first = Vec::new();
    File::open(file)
        .and_then(|file| file.take(4).read_to_end(&mut first))
        .map_err(|error| unusable(file, &error))?;
    Ok(if first == QCOW2 { Format::Qcow2 } else { Format::Raw })
}

fn unusable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot use {}", file.display())).because(error)
}

fn broken(place: &Address, error: &std::io::Error) -> Failure {
    Failure::new(format!("the daemon at {place} stopped answering"))
        .because(error)
        .kind(Kind::Unavailable)
}
