//! `rekindle appliance`: build one, run it, reset it.

use crate::arguments::{Appliance, Common};
use rekindle_appliance::Build;
use rekindle_base::units::format_size;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use serde_json::json;

/// Runs the command; gives the exit code.
pub fn run(common: &Common, command: &Appliance) -> Outcome<u8> {
    match command {
        Appliance::Build(wanted) => build(common, wanted).map(|()| 0),
        Appliance::Run(wanted) => rekindle_appliance::run(wanted, common.json),
        Appliance::Reset(reset) => {
            rekindle_appliance::reset(&reset.folder, reset.panic)?;
            common.told(&json!({ "reset": true, "panic": reset.panic }), "the guest starts again");
            Ok(0)
        }
    }
}

fn build(common: &Common, wanted: &Build) -> Outcome {
    let built = rekindle_appliance::build(wanted)?;
    if common.json {
        output::json(&json!({
            "folder": built.folder, "kernel": built.kernel, "modules": built.modules,
            "initramfs_bytes": built.initramfs_bytes, "memory": built.memory,
            "disk": built.disk, "disk_kept": built.disk_kept,
        }));
        return Ok(());
    }
    let (size, modules) = (format_size(built.initramfs_bytes as u64), built.modules.len());
    let (memory, path) = (format_size(wanted.memory), built.memory.path.display());
    let disk = if built.disk_kept { "kept as it is".into() } else { format_size(wanted.disk) };
    output::line(&format!("appliance in {}", built.folder.display()));
    output::pairs(&[
        ("  kernel", built.kernel),
        ("  initramfs", format!("{size}, {modules} modules")),
        ("  disk", disk),
        ("  memory", format!("{memory} of this host, {path}")),
    ]);
    output::line("Next:");
    output::line(&format!("  rekindle appliance run {}", built.folder.display()));
    Ok(())
}
