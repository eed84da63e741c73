//! fio: one job, and the figures of it that the tables use.

use crate::arguments::Layout;
use crate::machine::pinned;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;

/// Target of a job.
#[derive(Debug, Clone)]
pub enum Target {
    /// An export, by its URI.
    Nbd(String),
    /// A file, accessed with system calls.
    File(String),
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    pub target: Target,
    /// fio's `rw`.
    pub pattern: &'static str,
    pub depth: u32,
    pub seconds: u64,
    pub mebibytes: u64,
    /// Further options.
    pub more: Vec<String>,
}

/// Result of a job.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub iops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Job {
    /// Makes a job of 4 KiB requests at random places of a volume.
    pub fn nbd(
        uri: String,
        pattern: &'static str,
        depth: u32,
        seconds: u64,
        mebibytes: u64,
    ) -> Self {
        Self { target: Target::Nbd(uri), pattern, depth, seconds, mebibytes, more: Vec::new() }
    }

    /// Makes a job of 4 KiB requests at random places of a file, each with one system call.
    pub fn file(path: &Path, pattern: &'static str, seconds: u64, mebibytes: u64) -> Self {
        let target = Target::File(path.display().to_string());
        Self { target, pattern, depth: 1, seconds, mebibytes, more: Vec::new() }
    }

    /// Adds an option.
    pub fn with(mut self, option: &str) -> Self {
        self.more.push(option.to_owned());
        self
    }

    /// Runs the job on the client's cores.
    pub fn run(&self, layout: &Layout) -> Result<Figures> {
        let mut command = pinned(&layout.client, "fio");
        command.args(["--name=bench", "--output-format=json", "--percentile_list=50:99"]);
        command.args(["--norandommap", "--randrepeat=0", "--time_based"]);
        match &self.target {
            Target::Nbd(uri) => command.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
            Target::File(path) => command.arg("--ioengine=psync").arg(format!("--filename={path}")),
        };
        command.arg(format!("--rw={}", self.pattern)).arg("--bs=4k");
        command.arg(format!("--iodepth={}", self.depth)).arg(format!("--runtime={}", self.seconds));
        command.arg(format!("--size={}m", self.mebibytes)).args(&self.more);
        let output = command.output().context("cannot run fio: is it installed?")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("{command:?} failed: {}{}", text, String::from_utf8_lossy(&output.stderr));
        }
        figures(&text, self.pattern).with_context(|| format!("{command:?} printed {text}"))
    }
}

/// Parses fio's output. Notes may stand before the JSON.
fn figures(text: &str, pattern: &str) -> Result<Figures> {
    let begin = text.find('{').context("no JSON")?;
    let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
    let value = values.next().context("no JSON")??;
    let direction = if pattern.ends_with("read") { "read" } else { "write" };
    let side = &value["jobs"][0][direction];
    let number = |value: &Value| value.as_f64().context("a figure is missing");
    let latency = &side["clat_ns"];
    Ok(Figures {
        iops: number(&side["iops"])?,
        p50_us: number(&latency["percentile"]["50.000000"])? / 1e3,
        p99_us: number(&latency["percentile"]["99.000000"])? / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_behind_notes() {
        let text = r#"note: something
            {"jobs": [{"read": {"iops": 1.0}, "write": {"iops": 12.5, "clat_ns":
            {"percentile": {"50.000000": 2000, "99.000000": 3000}}}}]} trailing"#;
        let found = figures(text, "randwrite").unwrap();
        assert_eq!((found.iops, found.p50_us, found.p99_us), (12.5, 2.0, 3.0));
        assert!(figures(text, "randread").is_err());
        assert!(figures("", "randread").is_err());
    }
}
