//! Prometheus's view of the daemon's metrics and of the alert rules, by its own promtool.

use crate::daemon::Daemon;
use crate::shell::{Shell, find, repository, tools};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Minutes for which the last scrape is held: longer than any rule waits.
const HELD: usize = 90;

/// Samples by series.
pub type Scrape = BTreeMap<String, String>;

/// Finds promtool.
#[must_use]
pub fn promtool() -> Option<PathBuf> {
    let fetched = tools().join("bin/promtool");
    if fetched.is_file() { Some(fetched) } else { find("promtool") }
}

/// Lists what a story with promtool lacks.
#[must_use]
pub fn missing() -> Vec<String> {
    if promtool().is_some() { Vec::new() } else { vec!["promtool (cargo x tools)".to_owned()] }
}

/// Returns the path of the alert rules that the project ships.
#[must_use]
pub fn rules() -> PathBuf {
    repository().join("contrib/alerts.yml")
}

/// Lists the names of the alerts.
pub fn alerts() -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(rules())?;
    Ok(text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned))
        .collect())
}

/// Fetches the body of `/metrics`.
pub fn metrics(daemon: &Daemon) -> Result<String> {
    let answer = daemon.get("/metrics")?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no head")?;
    Ok(body.to_owned())
}

/// Scrapes the metrics as Prometheus does; empty if the daemon does not answer.
#[must_use]
pub fn scrape(daemon: &Daemon) -> Scrape {
    let body = metrics(daemon).unwrap_or_default();
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, value)| (series.to_owned(), value.to_owned()))
        .collect()
}

/// Returns the value of a series in a scrape.
#[must_use]
pub fn value(scrape: &Scrape, series: &str) -> f64 {
    scrape.get(series).and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
}

/// Returns the alerts that fire `minutes` after the first of these scrapes, which are a minute
/// apart; the last one holds for an hour and a half. `folder` is for intermediate files.
pub fn firing(folder: &Path, scrapes: &[Scrape], minutes: usize) -> Result<BTreeSet<String>> {
    let mut firing = BTreeSet::new();
    for alert in alerts()? {
        let fires = (alert.as_str(), "[{labels: '{}', value: 1}]");
        let is_silent = (alert.as_str(), "[]");
        if judged(folder, scrapes, minutes, fires)?.is_none() {
            firing.insert(alert);
        } else if let Some(said) = judged(folder, scrapes, minutes, is_silent)? {
            bail!("{alert} is neither silent nor fires: {said}");
        }
    }
    Ok(firing)
}

/// Judges one alert by promtool; returns what promtool says when the alert is not as expected.
fn judged(
    folder: &Path,
    scrapes: &[Scrape],
    minutes: usize,
    (alert, expected): (&str, &str),
) -> Result<Option<String>> {
    let used = std::fs::read_to_string(rules())?;
    let names: BTreeSet<&String> = scrapes.iter().flat_map(BTreeMap::keys).collect();
    let mut series = String::new();
    for name in names {
        let bare = name.split('{').next().unwrap_or_default();
        if !used.contains(bare) {
            continue;
        }
        let at = |scrape: &Scrape| scrape.get(name).cloned().unwrap_or_else(|| "_".to_owned());
        let mut values: Vec<String> = scrapes.iter().map(at).collect();
        let last = values.pop().unwrap_or_default();
        values.push(if last == "_" { last } else { format!("{last}+0x{HELD}") });
        let name = name.replace('\'', "''");
        writeln!(series, "      - {{series: '{name}', values: '{}'}}", values.join(" "))?;
    }
    let input = if series.is_empty() { " []\n".to_owned() } else { format!("\n{series}") };
    let text = format!(
        "rule_files: ['{}']\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:{input}    \
         promql_expr_test:\n      - expr: count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}})\n        \
         eval_time: {minutes}m\n        exp_samples: {expected}\n",
        rules().display()
    );
    let file = folder.join("alerts-test.yml");
    std::fs::write(&file, text)?;
    let promtool = promtool().context("promtool is missing")?;
    let output = Shell::new(promtool).args(["test", "rules"]).arg(&file).output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Ok((!output.status.success()).then(|| said.into_owned()))
}
