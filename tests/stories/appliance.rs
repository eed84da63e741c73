//! The appliance in a guest: a panic or a reset of the whole machine is a warm start when the
//! host's RAM is kept, and a correct one when it is gone.

use anyhow::{Context, Result, bail};
use e2e::daemon::{binary, scratch};
use e2e::promises::Promises;
use e2e::shell::{Shell, skip, skip_without, tools, wait_until};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BLOCKS: u64 = 2048;
const DEPTH: usize = 8;

/// A running `rekindle appliance run`; stopped on drop, and its files removed.
struct Appliance {
    folder: PathBuf,
    scratch: PathBuf,
    memory: PathBuf,
    runner: Option<Child>,
}

/// Whether an appliance cannot be built and run here; then prints SKIPPED and why.
fn is_missing() -> bool {
    let mut missing = Vec::new();
    if !tools().join("kernel/boot").is_dir() {
        missing.push("linux-image-cloud-amd64 (cargo x tools)".to_owned());
    }
    skip_without(&["qemu-system-x86_64", "mkfs.ext4"], false) || skip(&missing)
}

impl Appliance {
    fn start(name: &str, kind: &str) -> Result<Self> {
        let scratch = scratch(name)?;
        let folder = scratch.join("a");
        let built = Shell::new(binary())
            .args([
                "appliance",
                "build",
                "--json",
                "--memory",
                "128M",
                "--disk",
                "2G",
                "--memory-kind",
                kind,
                "--kernel",
            ])
            .arg(tools().join("kernel"))
            .arg("--out")
            .arg(&folder)
            .run()?;
        let built: Value = serde_json::from_str(&built)?;
        let memory = built["memory"]["path"].as_str().context("a path")?.into();
        let mut appliance = Self { folder, scratch, memory, runner: None };
        appliance.run(&[])?;
        Ok(appliance)
    }

    fn run(&mut self, more: &[&str]) -> Result<()> {
        let said = std::fs::File::create(self.scratch.join("said.txt"))?;
        let mut command = Command::new(binary());
        command
            .args(["appliance", "run", "--json", "--nbd", "off", "--http", "127.0.0.1:0"])
            .args(more)
            .arg(&self.folder);
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        self.runner = Some(command.spawn()?);
        self.wait_for_service(1)
    }

    /// Returns the output of `run`: one object a line.
    fn said(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.scratch.join("said.txt")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn services(&self) -> usize {
        self.said().iter().filter(|line| line["event"] == "serves").count()
    }

    /// Waits until the guest has begun to serve that many times.
    fn wait_for_service(&self, times: usize) -> Result<()> {
        wait_until("the guest to serve", || self.services() >= times)
            .with_context(|| self.console())
    }

    /// Returns all that the runner and the guest have printed.
    fn console(&self) -> String {
        let console = std::fs::read(self.folder.join("console.log")).unwrap_or_default();
        format!("{:?}\n{}", self.said(), String::from_utf8_lossy(&console))
    }

    fn cli(&self, arguments: &[&str]) -> Result<Value> {
        let text = Shell::new(binary())
            .args(arguments)
            .arg("--json")
            .arg("--dir")
            .arg(&self.folder)
            .run()?;
        serde_json::from_str(&text).with_context(|| format!("{arguments:?} printed {text}"))
    }

    fn connect(&self, volume: &str) -> Result<NbdClient> {
        Ok(NbdClient::connect(&self.folder.join("nbd.sock"), volume)?)
    }

    fn reset(&self, more: &[&str]) -> Result<()> {
        Shell::new(binary())
            .args(["appliance", "reset"])
            .args(more)
            .arg(&self.folder)
            .run()
            .map(drop)
    }

    /// Kills the guest's QEMU by `kill -9`, which is a power cut for the guest.
    fn kill_qemu(&self) -> Result<()> {
        let runner = self.runner.as_ref().context("it runs")?.id();
        let children = std::fs::read_to_string(format!("/proc/{runner}/task/{runner}/children"))?;
        let child =
            children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        Ok(kill_process(child.context("QEMU runs")?, Signal::KILL)?)
    }

    fn frames(&self) -> Result<Value> {
        Ok(self.cli(&["warm", "show"])?["frames"].clone())
    }

    /// Runs `rekindle stop`: the machine is off after it.
    fn stop(&mut self) -> Result<()> {
        self.cli(&["stop"]).with_context(|| self.console())?;
        let mut runner = self.runner.take().context("it runs")?;
        wait_until("the machine to be off", || {
            runner.try_wait().is_ok_and(|ended| ended.is_some())
        })?;
        let status = runner.wait()?;
        if !status.success() {
            bail!("{status}: {:?}", self.said());
        }
        Ok(())
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        if let Some(mut runner) = self.runner.take() {
            // QEMU dies with the runner.
            let _ = runner.kill();
            let _ = runner.wait();
        }
        let _ = std::fs::remove_file(&self.memory);
        if std::thread::panicking() {
            println!("{:?}", self.said());
        } else {
            let _ = std::fs::remove_dir_all(&self.scratch);
        }
    }
}

/// A volume with a client that writes to it.
struct Written {
    name: &'static str,
    random: Random,
    promises: Promises,
}

impl Written {
    fn create(appliance: &Appliance, name: &'static str, ack: &str) -> Result<Self> {
        appliance.cli(&["volume", "create", name, "--size", "8M", "--ack", ack])?;
        Ok(Self { name, random: Random::new(name.len() as u64), promises: Promises::new(BLOCKS) })
    }

    fn write(&mut self, appliance: &Appliance, writes: usize) -> Result<()> {
        let mut client = appliance.connect(self.name)?;
        let end = self.promises.acknowledged() + writes;
        let mut begun = None;
        self.promises.write_until(&mut client, DEPTH, &mut self.random, |sent| {
            sent >= *begun.get_or_insert(sent) + end
        })?;
        Ok(client.flush()?)
    }

    /// Writes until the machine is gone.
    fn write_on(&mut self, appliance: &Appliance) -> Result<()> {
        let mut client = appliance.connect(self.name)?;
        self.promises.write_until(&mut client, DEPTH, &mut self.random, |_| false)
    }

    fn check(&mut self, appliance: &Appliance) -> Result<()> {
        let before = self.promises.acknowledged();
        let lost = self.promises.check(&mut appliance.connect(self.name)?)?;
        println!(
            "{}: {before} acknowledged writes are there; {lost} in flight were lost",
            self.name
        );
        assert!(before > 0, "nothing was written");
        Ok(())
    }
}

/// Writes to two volumes, one of them with a tree in the store, until each blow stops the machine,
/// and checks that every start after it is warm.
fn is_warm_after(name: &str, kind: &str, blows: &[&[&str]]) -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    let mut appliance = Appliance::start(name, kind)?;
    let mut flash = Written::create(&appliance, "flash", "flash")?;
    let mut memory = Written::create(&appliance, "memory", "memory")?;
    flash.write(&appliance, 500)?;
    appliance.cli(&["volume", "drain", "flash"])?;
    for (number, more) in blows.iter().enumerate() {
        std::thread::scope(|scope| -> Result<()> {
            let (one, other) = (
                scope.spawn(|| flash.write_on(&appliance)),
                scope.spawn(|| memory.write_on(&appliance)),
            );
            std::thread::sleep(Duration::from_secs(1));
            appliance.reset(more)?;
            one.join().expect("no panic")?;
            other.join().expect("no panic")
        })?;
        appliance.wait_for_service(number + 2)?;
        assert_eq!(
            appliance.said().iter().filter(|line| line["event"] == "died").count(),
            0,
            "in the same QEMU"
        );
        flash.check(&appliance)?;
        memory.check(&appliance)?;
        let frames = appliance.frames()?;
        assert_eq!(frames["began"], "kept", "{frames}");
        assert!(frames["hits"].as_u64() > Some(0), "{frames}");
        let warm = appliance.cli(&["warm", "show"])?;
        assert!(
            warm["segments_kept"].as_u64() > Some(0),
            "the log's memory was not believed: {warm}"
        );
    }
    appliance.stop()
}

#[test]
fn a_panic_or_a_reset_of_the_machine_is_a_warm_start() -> Result<()> {
    is_warm_after("appliance-warm", "ivshmem", &[&["--panic"], &[]])
}

#[test]
fn persistent_memory_outlives_a_panic_of_the_machine() -> Result<()> {
    is_warm_after("appliance-pmem", "pmem", &[&["--panic"]])
}

#[test]
fn with_the_hosts_memory_gone_everything_synced_is_there() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    let mut appliance = Appliance::start("appliance-cold", "ivshmem")?;
    let mut flash = Written::create(&appliance, "flash", "flash")?;
    let mut memory = Written::create(&appliance, "memory", "memory")?;
    flash.write(&appliance, 500)?;
    appliance.cli(&["volume", "drain", "flash"])?;
    memory.write(&appliance, 500)?;
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| flash.write_on(&appliance));
        std::thread::sleep(Duration::from_secs(1));
        std::fs::remove_file(&appliance.memory)?;
        appliance.kill_qemu()?;
        writer.join().expect("no panic")
    })?;
    appliance.wait_for_service(2)?;
    flash.check(&appliance)?;
    memory.check(&appliance)?;
    let frames = appliance.frames()?;
    assert_eq!(frames["began"], "new", "{frames}");
    let status = appliance.cli(&["status"])?;
    assert_eq!(status["state"], "serving", "{status}");
    assert!(Path::new(&appliance.memory).exists(), "there is new memory");
    appliance.stop()
}

/// A QEMU that goes on when the guest is off stands for a guest whose kernel hangs on its way down.
#[test]
fn a_guest_that_hangs_when_it_is_switched_off_is_off() -> Result<()> {
    if is_missing() {
        return Ok(());
    }
    let mut appliance = Appliance::start("appliance-hangs", "ivshmem")?;
    appliance.stop()?;
    appliance.run(&["--qemu=-no-shutdown"])?;
    appliance.stop()
}

#[test]
fn what_cannot_be_run_says_so() -> Result<()> {
    let folder = scratch("appliance-none")?;
    let refused = |arguments: &[&str]| -> Result<String> {
        let output = Shell::new(binary()).args(arguments).arg(&folder).output()?;
        assert!(!output.status.success(), "{arguments:?}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for command in ["run", "reset"] {
        let error = refused(&["appliance", command])?;
        assert!(error.contains("rekindle appliance build --out"), "{error}");
    }
    let error = refused(&["appliance", "build", "--kernel", "/nowhere/vmlinuz-1", "--out"])?;
    assert!(error.contains("--modules"), "{error}");
    std::fs::write(folder.join("precious"), "mine")?;
    if !is_missing() {
        let kernel = tools().join("kernel").display().to_string();
        let error = refused(&["appliance", "build", "--kernel", &kernel, "--out"])?;
        assert!(error.contains("not empty"), "{error}");
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
