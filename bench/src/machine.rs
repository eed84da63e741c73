//! The machine: its description, the load of other processes, and the cores of our threads.

use anyhow::{Context, Result};
use std::collections::HashMap;
use std::fs::read_to_string;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Ticks of `/proc` a second; the same on all common Linux systems.
const TICKS: f64 = 100.0;
/// Share of one core that other processes may use before a run counts as disturbed.
pub const DISTURBED: f64 = 0.10;
/// Time of one look for quiet.
const LOOK: Duration = Duration::from_millis(500);

/// Describes the machine in one line.
pub fn describe() -> String {
    let cpu = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown CPU", |(_, name)| name.trim());
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok());
    format!(
        "{model}, {cores} cores, {:.0} GiB, Linux {}",
        memory.unwrap_or(0.0) / 1048576.0,
        kernel.trim()
    )
}

/// Returns the time of day in UTC, for the document.
pub fn today() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    output.map_or_else(
        |_| "unknown".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().into(),
    )
}

/// Returns `some avg10` of CPU pressure.
pub fn pressure() -> f64 {
    let text = read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let value = text.split_whitespace().find_map(|word| word.strip_prefix("avg10="));
    value.and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
}

/// Waits until other processes leave the machine alone, but no longer than `bound`. The kernel's
/// averages would not do: they still include our own last run.
pub fn wait_for_quiet(bound: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < bound {
        let watch = Watch::start();
        std::thread::sleep(LOOK);
        if watch.others() < DISTURBED {
            return;
        }
    }
}

/// A counter of the CPU time of others: the time used, without this process, its descendants and
/// the kernel's threads.
pub struct Watch {
    begin: Instant,
    used: f64,
    ours: f64,
}

impl Watch {
    /// Begins to count.
    pub fn start() -> Self {
        Self { begin: Instant::now(), used: used(), ours: ours() }
    }

    /// Returns the CPU seconds that the whole machine used since the start.
    pub fn used(&self) -> f64 {
        used() - self.used
    }

    /// Returns the share of one core that others used since the start.
    pub fn others(&self) -> f64 {
        let others = (used() - self.used) - (ours() - self.ours);
        (others / self.begin.elapsed().as_secs_f64()).max(0.0)
    }
}

/// Counts the seconds that all processes used, and that the hypervisor gave to other guests.
fn used() -> f64 {
    let text = read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> =
        text.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let get = |at: usize| fields.get(at).copied().unwrap_or(0.0);
    // user, nice, system, steal
    (get(0) + get(1) + get(2) + get(7)) / TICKS
}

/// Returns the CPU seconds, user and system, that a process has used without its children.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    times_of(&format!("/proc/{pid}/stat"), 11..13)
}

/// Returns the CPU seconds, user and system, of the children of this process that have ended.
pub fn cpu_seconds_of_children() -> Result<f64> {
    times_of("/proc/self/stat", 13..15)
}

fn times_of(stat: &str, fields: Range<usize>) -> Result<f64> {
    let text = read_to_string(stat).with_context(|| stat.to_owned())?;
    let (_, rest) = text.rsplit_once(')').context("a process has a name")?;
    let ticks = rest.split_whitespace().skip(fields.start).take(fields.len());
    Ok(ticks.map(|ticks| ticks.parse::<f64>().unwrap_or(0.0)).sum::<f64>() / TICKS)
}

/// Adds up the lengths of the files in a folder and below. Hidden files are left out: they are a
/// store's own reserve and locks.
pub fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// Counts the seconds that this process, its descendants and the kernel's threads used.
fn ours() -> f64 {
    let own = std::process::id();
    let mut parents = HashMap::new();
    let mut times = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = read_to_string(entry.path().join("stat")) else { continue };
        // The name is in parentheses and may hold anything.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field =
            |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        parents.insert(pid, field(1) as u32);
        // utime, stime, and those of reaped children
        times.insert(pid, (11..15).map(field).sum::<f64>());
    }
    let is_ours = |mut pid: u32| {
        for _ in 0..64 {
            if pid == own || pid == 2 {
                return true;
            }
            match parents.get(&pid) {
                Some(&parent) if parent > 1 => pid = parent,
                _ => return false,
            }
        }
        false
    };
    times.iter().filter(|(pid, _)| is_ours(**pid)).map(|(_, time)| time).sum::<f64>() / TICKS
}

/// Prepares a command that runs on these cores only.
pub fn pinned(cores: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cores).arg(program);
    command
}

/// Puts the calling thread, and its later children, on these cores.
pub fn pin_this_thread(cores: &str) -> Result<()> {
    let link = std::fs::read_link("/proc/thread-self")?;
    let id = link.file_name().context("a thread has a number")?;
    let output = Command::new("taskset").arg("-cp").arg(cores).arg(id).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_counts_with_what_is_below_and_without_hidden_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("packs")).unwrap();
        for (name, bytes) in [("packs/one", 3), ("two", 4), (".reserve", 100)] {
            std::fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(folder_bytes(folder.path()).unwrap(), 7);
    }
}
