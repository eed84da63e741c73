//! A folder: a daemon's, a log's, or a store's. Counts the files, and decodes the small ones.

use super::report::Report;
use super::{read, record, segment};
use rekindle_datastore::key;
use rekindle_node::node_file;
use rekindle_terminal::failure::{Failure, Outcome};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Reports what a folder holds.
pub fn report(subject: &str, path: &Path) -> Outcome<Report> {
    if path.join("rekindle.json").is_file() {
        return store(subject, path);
    }
    if path.join(node_file::NAME).is_file() {
        return daemon(subject, path);
    }
    let files = list(path)?;
    if files.iter().any(|file| file.extension().is_some_and(|extension| extension == "seg")) {
        return log_folder(subject, &files);
    }
    Err(Failure::new(format!("{subject} is neither a store, nor a daemon's folder, nor a log's"))
        .next("name one of these, or a file in one of them"))
}

fn list(path: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path)
        .map_err(|error| Failure::new(format!("cannot read {}", path.display())).because(error))?;
    let mut files: Vec<_> =
        entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.sort();
    Ok(files)
}

/// Counts the files below a folder, and their bytes.
fn count(path: &Path) -> (u64, u64) {
    let Ok(entries) = std::fs::read_dir(path) else { return (0, 0) };
    entries.flatten().fold((0, 0), |(files, bytes), entry| match entry.metadata() {
        Ok(found) if found.is_dir() => {
            let (more_files, more_bytes) = count(&entry.path());
            (files + more_files, bytes + more_bytes)
        }
        Ok(found) => (files + 1, bytes + found.len()),
        Err(_) => (files, bytes),
    })
}

fn store(subject: &str, path: &Path) -> Outcome<Report> {
    let mut report = Report::new(subject, "store");
    let identity = record::report("rekindle.json", &read(&path.join("rekindle.json"))?);
    report.facts.extend(identity.facts);
    report
        .problems
        .extend(identity.problems.iter().map(|problem| format!("rekindle.json: {problem}")));
    for folder in key::MARKED.map(|folder| folder.trim_end_matches('/')) {
        let (files, bytes) = count(&path.join(folder));
        report.shown(
            folder,
            format!("{files} objects, {}", rekindle_base::units::format_size(bytes)),
        );
    }
    "volumes".clone_into(&mut report.entries_are);
    let is_object = |file: &PathBuf| {
        file.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
    };
    for file in list(&path.join("volumes")).unwrap_or_default().into_iter().filter(is_object) {
        let key = format!("volumes/{}", file.file_name().unwrap_or_default().to_string_lossy());
        let bytes = read(&file)?;
        match rekindle_datastore::record::decode_as::<rekindle_staging::Vault>(&key, &bytes) {
            Ok((vault, _)) => report.entry(vec![
                ("name", json!(vault.name)),
                ("id", json!(vault.id.to_string())),
                ("kind", json!(vault.kind)),
                ("state", json!(vault.state)),
                ("size", json!(vault.size)),
                ("checkpoint", json!(vault.checkpoint.0)),
                ("generation", json!(vault.generation.0)),
            ]),
            Err(error) => report.problem(error),
        }
    }
    Ok(report)
}

fn daemon(subject: &str, path: &Path) -> Outcome<Report> {
    let mut report = Report::new(subject, "a daemon's folder");
    let home = record::report("node.json", &read(&path.join("node.json"))?);
    report.facts.extend(home.facts);
    report.problems.extend(home.problems.iter().map(|problem| format!("node.json: {problem}")));
    for (name, inside) in [("flash", "flash"), ("store", "store")] {
        let inside = path.join(inside);
        if inside.is_dir() {
            let (files, bytes) = count(&inside);
            report.shown(
                name,
                format!(
                    "{files} files, {} (inspect {})",
                    rekindle_base::units::format_size(bytes),
                    inside.display()
                ),
            );
        }
    }
    Ok(report)
}

fn log_folder(subject: &str, files: &[PathBuf]) -> Outcome<Report> {
    let mut report = Report::new(subject, "a log's folder");
    "files".clone_into(&mut report.entries_are);
    let mut segments = 0u64;
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file.extension().is_none_or(|extension| extension != "seg") {
            continue;
        }
        segments += 1;
        let one = segment::report(&name, &read(file)?);
        let fact = |wanted: &str| {
            one.facts
                .iter()
                .find(|(name, _)| name == wanted)
                .map_or(Value::Null, |(_, value)| value.clone())
        };
        report.entry(vec![
            ("file", json!(name)),
            ("segment", fact("segment")),
            ("changes", fact("changes")),
            ("state", fact("state")),
            ("ends", fact("ends")),
        ]);
        report.problems.extend(one.problems.iter().map(|problem| format!("{name}: {problem}")));
    }
    report.fact("segments", segments);
    Ok(report)
}
