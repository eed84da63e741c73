//! The command line.

use anyhow::{Context, Result, bail, ensure};
use rekindle_base::units::{GIB, MIB, parse_size};
use std::time::Duration;

/// Least data of a store: with less, the rows say nothing.
const SIZE_MIN: u64 = 64 * MIB;

/// Help, but for the list of the suites.
pub const HELP: &str = "\
cargo x bench SUITE [OPTIONS]

  --only NAME        only this experiment; repeatable; docs/benchmarks.md stays as it is
  --rounds N         rounds a side, of which the middle one counts (5)
  --seconds S        length of one run (3)
  --size SIZE        data of the experiments of `store` (1G)
  --pin CLIENT:SERVER  cores of clients and of servers, the same for all sides (0:0,1)
  --patience S       how long a run waits for others to leave the machine alone (20)
  --json             print the rows as JSON
  --no-write         leave docs/benchmarks.md as it is
  --nightly          also what takes very long: a million volumes, 10^7 names
";

/// Cores of clients and servers: the same for both sides of every comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub client: String,
    pub server: String,
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// Name of the suite.
    pub suite: String,
    pub only: Vec<String>,
    pub rounds: usize,
    pub seconds: u64,
    /// Size of the data of a store, bytes.
    pub size: u64,
    pub layout: Layout,
    pub patience: Duration,
    pub json: bool,
    pub no_write: bool,
    pub nightly: bool,
    /// The command line as it was typed.
    pub command: String,
}

impl Arguments {
    /// Whether docs/benchmarks.md is written: only a whole run may replace a whole run.
    pub fn writes(&self) -> bool {
        !self.no_write && self.only.is_empty()
    }
}

/// Parses the command line, but for the names of suite and experiments; `None` when it asks for
/// help.
pub fn parse(words: &[String]) -> Result<Option<Arguments>> {
    let mut words_left = words.iter();
    let suite = match words_left.next().map(String::as_str) {
        None | Some("help" | "--help" | "-h") => {
            return Ok(None);
        }
        Some(word) => word.to_owned(),
    };
    let mut arguments = Arguments {
        suite,
        only: Vec::new(),
        rounds: 5,
        seconds: 3,
        size: GIB,
        layout: Layout { client: "0".into(), server: "0,1".into() },
        patience: Duration::from_secs(20),
        json: false,
        no_write: false,
        nightly: false,
        command: format!("cargo x bench {}", words.join(" ")),
    };
    while let Some(word) = words_left.next() {
        let mut value = || words_left.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--help" | "-h" => {
                return Ok(None);
            }
            "--only" => arguments.only.push(value()?.clone()),
            "--rounds" => arguments.rounds = number(value()?)?,
            "--seconds" => arguments.seconds = number(value()?)? as u64,
            "--size" => arguments.size = size(value()?)?,
            "--pin" => arguments.layout = layout(value()?)?,
            "--patience" => {
                arguments.patience = Duration::from_secs(value()?.parse().context("--patience")?);
            }
            "--json" => arguments.json = true,
            "--no-write" => arguments.no_write = true,
            "--nightly" => arguments.nightly = true,
            other => bail!("there is no option '{other}'\n\n{HELP}"),
        }
    }
    Ok(Some(arguments))
}

fn number(text: &str) -> Result<usize> {
    text.parse().ok().filter(|&number| number > 0).with_context(|| format!("'{text}' is no number"))
}

fn size(text: &str) -> Result<u64> {
    let bytes = parse_size(text)?;
    ensure!(bytes >= SIZE_MIN, "--size {text} is too small: 64M at least");
    Ok(bytes / MIB * MIB)
}

fn layout(text: &str) -> Result<Layout> {
    let (client, server) = text.split_once(':').context("--pin is CLIENT:SERVER, as in 0:0,1")?;
    Ok(Layout { client: client.to_owned(), server: server.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_read_and_slips_are_named() {
        let arguments = parse(&words("block --only flush --rounds 2 --pin 1:0")).unwrap().unwrap();
        assert_eq!((arguments.only.as_slice(), arguments.rounds), (&["flush".to_owned()][..], 2));
        assert_eq!(arguments.layout, Layout { client: "1".into(), server: "0".into() });
        assert!(!arguments.writes());
        assert!(parse(&words("block")).unwrap().unwrap().writes());
        for (wrong, named) in [
            ("block --rounds 0", "'0'"),
            ("block --rounds", "--rounds"),
            ("block --rond 1", "--rond"),
            ("store --size 1M", "64M"),
        ] {
            let error = parse(&words(wrong)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert_eq!(parse(&[]).unwrap(), None);
    }
}
