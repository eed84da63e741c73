//! `cargo x`: the one task runner. No shell scripts beside it.
#![expect(clippy::disallowed_methods, reason = "a build tool works on the real machine")]

mod circles;
mod mutants;
mod run;
mod tidy;
mod tools;

use anyhow::{Result, bail};
use run::{cargo, step};

const HELP: &str = "\
cargo x TASK

  check            formatting, lints, tidy: what must hold in every commit
  test             everything: installs what it needs, builds, unit and property tests, simulation, stories, fuzz smoke;
                   in CI also a tenth of the mutants and a minute of fuzzing
  sim [SEEDS]      simulation only, that many seeds (10000)
  e2e [FILTER]     stories through the released binary only
  mutants [NAME]   puts kept faults into a copy: a suite must see each. A tenth a day, or --all, or those of that name
  fuzz [SECONDS]   every fuzz target for that long (60), with libFuzzer
  bench SUITE      benchmarks; writes the tables of docs/benchmarks.md (block, restart, store, peers, files)
  tidy             layers, sizes, documents and kept faults against code
  tools [--ceph]   installs what the tests need and says what is missing; with --ceph, Ceph's S3 gateway, too
";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    std::env::set_current_dir(run::root())?;
    if arguments.iter().any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    match arguments.first().map(String::as_str) {
        Some("check") => check(),
        Some("test") => test(),
        Some("sim") => sim(rest.first().map_or("10000", String::as_str)),
        Some("e2e") => e2e(rest),
        Some("mutants") => mutants::mutants(rest),
        Some("fuzz") => fuzz(rest.first().map_or("60", String::as_str)),
        Some("bench") => bench(rest),
        Some("tidy") => tidy::tidy(),
        Some("tools") => match rest {
            [] => tools::install().map(|_| ()),
            [one] if one == "--ceph" => tools::install().and_then(|_| tools::install_ceph()),
            other => bail!("`tools` takes --ceph, not {other:?}"),
        },
        Some("help") | None => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => bail!("no task is called '{other}'\n\n{HELP}"),
    }
}

fn check() -> Result<()> {
    step("formatting");
    cargo(&["fmt", "--all", "--check"])?;
    step("lints");
    cargo(&[
        "clippy",
        "--profile",
        "ci",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ])?;
    tidy::tidy()
}

/// Most minutes for everything together in CI; the step that hangs is named. `REKINDLE_MINUTES`
/// overrides it.
const MINUTES_MAX: u64 = 80;

/// Seeds of the simulation in a run of everything. `cargo x sim` takes more, for a change of what
/// it is about.
const SEEDS: &str = "4000";

/// Stories mostly wait for clocks, disks and processes.
const STORIES_TOGETHER: &str = "--test-threads=2";

fn test() -> Result<()> {
    let minutes = std::env::var("REKINDLE_MINUTES").ok().and_then(|minutes| minutes.parse().ok());
    if run::is_ci() || minutes.is_some() {
        run::set_limit(std::time::Duration::from_secs(60 * minutes.unwrap_or(MINUTES_MAX)));
    }
    let tools = tools::install()?;
    // One profile for all that is tested: as the released binary, and it checks its assertions. All
    // of it is built at once, or cargo would build the same crates twice, with other features.
    step("build");
    cargo(&["test", "--profile", "ci", "--workspace", "--no-run"])?;
    step("unit, property and conformance tests");
    tools.cargo(&[
        "test",
        "--profile",
        "ci",
        "--workspace",
        "--exclude",
        "e2e",
        "--no-fail-fast",
    ])?;
    // Apart: other suites have seeds, too, and 10,000 of theirs take an hour.
    sim(SEEDS)?;
    step("tidy");
    tidy::tidy()?;
    step("stories");
    let binary = run::root().join("target/ci/rekindle").display().to_string();
    tools.cargo_with(
        &[
            "test",
            "--profile",
            "ci",
            "--workspace",
            "--test",
            "stories",
            "--no-fail-fast",
            "--",
            STORIES_TOGETHER,
        ],
        &[("REKINDLE_BINARY", &binary), ("RUST_LIB_BACKTRACE", "0")],
    )?;
    if run::is_ci() {
        mutants::mutants(&[])?;
        // A minute for all of them together.
        fuzz("6")?;
    }
    println!("\nall tests passed");
    Ok(())
}

fn sim(seeds: &str) -> Result<()> {
    step(&format!("simulation, {seeds} seeds"));
    run::cargo_with(
        &["test", "--profile", "ci", "--workspace", "--test", "seeds", "--", "--nocapture"],
        &[("REKINDLE_SEEDS", seeds)],
    )
}

fn e2e(filter: &[String]) -> Result<()> {
    let tools = tools::install()?;
    cargo(&["build", "--release", "--package", "rekindle"])?;
    let mut arguments = vec!["test", "--release", "--package", "e2e", "--"];
    arguments.extend(filter.iter().map(String::as_str));
    arguments.push(STORIES_TOGETHER);
    tools.cargo(&arguments)
}

fn fuzz(seconds: &str) -> Result<()> {
    tools::cargo_fuzz()?;
    // Checksums stop made-up inputs: every target starts from the golden images of all formats.
    let mut golden = Vec::new();
    for folder in std::fs::read_dir("crates")?.flatten() {
        let images = folder.path().join("golden");
        if images.is_dir() {
            golden.push(images.display().to_string());
        }
    }
    // Inputs that once made a target do something new or bad, by target.
    let kept = |target: &str| format!("fuzz/kept/{target}");
    golden.sort_unstable();
    let time = format!("-max_total_time={seconds}");
    for target in run::output("cargo", &["fuzz", "list", "--fuzz-dir", "fuzz"])?.lines() {
        step(&format!("fuzz {target}, {seconds} s"));
        // libFuzzer adds interesting inputs to the first folder.
        let corpus = format!("fuzz/corpus/{target}");
        std::fs::create_dir_all(&corpus)?;
        let mut arguments =
            vec!["fuzz", "run", "--fuzz-dir", "fuzz", "--sanitizer", "none", "--features"];
        arguments.extend(["libfuzzer", target, &corpus]);
        arguments.extend(golden.iter().map(String::as_str));
        let kept = kept(target);
        if std::path::Path::new(&kept).is_dir() {
            arguments.push(&kept);
        }
        arguments.extend(["--", &time, "-max_len=65536"]);
        run::cargo_with(&arguments, &[("RUSTC_BOOTSTRAP", "1")])?;
    }
    Ok(())
}

fn bench(names: &[String]) -> Result<()> {
    let tools = tools::install()?;
    if names.first().is_some_and(|suite| suite == "store") {
        tools::install_rivals();
    }
    cargo(&["build", "--release", "--package", "rekindle", "--package", "bench"])?;
    let mut arguments = vec!["run", "--release", "--package", "bench", "--"];
    arguments.extend(names.iter().map(String::as_str));
    tools.cargo(&arguments)
}
