//! The files in `contrib/` are about this product: its metrics have the names that are used there.

use std::collections::BTreeSet;
use std::path::Path;

/// Words that look like metrics.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("rekindle_")).map(str::to_owned).collect()
}

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() {
            sources(&entry.path(), text);
        } else {
            *text += &std::fs::read_to_string(entry.path()).unwrap_or_default();
        }
    }
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut text = String::new();
    sources(&root.join("crates/node/src"), &mut text);
    let known = metrics(&text);
    for (name, many) in [("grafana.json", 25), ("alerts.yml", 10)] {
        let text = std::fs::read_to_string(root.join("contrib").join(name)).expect(name);
        let asked = metrics(&text);
        // A histogram is asked for by its parts.
        let whole = |name: &str| {
            let parts = ["_bucket", "_sum", "_count"];
            let of = parts.iter().find_map(|part| name.strip_suffix(part));
            of.is_some_and(|of| known.contains(of))
        };
        let unknown: Vec<_> = asked.difference(&known).filter(|name| !whole(name)).collect();
        assert!(unknown.is_empty() && asked.len() >= many, "{name}: {unknown:?} of {asked:?}");
    }
    let board = std::fs::read(root.join("contrib/grafana.json")).expect("there");
    assert!(serde_json::from_slice::<serde_json::Value>(&board).is_ok());
}
