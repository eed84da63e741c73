//! Real file trees and images of them.

use crate::shell::{Shell, tools};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Finds a real tree of at least 500 MB that every machine with a Rust toolchain has: the
/// toolchain.
pub fn real_tree() -> Result<PathBuf> {
    let sysroot = PathBuf::from(Shell::new("rustc").args(["--print", "sysroot"]).run()?.trim());
    let tree = sysroot.join("lib");
    let kib: u64 = Shell::new("du")
        .args(["-sk"])
        .arg(&tree)
        .run()?
        .split_whitespace()
        .next()
        .unwrap_or("0")
        .parse()?;
    if kib < 500 * 1024 {
        bail!("{} has only {kib} KiB", tree.display());
    }
    Ok(tree)
}

/// Returns an ext4 image with a real tree in it; made once, kept beside the fetched tools.
pub fn real_image() -> Result<PathBuf> {
    let image = tools().join("tree.img");
    if image.is_file() {
        return Ok(image);
    }
    std::fs::create_dir_all(tools())?;
    let made = image.with_extension("tmp");
    let _ = std::fs::remove_file(&made);
    let tree = real_tree()?;
    let kib: u64 = Shell::new("du")
        .args(["-sk"])
        .arg(&tree)
        .run()?
        .split_whitespace()
        .next()
        .unwrap_or("0")
        .parse()?;
    let size = format!("{}K", kib + kib / 4 + 65_536);
    Shell::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .arg(&tree)
        .arg(&made)
        .arg(&size)
        .run()
        .context("mke2fs -d")?;
    std::fs::rename(&made, &image)?;
    Ok(image)
}

/// Checks that two files have the same bytes.
pub fn same(left: &Path, right: &Path) -> Result<()> {
    Shell::new("cmp").arg(left).arg(right).run().map(|_| ())
}

/// Checks that two trees have the same names, links and bytes.
pub fn same_trees(left: &Path, right: &Path) -> Result<()> {
    Shell::new("diff").args(["-r", "--no-dereference"]).arg(left).arg(right).run().map(|_| ())
}
