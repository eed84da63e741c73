//! A tree of C sources is built on a mount: compilers write many small files, programs that were
//! just made run from it, and `make` believes its times.

use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::mounted::{Mounted, skipped, under_kills};
use e2e::shell::{Shell, repository};
use std::path::{Path, PathBuf};

/// Objects have the same bytes wherever the tree lies.
const MAKEFILE: &str = "SOURCES := $(sort $(shell find lib -name '*.c'))
OBJECTS := $(SOURCES:%.c=out/%.o)

out/version: version.c out/libzstd.a
\tcc -Ilib $^ -o $@
out/libzstd.a: $(OBJECTS)
\trm -f $@
\tar rcD $@ $^
out/%.o: %.c
\tmkdir -p $(@D)
\tcc -O0 -MMD -MP -DZSTD_DISABLE_ASM -c $< -o $@
clean:
\trm -r out
-include $(OBJECTS:.o=.d)
";
const PROGRAM: &str = "#include <stdio.h>
#include \"zstd.h\"
int main(void) { puts(ZSTD_versionString()); }
";

#[test]
fn a_tree_of_c_is_built_under_kill_9_of_the_daemon_as_elsewhere() -> Result<()> {
    if skipped(&["cc", "make", "ar", "diff"]) {
        return Ok(());
    }
    let daemon = Daemon::start("builds")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    let (there, here) = (daemon.scratch().join("tree"), mounted.folder.join("tree"));
    for tree in [&there, &here] {
        lay_out(tree)?;
    }
    make(&there, &["-j2"])?;
    under_kills(&daemon, 6, || make(&here, &["-j2"]))?;
    ensure!(mounted.told().contains("is back after"), "{}", mounted.told());
    let same = || Shell::new("diff").arg("-r").arg(&there).arg(&here).run();
    same()?;
    // A program that was just made runs from the mount.
    let version = Shell::new(here.join("out/version")).run()?;
    ensure!(version == Shell::new(there.join("out/version")).run()?, "{version}");

    daemon.kill_worker()?;
    make(&here, &["-q"]).context("something is out of date, and nothing has changed")?;
    // Only what includes the header is compiled anew.
    let compiled = |tree: &Path| -> Result<Vec<String>> {
        Shell::new("touch").arg(tree.join("lib/dictBuilder/cover.h")).run()?;
        let told = make(tree, &[])?;
        let lines = told.lines().filter(|line| line.contains(" -c "));
        Ok(lines.map(str::to_owned).collect())
    };
    let again = compiled(&there)?;
    ensure!((1..10).contains(&again.len()), "{again:?}");
    ensure!(again == compiled(&here)?, "other files are compiled on the mount");
    same()?;

    for tree in [&there, &here] {
        make(tree, &["clean"])?;
    }
    same()?;
    mounted.unmount()
}

/// Puts the sources of zstd, which this project depends on, into `tree`.
fn lay_out(tree: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Packages of other platforms may never have been fetched.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let told = Shell::new(cargo).args(["metadata", "--offline", "--format-version=1"]);
    let told = told.args(["--filter-platform", &platform]);
    let manifest = repository().join("Cargo.toml");
    let told: serde_json::Value =
        serde_json::from_str(&told.arg("--manifest-path").arg(manifest).run()?)?;
    let packages = told["packages"].as_array().context("packages")?;
    let zstd = packages.iter().find(|package| package["name"] == "zstd-sys");
    let manifest = zstd.and_then(|zstd| zstd["manifest_path"].as_str()).context("zstd-sys")?;
    let sources = PathBuf::from(manifest).with_file_name("zstd").join("lib");
    std::fs::create_dir(tree)?;
    Shell::new("cp").arg("-r").arg(sources).arg(tree.join("lib")).run()?;
    std::fs::write(tree.join("Makefile"), MAKEFILE)?;
    std::fs::write(tree.join("version.c"), PROGRAM)?;
    Ok(())
}

fn make(tree: &Path, words: &[&str]) -> Result<String> {
    Shell::new("make").arg("-C").arg(tree).args(words).run()
}
