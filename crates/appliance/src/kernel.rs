//! The kernel of the distribution, and the modules that the appliance needs of it.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use rekindle_base::Kind;
use rekindle_terminal::failure::{Failure, Outcome};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's kernel for virtual machines: small, with every driver that is needed here.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Modules without which there is no disk or network.
const NEEDED: &[&str] = &["virtio_pci", "virtio_blk", "virtio_net", "ext4"];
/// Modules that are loaded if they exist: start settings from QEMU, the power button, persistent
/// memory.
const USEFUL: &[&str] = &["qemu_fw_cfg", "button", "evdev", "virtio_pmem", "nd_pmem", "virtio_rng"];

/// A kernel image and the folder of its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    pub image: PathBuf,
    pub modules: PathBuf,
    pub version: String,
}

/// A module, ready to be loaded.
pub struct Module {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Kernel {
    /// Finds the named kernel (an image, or a folder into which a package was unpacked), else the
    /// newest installed one.
    pub fn find(named: Option<&Path>, modules: Option<&Path>) -> Outcome<Self> {
        match named {
            Some(path) if path.is_dir() => Self::newest(path, modules),
            Some(path) => {
                let root = path.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
                Self::of_image(path.to_owned(), root, modules)
            }
            None => Self::newest(Path::new("/"), modules),
        }
    }

    fn newest(root: &Path, modules: Option<&Path>) -> Outcome<Self> {
        let entries = std::fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
        let images = entries.map(|entry| entry.path()).filter(|path| version_of(path).is_some());
        let newest = images.max_by(|one, other| compare(&file_name(one), &file_name(other)));
        let image = newest.ok_or_else(|| {
            Failure::new(format!("there is no kernel in {}", root.join("boot").display()))
                .next(format!(
                    "apt-get install {PACKAGE}; or without installing it: apt-get download {PACKAGE}'s newest package, dpkg -x \
                     it into a folder, and name that with --kernel"
                ))
                .kind(Kind::NotFound)
        })?;
        Self::of_image(image, root, modules)
    }

    fn of_image(image: PathBuf, root: &Path, modules: Option<&Path>) -> Outcome<Self> {
        let version = version_of(&image).unwrap_or_default();
        let usual =
            [root.join("lib/modules"), root.join("usr/lib/modules"), PathBuf::from("/lib/modules")];
        let folder = match modules {
            Some(folder) => Some(folder.to_owned()),
            None => usual
                .iter()
                .map(|folder| folder.join(&version))
                .find(|folder| !version.is_empty() && folder.is_dir()),
        };
        let Some(modules) = folder.filter(|folder| folder.is_dir()) else {
            return Err(Failure::new(format!(
                "the modules of {} are not to be found",
                image.display()
            ))
            .next("name their folder: --modules /lib/modules/VERSION")
            .kind(Kind::NotFound));
        };
        if !image.is_file() {
            return Err(Failure::new(format!("there is no kernel {}", image.display()))
                .next("name an image with --kernel, as in /boot/vmlinuz-VERSION")
                .kind(Kind::NotFound));
        }
        Ok(Self { image, modules, version })
    }

    /// The modules that the appliance loads, each after those that it needs.
    pub fn modules(&self) -> Outcome<Vec<Module>> {
        let mut loader = Loader {
            files: HashMap::new(),
            built_in: std::fs::read_to_string(self.modules.join("modules.builtin"))
                .unwrap_or_default(),
            order: Vec::new(),
        };
        loader.look_in(&self.modules);
        for name in NEEDED {
            if !loader.add(name)? && !loader.is_built_in(name) {
                return Err(Failure::new(format!(
                    "the kernel in {} has no module {name}",
                    self.modules.display()
                ))
                .next(format!("take another one: apt-get install {PACKAGE}"))
                .kind(Kind::Unsupported));
            }
        }
        for name in USEFUL {
            loader.add(name)?;
        }
        Ok(loader.order)
    }
}

struct Loader {
    /// By name, with `_` for `-`.
    files: HashMap<String, PathBuf>,
    built_in: String,
    order: Vec<Module>,
}

impl Loader {
    fn look_in(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            // Not through links: `build` leads to the sources.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.look_in(&path);
            } else if let Some((name, _)) = file_name(&path).split_once(".ko") {
                self.files.insert(name.replace('-', "_"), path);
            }
        }
    }

    fn is_built_in(&self, name: &str) -> bool {
        self.built_in.lines().any(|line| {
            let file = line.rsplit('/').next().unwrap_or_default();
            file.trim_end_matches(".ko").replace('-', "_") == name
        })
    }

    /// Adds a module after the modules that it needs; `false` when no file has it.
    fn add(&mut self, name: &str) -> Outcome<bool> {
        let name = name.replace('-', "_");
        if self.order.iter().any(|module| module.name == name) {
            return Ok(true);
        }
        let Some(path) = self.files.get(&name).cloned() else { return Ok(false) };
        let bytes = read(&path)?;
        // A circle of needs would not end otherwise.
        self.files.remove(&name);
        for need in needs(&bytes) {
            self.add(&need)?;
        }
        self.order.push(Module { name, bytes });
        Ok(true)
    }
}

/// Reads a module and unpacks it.
fn read(path: &Path) -> Outcome<Vec<u8>> {
    let failed = |error: String| {
        Failure::new(format!("cannot read the module {}", path.display())).because(error)
    };
    let unpacker = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return std::fs::read(path).map_err(|error| failed(error.to_string())),
    };
    let output = Command::new(unpacker).arg("-dc").arg(path).output();
    let output =
        output.map_err(|error| failed(error.to_string()).next(format!("install {unpacker}")))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(output.stdout)
}

/// Returns the modules that must be loaded before a module. Its texts `depends=a,b` and
/// `softdep=pre: a b post: c` name them.
fn needs(module: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    for text in module.split(|&byte| byte == 0) {
        let Ok(text) = std::str::from_utf8(text) else { continue };
        if let Some(list) = text.strip_prefix("depends=") {
            names.extend(list.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        } else if let Some(list) = text.strip_prefix("softdep=") {
            let words = list.split_whitespace().skip_while(|word| *word != "pre:").skip(1);
            names.extend(words.take_while(|word| !word.ends_with(':')).map(str::to_owned));
        }
    }
    names
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn version_of(image: &Path) -> Option<String> {
    file_name(image).strip_prefix("vmlinuz-").map(str::to_owned)
}

/// Compares versions, in which runs of digits count as numbers.
fn compare(one: &str, other: &str) -> Ordering {
    let parts = |text: &str| {
        let mut parts: Vec<(u64, String)> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let words = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let (word, after) = rest.split_at(words);
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let (number, after) = after.split_at(digits);
            parts.push((number.parse().unwrap_or(0), word.to_owned()));
            rest = after;
        }
        parts.into_iter().map(|(number, word)| (word, number)).collect::<Vec<_>>()
    };
    parts(one).cmp(&parts(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, bytes: &[u8]) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    }

    #[test]
    fn the_newest_kernel_is_chosen_and_its_modules_come_in_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let none = Kernel::find(Some(root), None).expect_err("nothing is there");
        assert!(none.next.is_some_and(|next| next.contains(PACKAGE)));
        for version in ["6.1.0-9-cloud-amd64", "6.1.0-56-cloud-amd64", "5.10.0-99-amd64"] {
            write(&root.join("boot").join(format!("vmlinuz-{version}")), b"kernel");
        }
        let modules = root.join("lib/modules/6.1.0-56-cloud-amd64");
        let failure = Kernel::find(Some(root), None).expect_err("no modules");
        assert!(failure.next.is_some_and(|next| next.contains("--modules")));
        write(&modules.join("modules.builtin"), b"kernel/fs/ext4/ext4.ko\n");
        write(&modules.join("kernel/a/virtio_pci.ko"), b"\0depends=virtio-ring\0name=virtio_pci\0");
        write(
            &modules.join("kernel/a/virtio-ring.ko"),
            b"\0depends=\0softdep=pre: early post: late\0",
        );
        write(&modules.join("kernel/a/early.ko"), b"\0depends=virtio_pci\0");
        write(&modules.join("kernel/a/virtio_blk.ko"), b"\0depends=virtio_ring\0");
        let kernel = Kernel::find(Some(root), None).expect("a kernel");
        assert_eq!(kernel.version, "6.1.0-56-cloud-amd64");
        let missing = kernel.modules().err().expect("no network");
        assert!(missing.error.contains("virtio_net"), "{}", missing.error);
        write(&modules.join("kernel/a/virtio_net.ko"), b"\0depends=virtio_ring,unknown\0");
        let names: Vec<_> =
            kernel.modules().expect("all there").into_iter().map(|module| module.name).collect();
        assert_eq!(names, ["early", "virtio_ring", "virtio_pci", "virtio_blk", "virtio_net"]);
        let named = Kernel::find(Some(&kernel.image), None).expect("by its image");
        assert_eq!(named, kernel);
    }
}
