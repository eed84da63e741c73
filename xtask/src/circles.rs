//! Circles of files: files of one crate that use one another, so that none can be read first. A
//! parent and its children may; a larger circle hides the order in which to read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Finds the circles among the files of one crate. `files`: paths below `src`, and texts. `hub`: a
/// file that all others may use, whatever it uses.
pub fn circles(files: &[(PathBuf, String)], hub: Option<&Path>) -> Vec<Vec<PathBuf>> {
    let modules: BTreeMap<Vec<String>, usize> =
        files.iter().enumerate().map(|(index, (path, _))| (module_of(path), index)).collect();
    let hub = files.iter().position(|(path, _)| Some(path.as_path()) == hub);
    let uses: Vec<BTreeSet<usize>> = files
        .iter()
        .enumerate()
        .map(|(index, (path, text))| {
            let used = paths_in(text, &module_of(path), &modules);
            let used = used.iter().map(|path| resolve(&modules, path));
            used.filter(|&to| to != index && Some(to) != hub).collect()
        })
        .collect();
    let reach: Vec<BTreeSet<usize>> = (0..files.len()).map(|from| reached(&uses, from)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for one in 0..files.len() {
        let circle: Vec<usize> =
            reach[one].iter().copied().filter(|&other| reach[other].contains(&one)).collect();
        if circle.len() > 1 && circle.iter().all(|&file| seen.insert(file)) {
            let paths: Vec<PathBuf> = circle.iter().map(|&file| files[file].0.clone()).collect();
            if !is_family(&paths) {
                found.push(paths);
            }
        }
    }
    found
}

/// Whether one of the files is the parent of all others.
fn is_family(paths: &[PathBuf]) -> bool {
    let modules: Vec<_> = paths.iter().map(|path| module_of(path)).collect();
    modules.iter().any(|parent| {
        let is_child = |other: &Vec<String>| other.split_last().is_some_and(|(_, up)| up == parent);
        modules.iter().all(|other| other == parent || is_child(other))
    })
}

fn reached(uses: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        next.extend(uses[file].iter().copied().filter(|&to| reached.insert(to)));
    }
    reached
}

/// The module path of a file below `src`.
fn module_of(path: &Path) -> Vec<String> {
    let without = path.with_extension("");
    let mut parts: Vec<String> = without
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// The file of the longest module that begins the path.
fn resolve(modules: &BTreeMap<Vec<String>, usize>, path: &[String]) -> usize {
    (0..=path.len())
        .rev()
        .find_map(|length| modules.get(&path[..length]).copied())
        .unwrap_or_default()
}

/// The paths that begin with `crate::`, `super::` or the name of a child, in code that is neither
/// comment nor test. A re-export uses nothing itself.
fn paths_in(
    text: &str,
    module: &[String],
    modules: &BTreeMap<Vec<String>, usize>,
) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let is_re_export = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("pub use ") || line.starts_with("pub(crate) use ")
    };
    let code: String = code.split_inclusive(';').filter(|line| !is_re_export(line)).collect();
    let children = modules.keys().filter(|other| parent_of(other) == module);
    let children = children.filter_map(|child| child.last()).map(|child| format!("{child}::"));
    let mut found = Vec::new();
    for word in ["crate::".to_owned(), "super::".to_owned()].into_iter().chain(children) {
        for (at, _) in code.match_indices(&word) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|one| one.is_alphanumeric() || one == '_' || one == ':') {
                continue;
            }
            let (mut base, mut rest) = match word.as_str() {
                "crate::" => (Vec::new(), &code[at + word.len()..]),
                "super::" => (parent_of(module), &code[at + word.len()..]),
                _ => (module.to_vec(), &code[at..]),
            };
            while let Some(next) = rest.strip_prefix("super::") {
                (base, rest) = (parent_of(&base), next);
            }
            collect(rest, &base, &mut found);
        }
    }
    found
}

fn parent_of(module: &[String]) -> Vec<String> {
    module.split_last().map(|(_, up)| up.to_vec()).unwrap_or_default()
}

/// Adds the paths of one `a::b::{c, d::e}`.
fn collect(rest: &str, base: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = base.to_vec();
    let mut rest = rest;
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0_usize;
            let mut start = 0;
            for (at, one) in group.char_indices() {
                match one {
                    '{' => depth += 1,
                    ',' | '}' if depth == 0 => {
                        collect(group[start..at].trim(), &path, found);
                        start = at + 1;
                        if one == '}' {
                            return;
                        }
                    }
                    '}' => depth -= 1,
                    _ => {}
                }
            }
            return;
        }
        let end = rest.find(|one: char| !(one.is_alphanumeric() || one == '_'));
        let (name, behind) = rest.split_at(end.unwrap_or(rest.len()));
        if name.is_empty() {
            return;
        }
        path.push(name.to_owned());
        match behind.strip_prefix("::") {
            Some(next) => rest = next,
            None => break found.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle_of(files: &[(&str, &str)]) -> Vec<Vec<PathBuf>> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (path.into(), (*text).to_owned())).collect();
        circles(&files, None)
    }

    #[test]
    fn a_circle_of_siblings_is_found_and_a_family_is_not() {
        let siblings = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::{Error, b::{self, Two}};"),
            ("b.rs", "fn f() { crate::a::g() }"),
        ];
        assert_eq!(circle_of(&siblings), [[PathBuf::from("a.rs"), PathBuf::from("b.rs")]]);
        let family = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "use crate::a::{b::One, c::Three};"),
            ("a/b.rs", "use super::Two;"),
            ("a/c.rs", "use crate::a::b::One; use super::Two;"),
        ];
        assert!(circle_of(&family).is_empty(), "a parent and its children");
    }

    #[test]
    fn a_parent_that_uses_a_grandchild_by_its_childs_name_is_seen_unless_it_is_the_hub() {
        let files = [
            ("lib.rs", "mod a;use a::b::One;pub use a::b::Two;"),
            ("a/mod.rs", "mod b;pub use b::Three;"),
            ("a/b.rs", "use crate::Inner;"),
        ];
        let circle = [["lib.rs", "a/b.rs"].map(PathBuf::from)];
        assert_eq!(circle_of(&files), circle);
        let files: Vec<_> =
            files.iter().map(|(path, text)| (path.into(), (*text).to_owned())).collect();
        assert!(circles(&files, Some(Path::new("lib.rs"))).is_empty());
    }

    #[test]
    fn comments_and_tests_count_for_nothing() {
        let files = [
            ("lib.rs", ""),
            ("a.rs", "/// See [`crate::b`].\nfn f() {}\n#[cfg(test)]\nmod tests {use crate::b;}"),
            ("b.rs", "use super::a::f;"),
        ];
        assert!(circle_of(&files).is_empty());
    }
}
