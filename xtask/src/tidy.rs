//! Tidiness is a test: permitted edges, used dependencies, sizes of files; documents and kept
//! faults against the code.

use crate::circles::circles;
use crate::mutants;
use crate::run::{output, root, step};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most lines of a file that is read in one sitting.
const FILE_LINES_MAX: usize = 800;
/// Most characters of a line that can be read.
const LINE_CHARS_MAX: usize = 160;
/// Most columns of a line that is a comment (STYLE.md).
const COMMENT_COLUMNS_MAX: usize = 100;
/// Words that hide the actor of a sentence (STYLE.md), in comments, documents and messages.
const NO_ACTORS: [&str; 4] = ["nobody", "somebody", "whoever", "what came of"];

/// Checks everything; prints all findings before it fails.
pub fn tidy() -> Result<()> {
    step("tidy");
    let mut findings = Vec::new();
    edges(&mut findings)?;
    dependencies(&mut findings)?;
    sources(&mut findings)?;
    reading_order(&mut findings)?;
    documents(&mut findings)?;
    mutants::fit(&mut findings)?;
    for finding in &findings {
        println!("  {finding}");
    }
    if !findings.is_empty() {
        bail!("{} finding(s)", findings.len());
    }
    println!("tidy");
    Ok(())
}

/// Checks that the edges between crates are those of the table in ARCHITECTURE.md, and no others.
fn edges(findings: &mut Vec<String>) -> Result<()> {
    let permitted = permitted_edges()?;
    let metadata: serde_json::Value = serde_json::from_str(&output(
        "cargo",
        &["metadata", "--format-version", "1", "--no-deps", "--offline"],
    )?)?;
    for package in metadata["packages"].as_array().context("cargo metadata has no packages")? {
        let name = short(package["name"].as_str().unwrap_or_default());
        if matches!(name, "xtask" | "e2e" | "bench" | "fuzz") {
            continue;
        }
        let Some(allowed) = permitted.get(name) else {
            findings.push(format!("crate {name} is not in the table of edges in ARCHITECTURE.md"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or_default();
            let ours = target.starts_with("rekindle") && dependency["path"].is_string();
            if ours
                && dependency["kind"].is_null()
                && !allowed.iter().any(|name| name == short(target))
            {
                findings.push(format!(
                    "crate {name} must not use {}: see the table in ARCHITECTURE.md",
                    short(target)
                ));
            }
        }
    }
    Ok(())
}

/// Checks that each crate names in its sources every dependency that its manifest declares.
fn dependencies(findings: &mut Vec<String>) -> Result<()> {
    let sources = files("rs")?;
    for manifest in files("toml")?.iter().filter(|path| path.ends_with("Cargo.toml")) {
        let text = std::fs::read_to_string(root().join(manifest))?;
        let folder = manifest.parent().unwrap_or(Path::new(""));
        let (mut code, mut is_dependencies) = (String::new(), false);
        for path in sources.iter().filter(|path| path.starts_with(folder)) {
            code.push_str(&std::fs::read_to_string(root().join(path))?);
        }
        for line in text.lines() {
            if line.starts_with('[') {
                is_dependencies = matches!(line, "[dependencies]" | "[dev-dependencies]");
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let is_name = is_dependencies && name.starts_with(|first: char| first.is_alphabetic());
            let module = name.replace('-', "_");
            let ways = [format!("{module}::"), format!("use {module}")];
            if is_name && !ways.iter().any(|way| code.contains(way)) {
                findings.push(format!("{}: {name} is not used", manifest.display()));
            }
        }
    }
    Ok(())
}

fn short(package: &str) -> &str {
    match package.strip_prefix("rekindle-") {
        Some(name) => name,
        None if package == "rekindle" => "cli",
        None => package,
    }
}

/// Reads the rows `| crate | may use |` between the markers `<!-- edges -->` and `<!-- /edges -->`.
fn permitted_edges() -> Result<BTreeMap<String, Vec<String>>> {
    let text =
        std::fs::read_to_string(root().join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let table = text
        .split("<!-- edges -->")
        .nth(1)
        .and_then(|rest| rest.split("<!-- /edges -->").next())
        .context("ARCHITECTURE.md has no table between <!-- edges --> and <!-- /edges -->")?;
    let mut edges = BTreeMap::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let names =
            |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let (Some(of), Some(to)) = (cells.get(1), cells.get(2)) else { continue };
        let mut to = names(to);
        to.extend(["base".to_owned(), "env".to_owned()]);
        for name in names(of) {
            edges.insert(name, to.clone());
        }
    }
    Ok(edges)
}

/// Checks that each source opens with what it is, and can be read in one sitting.
fn sources(findings: &mut Vec<String>) -> Result<()> {
    for path in files("rs")? {
        let text = std::fs::read_to_string(root().join(&path)).unwrap_or_default();
        let shown = path.display();
        if !text.starts_with("//!") && !text.starts_with("#![") {
            findings.push(format!("{shown}: must open with //! and what it is"));
        }
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            findings.push(format!(
                "{shown}: {lines} lines, at most {FILE_LINES_MAX}: split it by idea"
            ));
        }
        let of_tests =
            |part: &str| matches!(part, "tests" | "tests.rs" | "testing.rs" | "xtask" | "examples");
        let mut is_test = path.iter().filter_map(|part| part.to_str()).any(of_tests);
        for (number, line) in text.lines().enumerate() {
            is_test |= line == "mod tests {";
            let why = breaks_style(line).or_else(|| hides_actor(line).filter(|_| !is_test));
            if let Some(why) = why {
                findings.push(format!("{shown}:{}: {why}: see STYLE.md", number + 1));
            }
            if line.chars().count() > LINE_CHARS_MAX {
                findings.push(format!(
                    "{shown}:{}: longer than {LINE_CHARS_MAX} characters",
                    number + 1
                ));
            }
            let promise = ["todo!(", "unimplemented!(", "// TODO", "// FIXME"]
                .iter()
                .any(|word| line.contains(word));
            if promise && !is_test {
                findings.push(format!("{shown}:{}: promises work instead of doing it", number + 1));
            }
        }
    }
    Ok(())
}

/// Circles of files that are kept, each with its reason: any of the files names it.
const CIRCLES_KEPT: &[(&str, &str)] = &[
    ("crates/env/src/sim/state.rs", "one world under one lock, and what each part does to it"),
    (
        "crates/volume/src/registry/mod.rs",
        "the registry owns the salvager, whose jobs hold claims of the registry",
    ),
];

/// Files that all files of their crate may use, whatever they use themselves, each with its reason.
/// Without the hub, the other files come apart.
const HUBS: &[(&str, &str)] = &[
    ("crates/log/src/lib.rs", "the log as its users see it, and the words of its calls"),
    ("crates/staging/src/lib.rs", "what all volumes share, and the rooms that work on it"),
    ("crates/volume/src/lib.rs", "the facade of the rooms, and the words of its calls"),
];

/// Checks that no files of a crate use one another in a circle, but for a parent and its children.
fn reading_order(findings: &mut Vec<String>) -> Result<()> {
    let mut crates: BTreeMap<PathBuf, Vec<(PathBuf, String)>> = BTreeMap::new();
    for path in files("rs")? {
        let Some(at) = path.iter().position(|part| part == "src") else { continue };
        let below: PathBuf = path.iter().skip(at + 1).collect();
        if below.iter().any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&path))?;
        crates.entry(path.iter().take(at + 1).collect()).or_default().push((below, text));
    }
    for (source, files) in crates {
        let hub = HUBS.iter().find_map(|(file, _)| Path::new(file).strip_prefix(&source).ok());
        if hub.is_some() && circles(&files, None) == circles(&files, hub) {
            findings.push(format!("{} needs no hub any more", source.display()));
        }
        for circle in circles(&files, hub) {
            let names: Vec<String> =
                circle.iter().map(|file| source.join(file).display().to_string()).collect();
            if !CIRCLES_KEPT.iter().any(|(file, _)| names.iter().any(|name| name == file)) {
                findings.push(format!("these files use one another: {}", names.join(", ")));
            }
        }
    }
    Ok(())
}

/// Says how a line that is a comment breaks STYLE.md, if it does.
fn breaks_style(line: &str) -> Option<String> {
    let comment = line.trim_start().strip_prefix("//")?.to_lowercase();
    if line.chars().count() > COMMENT_COLUMNS_MAX {
        return Some(format!("a comment beyond column {COMMENT_COLUMNS_MAX}"));
    }
    hides_actor(&comment)
}

/// Says which word of a line hides the actor of its sentence, if one does.
fn hides_actor(line: &str) -> Option<String> {
    let line = line.to_lowercase();
    let found = NO_ACTORS.iter().find(|word| line.contains(**word));
    found.map(|word| format!("\"{word}\" hides the actor"))
}

/// Checks that every format has a page, and that every link between documents leads somewhere.
fn documents(findings: &mut Vec<String>) -> Result<()> {
    for path in files("rs")?
        .iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "format"))
    {
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        let is_index = path.file_name().is_some_and(|name| name == "mod.rs" || name == "tests.rs");
        if !is_index && !text.contains("docs/format/") {
            findings.push(format!("{}: must name its page in docs/format/", path.display()));
        }
    }
    for path in files("md")? {
        let text = std::fs::read_to_string(root().join(&path)).unwrap_or_default();
        // STYLE.md quotes the words, and the plan is no document for users.
        let is_style = path.ends_with("STYLE.md") || path.ends_with("docs/plan.md");
        for (number, line) in text.lines().enumerate().filter(|_| !is_style) {
            if let Some(why) = hides_actor(line) {
                findings.push(format!("{}:{}: {why}: see STYLE.md", path.display(), number + 1));
            }
        }
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let folder = root().join(path.parent().unwrap_or(Path::new("")));
            if !folder.join(target).exists() {
                findings.push(format!("{}: link to {target} leads nowhere", path.display()));
            }
        }
    }
    Ok(())
}

fn files(extension: &str) -> Result<Vec<PathBuf>> {
    let listed = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let wanted = |path: &PathBuf| {
        path.extension().is_some_and(|found| found == extension) && root().join(path).is_file()
    };
    Ok(listed.lines().map(PathBuf::from).filter(wanted).collect())
}
