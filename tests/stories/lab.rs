//! `rekindle lab`: a cluster on one machine, for people to try.

use anyhow::{Context, Result, ensure};
use e2e::daemon::{binary, scratch};
use e2e::shell::Shell;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running `rekindle lab`; stopped on drop.
struct Lab {
    child: Child,
    nodes: Vec<PathBuf>,
}

impl Lab {
    fn start(dir: &Path, count: usize) -> Result<Self> {
        let mut command = Command::new(binary());
        command.args(["lab", "--json", "--nodes", &count.to_string(), "--dir"]).arg(dir);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let mut lab = Self { child, nodes: Vec::new() };
        let said: Value = serde_json::from_str(&line).context("the lab says where it serves")?;
        for node in said["nodes"].as_array().context("nodes")? {
            lab.nodes.push(PathBuf::from(node["dir"].as_str().context("a folder")?));
        }
        ensure!(lab.nodes.len() == count, "{said}");
        Ok(lab)
    }

    fn cli(&self, node: usize, words: &[&str]) -> Result<Value> {
        let said = Shell::new(binary()).args(words).arg("--json").arg("--dir");
        Ok(serde_json::from_str(&said.arg(&self.nodes[node]).run()?)?)
    }

    fn interrupt(&mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::INT)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.interrupt()?;
        for node in &self.nodes {
            let socket = node.join("rekindle.sock");
            ensure!(UnixStream::connect(&socket).is_err(), "{} serves on", node.display());
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

#[test]
fn a_lab_of_three_nodes_survives_a_drill_and_goes_on_where_it_was() -> Result<()> {
    let dir = scratch("lab")?;
    let mut lab = Lab::start(&dir, 3)?;
    let shown = lab.cli(2, &["cluster", "ls"])?;
    ensure!(shown["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3), "{shown}");
    lab.cli(1, &["volume", "create", "kept", "--size", "8M", "--copies", "1"])?;
    let through = lab.nodes[1].join("nbd.sock").display().to_string();
    let drill = ["drill", "failover", "one", "--seconds", "1", "--through", &through];
    let report = lab.cli(0, &drill)?;
    println!("{report}");
    ensure!(report["acknowledged_writes_lost"] == 0, "{report}");
    ensure!(report["writes_acknowledged"].as_u64().is_some_and(|count| count > 100), "{report}");
    // A second lab in the folder starts what has ended, and stops nothing else.
    let mut second = Lab::start(&dir, 3)?;
    let shown = second.cli(0, &["cluster", "ls"])?;
    ensure!(shown["nodes"].as_array().is_some_and(|nodes| nodes.len() == 4), "{shown}");
    second.interrupt()?;
    ensure!(UnixStream::connect(lab.nodes[0].join("rekindle.sock")).is_err(), "one is stopped");
    lab.cli(1, &["volume", "show", "kept"])?;
    lab.stop()?;

    let mut lab = Lab::start(&dir, 3)?;
    let listed = lab.cli(0, &["volume", "ls"])?.to_string();
    let left = report["left"].as_str().context("a name")?;
    ensure!(listed.contains("kept") && listed.contains(left), "{listed}");
    lab.stop()?;
    Ok(std::fs::remove_dir_all(dir)?)
}
