//! Faults that were once put into the code and that no test noticed, kept as patches. Each is put
//! into a copy again, and the suite that its first line names must fail.

use crate::run::{self, root, step};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Folder of the patches.
const FOLDER: &str = "tests/mutants";
/// A suite that runs longer than this hangs, which is noticed too.
const SUITE_TIME_MAX: Duration = Duration::from_secs(600);
/// Time after which no further mutant is begun, unless all are wanted.
const TIME_MAX: Duration = Duration::from_secs(240);
/// Time that is kept for what comes after the mutants.
const TIME_KEPT: Duration = Duration::from_secs(900);
/// Days in which each mutant is tried once, unless all are wanted.
const TURNS: u64 = 10;

/// A patch and the suite that must see it.
struct Mutant {
    name: String,
    patch: PathBuf,
    environment: Vec<(String, String)>,
    /// Arguments of `cargo test`.
    suite: Vec<String>,
}

/// The result of a mutant.
enum Outcome {
    Caught,
    Survived,
    /// No result: the patch does not fit, or does not compile.
    Useless(String),
}

/// Tries the mutants whose turn it is, all of them with `--all`, or those whose names contain one
/// of the arguments.
pub fn mutants(arguments: &[String]) -> Result<()> {
    let all = list()?;
    let names: Vec<&String> = arguments.iter().filter(|word| !word.starts_with("--")).collect();
    let is_all = arguments.iter().any(|word| word == "--all");
    let turn = turn()?;
    let chosen = all.iter().enumerate().filter(|(index, mutant)| match names.is_empty() {
        true => is_all || *index as u64 % TURNS == turn,
        false => names.iter().any(|name| mutant.name.contains(*name)),
    });
    let chosen: Vec<&Mutant> = chosen.map(|(_, mutant)| mutant).collect();
    step(&format!("mutants, {} of {}", chosen.len(), all.len()));
    let copy = Copy::make()?;
    let begun = Instant::now();
    let mut bad = Vec::new();
    for (index, mutant) in chosen.iter().enumerate() {
        let is_late = run::time_left().is_some_and(|left| left < TIME_KEPT);
        let is_over = is_late || index > 0 && begun.elapsed() > TIME_MAX;
        if is_over && !is_all && names.is_empty() {
            println!("  {} more are not tried today: the time is over", chosen.len() - index);
            break;
        }
        let since = Instant::now();
        let outcome = copy.attempt(mutant)?;
        let took = since.elapsed().as_secs();
        let told = match &outcome {
            Outcome::Caught => "caught".to_owned(),
            Outcome::Survived => "SURVIVED".to_owned(),
            Outcome::Useless(why) => format!("USELESS: {why}"),
        };
        println!("  {}: {told}, {took} s ({})", mutant.name, mutant.suite.join(" "));
        if !matches!(outcome, Outcome::Caught) {
            bad.push(mutant.name.as_str());
        }
    }
    if !bad.is_empty() {
        bail!("not caught: {}", bad.join(", "));
    }
    Ok(())
}

/// Checks that each kept fault still fits the code, and names a package that there is: one that
/// does not guards nothing.
pub fn fit(findings: &mut Vec<String>) -> Result<()> {
    let packages = packages()?;
    for mutant in list()? {
        let named = mutant.suite.iter().zip(mutant.suite.iter().skip(1));
        for (_, package) in named.filter(|(option, _)| *option == "-p") {
            if !packages.contains(package) {
                findings.push(format!("the kept fault {}: no package {package}", mutant.name));
            }
        }
        let applied = apply(&root(), &mutant.patch).arg("--check").output()?;
        if !applied.status.success() {
            let why = String::from_utf8_lossy(&applied.stderr);
            let why = why.lines().find(|line| line.starts_with("error")).unwrap_or("no reason");
            findings.push(format!("the kept fault {} does not fit any more: {why}", mutant.name));
        }
    }
    Ok(())
}

/// The names of this workspace's packages.
fn packages() -> Result<Vec<String>> {
    let cargo =
        Command::new("cargo").args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let told: serde_json::Value = serde_json::from_slice(&cargo.stdout)?;
    let packages = told["packages"].as_array().context("cargo metadata names no packages")?;
    Ok(packages.iter().filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect())
}

/// The command that puts a patch into a tree.
fn apply(tree: &Path, patch: &Path) -> Command {
    let mut command = Command::new("git");
    command.args(["apply", "-C1", "--recount"]).arg(patch).current_dir(tree);
    command
}

/// Returns which share of the mutants has its turn: another one each day, the same for all runs of
/// a day.
fn turn() -> Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(now.as_secs() / 86_400 % TURNS)
}

fn list() -> Result<Vec<Mutant>> {
    let mut patches: Vec<PathBuf> = std::fs::read_dir(root().join(FOLDER))
        .with_context(|| FOLDER.to_owned())?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    patches.sort_unstable();
    patches.into_iter().map(read).collect()
}

fn read(patch: PathBuf) -> Result<Mutant> {
    let text = std::fs::read_to_string(&patch)?;
    let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let words = text.lines().next().and_then(|line| line.strip_prefix("# suite: "));
    let words = words.with_context(|| {
        format!("{name}: the first line must be '# suite: [NAME=VALUE] ARGUMENTS OF CARGO TEST'")
    })?;
    let (mut environment, mut suite) = (Vec::new(), Vec::new());
    for word in words.split_whitespace() {
        match word.split_once('=').filter(|_| suite.is_empty() && !word.starts_with('-')) {
            Some((name, value)) => environment.push((name.to_owned(), value.to_owned())),
            None => suite.push(word.to_owned()),
        }
    }
    Ok(Mutant { name, patch, environment, suite })
}

/// A copy of the checkout.
struct Copy {
    tree: PathBuf,
    build: Build,
}

/// Gives the crates of the copy a version of their own. Without it, cargo would take a crate built
/// from the copy, fault and all, for a fresh build of the same crate of the checkout.
fn with_own_version(manifest: &[u8]) -> Result<Vec<u8>> {
    const OURS: &str = "\nversion = \"";
    let text = std::str::from_utf8(manifest)?;
    let (before, behind) = text.split_once(OURS).context("Cargo.toml has no version")?;
    let (number, rest) = behind.split_once('"').context("Cargo.toml has no whole version")?;
    Ok(format!("{before}{OURS}{number}+mutant\"{rest}").into_bytes())
}

/// The place in which suites are built.
enum Build {
    /// In a folder of its own that is kept, so that the next mutant builds little.
    Kept(PathBuf),
    /// The profile and the folder of all other tests, where a clean clone has built the
    /// dependencies already.
    Shared(PathBuf),
}

impl Copy {
    fn make() -> Result<Self> {
        let folder = root().join("target/mutants");
        let build = match run::is_ci() {
            true => Build::Shared(root().join("target")),
            false => Build::Kept(folder.join("target")),
        };
        let copy = Self { tree: folder.join("tree"), build };
        std::fs::create_dir_all(&copy.tree)?;
        copy.refresh()?;
        Ok(copy)
    }

    /// Makes the copy equal to the checkout. Files that are equal already keep their time, so that
    /// they are not built again.
    fn refresh(&self) -> Result<()> {
        let listed =
            run::output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
        let wanted: Vec<&str> = listed.lines().filter(|path| root().join(path).is_file()).collect();
        for path in &wanted {
            let (from, to) = (root().join(path), self.tree.join(path));
            let mut bytes = std::fs::read(&from)?;
            if *path == "Cargo.toml" {
                bytes = with_own_version(&bytes)?;
            }
            if std::fs::read(&to).is_ok_and(|there| there == bytes) {
                continue;
            }
            std::fs::create_dir_all(to.parent().unwrap_or(&self.tree))?;
            std::fs::write(&to, bytes)?;
            let mode = std::fs::metadata(&from)?.permissions();
            std::fs::set_permissions(&to, mode)?;
        }
        self.remove_others(&self.tree, &wanted)
    }

    /// Removes files that the checkout does not have.
    fn remove_others(&self, folder: &Path, wanted: &[&str]) -> Result<()> {
        for entry in std::fs::read_dir(folder)?.flatten() {
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.remove_others(&path, wanted)?;
                continue;
            }
            let name = path.strip_prefix(&self.tree)?.to_string_lossy().into_owned();
            if !wanted.contains(&name.as_str()) {
                std::fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Puts a mutant in, runs its suite, and takes the mutant out again.
    fn attempt(&self, mutant: &Mutant) -> Result<Outcome> {
        let outcome = self.put_in_and_run(mutant);
        self.refresh()?;
        outcome
    }

    fn put_in_and_run(&self, mutant: &Mutant) -> Result<Outcome> {
        let applied = apply(&self.tree, &mutant.patch)
            // Otherwise git takes the copy for a part of the checkout, and skips what is ignored
            // there.
            .env("GIT_CEILING_DIRECTORIES", self.tree.parent().unwrap_or(&self.tree))
            .output()?;
        if !applied.status.success() {
            let why = String::from_utf8_lossy(&applied.stderr).trim().to_owned();
            return Ok(Outcome::Useless(format!("it does not fit any more: {why}")));
        }
        let mut build = self.cargo(mutant);
        let built = build.arg("--no-run").stderr(Stdio::piped()).output()?;
        if !built.status.success() {
            let text = String::from_utf8_lossy(&built.stderr);
            let first = text.lines().find(|line| line.starts_with("error")).unwrap_or("no reason");
            return Ok(Outcome::Useless(format!("it does not compile: {first}")));
        }
        let mut child = self.cargo(mutant).spawn()?;
        let begun = Instant::now();
        loop {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(Outcome::Survived),
                Some(_) => return Ok(Outcome::Caught),
                None if begun.elapsed() > SUITE_TIME_MAX => {
                    child.kill()?;
                    child.wait()?;
                    return Ok(Outcome::Caught);
                }
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn cargo(&self, mutant: &Mutant) -> Command {
        let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        let (target, profile) = match &self.build {
            Build::Kept(target) => (target, "dev"),
            Build::Shared(target) => (target, "ci"),
        };
        command
            .args(["test", "--quiet", "--profile", profile])
            .args(&mutant.suite)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", target)
            .envs(mutant.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}
