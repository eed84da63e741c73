//! The settings file of `up`, in TOML. Weaker than the environment and the command line, stronger
//! than the defaults.
//!
//! An unknown key is refused: a slip in a settings file would otherwise be found on the day when
//! the setting is needed.

use crate::nearest::nearest;
use crate::parse::{self, ParityChoice, Place};
use rekindle_base::Kind;
use rekindle_node::config::Compression;
use rekindle_node::prices::Price;
use rekindle_supervise::access;
use rekindle_terminal::failure::{Failure, Outcome};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// Keys at the top level.
const KEYS: [&str; 27] = [
    "dir",
    "store",
    "store_fault",
    "nbd",
    "http",
    "insecure",
    "socket_group",
    "http_socket_group",
    "warm",
    "warm_size",
    "warm_frames",
    "flash_budget",
    "cache",
    "index",
    "requests",
    "held",
    "compression",
    "parity",
    "read_ahead",
    "direct_path",
    "destage",
    "sweep",
    "stuck_after",
    "stop_parallel",
    "collector",
    "scrub",
    "prices",
];
/// Keys under `[destage]`.
const DESTAGE_KEYS: [&str; 5] = ["age", "bytes", "batch", "workers", "deadline"];

/// Keys under `[sweep]`.
const SWEEP_KEYS: [&str; 4] = ["interval", "percent", "grace", "compact_below"];

/// Keys under `[collector]`.
const COLLECTOR_KEYS: [&str; 3] = ["idle", "interval", "batch"];

/// Keys under `[scrub]`.
const SCRUB_KEYS: [&str; 2] = ["interval", "rate"];

/// Keys under `[prices]`.
const PRICE_KEYS: [&str; 4] = ["write", "read", "stored", "received"];

/// The settings of a file; `None` where the file says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub dir: Option<PathBuf>,
    pub store: Option<String>,
    pub store_fault: Option<String>,
    pub nbd: Option<Vec<Place>>,
    pub http: Option<Vec<Place>>,
    pub insecure: Option<bool>,
    pub socket_group: Option<u32>,
    pub http_socket_group: Option<u32>,
    pub warm: Option<PathBuf>,
    pub warm_size: Option<u64>,
    pub warm_frames: Option<u64>,
    pub flash_budget: Option<u64>,
    pub cache: Option<u64>,
    pub index: Option<u64>,
    pub requests: Option<u64>,
    pub held: Option<u64>,
    pub compression: Option<Compression>,
    pub parity: Option<ParityChoice>,
    pub read_ahead: Option<bool>,
    pub direct_path: Option<bool>,
    pub destage: Destage,
    pub sweep: Sweep,
    pub stuck_after: Option<Duration>,
    pub stop_parallel: Option<usize>,
    pub collector: Collector,
    pub scrub: Scrub,
    pub prices: PriceList,
}

/// The settings under `[prices]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriceList {
    pub write: Option<Price>,
    pub read: Option<Price>,
    pub stored: Option<Price>,
    pub received: Option<Price>,
}

/// The settings under `[scrub]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrub {
    /// Inner `None`: off.
    pub interval: Option<Option<Duration>>,
    /// Bytes per second.
    pub rate: Option<u64>,
}

/// The settings under `[collector]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collector {
    /// Inner `None`: off.
    pub idle: Option<Option<Duration>>,
    pub interval: Option<Duration>,
    pub batch: Option<u64>,
}

/// The settings under `[sweep]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Inner `None`: off.
    pub interval: Option<Option<Duration>>,
    pub percent: Option<u32>,
    pub grace: Option<Duration>,
    pub compact_below: Option<u8>,
}

/// The settings under `[destage]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destage {
    pub age: Option<Duration>,
    pub bytes: Option<u64>,
    pub batch: Option<u64>,
    pub workers: Option<usize>,
    pub deadline: Option<Duration>,
}

/// Reads a settings file.
#[expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]
pub fn read(path: &Path) -> Outcome<Settings> {
    let refuse = |cause: String| {
        Failure::new(format!("cannot use the settings file {}", path.display()))
            .because(cause)
            .kind(Kind::Invalid)
    };
    let bytes = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("it is not text (UTF-8)".to_owned()))?;
    parse(&text).map_err(refuse)
}

fn parse(text: &str) -> Result<Settings, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    check_keys(&table, "", &KEYS)?;
    let destage = section(&table, "destage", &DESTAGE_KEYS)?;
    let sweep = section(&table, "sweep", &SWEEP_KEYS)?;
    let collector = section(&table, "collector", &COLLECTOR_KEYS)?;
    let scrub = section(&table, "scrub", &SCRUB_KEYS)?;
    let prices = section(&table, "prices", &PRICE_KEYS)?;
    let price = |key| read_key(&prices, key, |text: &str| text.parse::<Price>());
    Ok(Settings {
        dir: read_key(&table, "dir", |text| Ok(PathBuf::from(text)))?,
        store: read_key(&table, "store", |text| Ok(text.to_owned()))?,
        store_fault: read_key(&table, "store_fault", |text| Ok(text.to_owned()))?,
        nbd: read_list(&table, "nbd", parse::address)?,
        http: read_list(&table, "http", parse::address)?,
        insecure: read_key(&table, "insecure", parse::switch)?,
        socket_group: read_key(&table, "socket_group", access::group)?,
        http_socket_group: read_key(&table, "http_socket_group", access::group)?,
        warm: read_key(&table, "warm", |text| Ok(PathBuf::from(text)))?,
        warm_size: read_key(&table, "warm_size", parse::budget)?,
        warm_frames: read_key(&table, "warm_frames", parse::budget)?,
        flash_budget: read_key(&table, "flash_budget", parse::budget)?,
        cache: read_key(&table, "cache", parse::budget)?,
        index: read_key(&table, "index", parse::budget)?,
        requests: read_key(&table, "requests", parse::budget)?,
        held: read_key(&table, "held", parse::budget)?,
        compression: read_key(&table, "compression", compression)?,
        parity: read_key(&table, "parity", parse::parity)?,
        read_ahead: read_key(&table, "read_ahead", parse::switch)?,
        direct_path: read_key(&table, "direct_path", parse::switch)?,
        destage: Destage {
            age: read_key(&destage, "age", parse::duration)?,
            bytes: read_key(&destage, "bytes", parse::budget)?,
            batch: read_key(&destage, "batch", parse::budget)?,
            workers: read_key(&destage, "workers", workers)?,
            deadline: read_key(&destage, "deadline", parse::duration)?,
        },
        sweep: Sweep {
            interval: read_key(&sweep, "interval", interval)?,
            percent: read_key(&sweep, "percent", percent)?,
            grace: read_key(&sweep, "grace", parse::duration)?,
            compact_below: read_key(&sweep, "compact_below", compact_below)?,
        },
        stuck_after: read_key(&table, "stuck_after", parse::duration)?,
        stop_parallel: read_key(&table, "stop_parallel", workers)?,
        collector: Collector {
            idle: read_key(&collector, "idle", interval)?,
            interval: read_key(&collector, "interval", pause)?,
            batch: read_key(&collector, "batch", batch)?,
        },
        prices: PriceList {
            write: price("write")?,
            read: price("read")?,
            stored: price("stored")?,
            received: price("received")?,
        },
        scrub: Scrub {
            interval: read_key(&scrub, "interval", interval)?,
            rate: read_key(&scrub, "rate", parse::budget)?,
        },
    })
}

/// Returns a table of the file; empty when the file lacks it.
fn section(table: &Table, name: &str, known: &[&str]) -> Result<Table, String> {
    let section = match table.get(name) {
        None => Table::new(),
        Some(Value::Table(section)) => section.clone(),
        Some(_) => return Err(format!("'{name}' must be a table: write [{name}]")),
    };
    check_keys(&section, &format!("{name}."), known)?;
    Ok(section)
}

fn check_keys(table: &Table, prefix: &str, known: &[&str]) -> Result<(), String> {
    let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    Err(match nearest(key, known) {
        Some(near) => {
            format!("there is no setting '{prefix}{key}': did you mean '{prefix}{near}'?")
        }
        None => format!("there is no setting '{prefix}{key}': there are {}", known.join(", ")),
    })
}

/// A value as text: sizes and counts may be written with or without quotes.
fn text_of(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        other => Err(format!("'{key}' must be text or a number, not {}", other.type_str())),
    }
}

fn read_key<T>(
    table: &Table,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let Some(value) = table.get(key) else { return Ok(None) };
    read(&text_of(key, value)?).map(Some).map_err(|error| format!("'{key}': {error}"))
}

fn read_list<T>(
    table: &Table,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<Vec<T>>, String> {
    let values = match table.get(key) {
        None => return Ok(None),
        Some(Value::Array(values)) => values.clone(),
        Some(value) => vec![value.clone()],
    };
    let each = values
        .iter()
        .map(|value| read(&text_of(key, value)?).map_err(|error| format!("'{key}': {error}")));
    each.collect::<Result<_, _>>().map(Some)
}

fn compression(text: &str) -> Result<Compression, String> {
    match text {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::Zstd),
        _ => Err(format!("'{text}' is not one of none, lz4, zstd")),
    }
}

fn workers(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|&count| (1..=64).contains(&count))
        .ok_or_else(|| format!("'{text}' is not from 1 to 64"))
}

fn batch(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| format!("'{text}' is not a number of volumes"))
}

fn percent(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|percent| (1..=100).contains(percent))
        .ok_or_else(|| format!("'{text}' is not from 1 to 100"))
}

/// Reads the share below which a pack is compacted. At 100 each sweep would copy everything.
fn compact_below(text: &str) -> Result<u8, String> {
    text.parse()
        .ok()
        .filter(|percent| (0..=95).contains(percent))
        .ok_or_else(|| format!("'{text}' is not from 0 to 95"))
}

/// Reads an interval; `off` is never.
fn interval(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" { Ok(None) } else { pause(text).map(Some) }
}

/// Reads the pause between two runs, which is not zero.
fn pause(text: &str) -> Result<Duration, String> {
    match parse::duration(text)? {
        Duration::ZERO => {
            Err(format!("'{text}' is again and again without a pause: write a time such as 1h"))
        }
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_nothing_and_a_size_without_a_unit_are_refused() {
        for (text, hint) in [
            ("[sweep]\ninterval = '0s'", "without a pause"),
            ("[scrub]\ninterval = '0s'", "without a pause"),
            ("[collector]\ninterval = '0s'", "without a pause"),
            ("cache = '256'", "256M"),
            ("[scrub]\nrate = '16'", "16M"),
        ] {
            let Err(refused) = parse(text) else { panic!("it is taken: {text}") };
            let refused = format!("{refused:?}");
            assert!(refused.contains(hint), "{text}: {refused}");
        }
    }

    #[test]
    fn every_setting_is_read() {
        let settings = parse(
            r#"
            store = "s3://bucket/prefix"
            nbd = ["127.0.0.1:10809", "unix:/run/x.sock"]
            http = "off"
            flash_budget = "4G"
            cache = 1048576
            compression = "lz4"
            parity = "16+1"
            stuck_after = "3s"
            stop_parallel = 8
            read_ahead = "on"
            direct_path = "off"
            [destage]
            age = "2s"
            workers = 4
            [sweep]
            interval = "off"
            percent = 50
            compact_below = 60
            [collector]
            idle = "30m"
            batch = 500
            [scrub]
            interval = "168h"
            rate = "20M"
            [prices]
            write = 0.004
            received = "0.09"
            "#,
        )
        .expect("a good file");
        assert_eq!(settings.store.as_deref(), Some("s3://bucket/prefix"));
        assert_eq!(settings.nbd.expect("two").len(), 2);
        assert_eq!(settings.http, Some(vec![None]));
        assert_eq!(settings.flash_budget, Some(4 << 30));
        assert_eq!(settings.cache, Some(1 << 20));
        assert_eq!(settings.compression, Some(Compression::Lz4));
        assert_eq!(settings.parity.flatten().map(|parity| parity.to_string()), Some("16+1".into()));
        assert_eq!(parse("parity = 'off'").expect("good").parity, Some(None));
        assert_eq!((settings.read_ahead, settings.direct_path), (Some(true), Some(false)));
        assert_eq!(settings.destage.age, Some(Duration::from_secs(2)));
        assert_eq!(settings.destage.workers, Some(4));
        assert_eq!(settings.stuck_after, Some(Duration::from_secs(3)));
        assert_eq!(settings.stop_parallel, Some(8));
        assert_eq!((settings.sweep.interval, settings.sweep.percent), (Some(None), Some(50)));
        assert_eq!(settings.sweep.compact_below, Some(60));
        assert_eq!(settings.collector.idle, Some(Some(Duration::from_secs(1800))));
        assert_eq!((settings.collector.interval, settings.collector.batch), (None, Some(500)));
        assert_eq!(settings.prices.write, Some(Price(4_000_000)));
        assert_eq!(settings.prices.received, Some(Price(90_000_000)));
        let week = Duration::from_secs(7 * 24 * 3600);
        assert_eq!(
            (settings.scrub.interval, settings.scrub.rate),
            (Some(Some(week)), Some(20 << 20))
        );
        assert_eq!(parse(""), Ok(Settings::default()));
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_name() {
        let error = parse("flash-budget = '1G'").expect_err("a slip");
        assert!(error.contains("did you mean 'flash_budget'?"), "{error}");
        let error = parse("[destage]\nworker = 1").expect_err("a slip");
        assert!(error.contains("did you mean 'destage.workers'?"), "{error}");
        let error = parse("colour = 'red'").expect_err("unknown");
        assert!(error.contains("there are dir, store"), "{error}");
    }

    #[test]
    fn bad_values_name_their_key() {
        for (text, word) in [
            ("cache = 'many'", "'cache'"),
            ("nbd = 'nowhere'", "'nbd'"),
            ("http = '0.0.0.0'", "'http'"),
            ("compression = 'brotli'", "'compression'"),
            ("parity = '16'", "'parity': '16' is no parity: write 16+1"),
            ("parity = 16", "'parity'"),
            ("destage = 1", "'destage'"),
            ("[destage]\nworkers = 0", "'workers'"),
            ("[collector]\nbatch = 0", "'batch'"),
            ("store = true", "'store'"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(word), "{error}");
        }
        assert!(parse("store = ").is_err());
    }

    const DOCUMENTED: &str = include_str!("../../../contrib/rekindle.toml");

    /// Returns the documented file with every setting switched on.
    fn switched_on() -> String {
        let is_setting = |line: &str| {
            let key = line.split([' ', '=']).next().unwrap_or_default();
            line.starts_with('[')
                || (line.contains(" = ")
                    && !key.is_empty()
                    && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        };
        DOCUMENTED
            .lines()
            .filter_map(|line| line.strip_prefix("# ").filter(|line| is_setting(line)))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn every_setting_is_documented() {
        let table: Table = switched_on().parse().expect("TOML");
        let names =
            |table: &Table| table.keys().cloned().collect::<std::collections::BTreeSet<_>>();
        let all = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect();
        assert_eq!(names(&table), all(&KEYS));
        for (section, keys) in [
            ("destage", &DESTAGE_KEYS[..]),
            ("sweep", &SWEEP_KEYS),
            ("collector", &COLLECTOR_KEYS),
            ("prices", &PRICE_KEYS),
            ("scrub", &SCRUB_KEYS),
        ] {
            let documented = table[section].as_table().expect(section);
            assert_eq!(names(documented), all(keys), "{section}");
        }
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        // Where the default is nothing, or depends on the machine, the file shows an example and
        // says so in brackets.
        let text: String = DOCUMENTED
            .lines()
            .filter(|line| !line.contains("[example"))
            .fold(String::new(), |text, line| text + line + "\n");
        let set: Settings = {
            let lines = switched_on();
            let kept: Vec<&str> = lines.lines().filter(|line| text.contains(line)).collect();
            parse(&kept.join("\n")).expect("a good file")
        };
        let is = rekindle_node::Config::new("/d".into());
        assert_eq!(set.cache, Some(is.cache_bytes));
        assert_eq!(set.index, Some(is.index_bytes));
        assert_eq!((set.requests, set.held), (Some(is.requests_bytes), Some(is.held_bytes)));
        assert_eq!(set.compression, Some(is.compression));
        assert_eq!(set.parity, Some(is.parity));
        assert_eq!((set.read_ahead, set.direct_path), (Some(is.read_ahead), Some(is.direct_path)));
        assert_eq!(set.insecure, Some(false));
        assert_eq!(set.stuck_after, Some(is.stuck_after));
        let (destage, found) = (&set.destage, &is.destage);
        assert_eq!((destage.age, destage.bytes), (Some(found.age), Some(found.bytes)));
        assert_eq!(
            (destage.batch, destage.workers),
            (Some(found.batch_bytes), Some(found.workers))
        );
        assert_eq!(destage.deadline, Some(found.deadline));
        let (sweep, found) = (&set.sweep, &is.sweep);
        assert_eq!((sweep.interval, sweep.percent), (Some(found.interval), Some(found.percent)));
        assert_eq!(sweep.grace, Some(found.grace));
        assert_eq!(sweep.compact_below, Some(found.compact_below));
        let (collector, found) = (&set.collector, &is.collector);
        assert_eq!((collector.idle, collector.batch), (Some(found.idle), Some(found.batch)));
        assert_eq!(collector.interval, Some(found.interval));
        let (prices, found) = (&set.prices, &is.prices);
        assert_eq!((prices.write, prices.read), (Some(found.write), Some(found.read)));
        assert_eq!((prices.stored, prices.received), (Some(found.stored), Some(found.received)));
        let (scrub, found) = (&set.scrub, &is.scrub);
        assert_eq!(
            (scrub.interval, scrub.rate),
            (Some(found.interval), Some(found.bytes_per_second))
        );
        // The rest is an example, and says so.
        let none = [set.store, set.store_fault].iter().all(Option::is_none);
        assert!(none && set.nbd.is_none() && set.http.is_none() && set.dir.is_none());
        assert!(set.warm.is_none() && set.warm_size.is_none() && set.stop_parallel.is_none());
    }
}
