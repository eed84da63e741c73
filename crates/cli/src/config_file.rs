//! The settings file of `up`, in TOML. Weaker than the environment and the command line, stronger
//! than the defaults.
//!
//! An unknown key is refused: a slip in a settings file would otherwise be found on the day when
//! the setting is needed.

use crate::nearest::nearest;
use crate::parse;
use rekindle_base::Kind;
use rekindle_content::Compression;
use rekindle_env::Address;
use rekindle_front::nfs::Squash;
use rekindle_node::Config;
use rekindle_node::prices::Price;
use rekindle_supervise::access;
use rekindle_supervise::sockets::WantedSockets;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::words::{AddressOrOff, address};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// The settings of `up`: of a file, over the defaults.
#[derive(Debug, Default, PartialEq)]
pub struct Settings {
    pub dir: Option<PathBuf>,
    pub config: Config,
    pub sockets: WantedSockets,
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

fn place(text: &str) -> Result<Option<String>, String> {
    Ok(address(text)?.map(|place| place.to_string()))
}

fn parse(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    let mut file = Reader::of(text)?;
    file.read(&mut settings)?;
    file.end()?;
    Ok(settings)
}

/// The values of a file by their keys: `cache`, `destage.age`. The reader remembers each key that
/// it was asked for: any other key of the file is a slip.
struct Reader {
    values: BTreeMap<String, Value>,
    known: Vec<&'static str>,
}

impl Reader {
    fn of(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let mut values = BTreeMap::new();
        for (name, value) in table {
            match value {
                Value::Table(section) if !section.is_empty() => {
                    let inner = section.into_iter();
                    values.extend(inner.map(|(key, value)| (format!("{name}.{key}"), value)));
                }
                value => drop(values.insert(name, value)),
            }
        }
        Ok(Self { values, known: Vec::new() })
    }

    /// Reads every setting that there is.
    fn read(&mut self, settings: &mut Settings) -> Result<(), String> {
        let Settings { dir, config, sockets } = settings;
        self.take("dir", path, dir)?;
        self.take("store", word, &mut config.store)?;
        self.take("store_fault", word, &mut config.store_fault)?;
        self.take_places("nbd", &mut sockets.nbd)?;
        self.take_places("nfs", &mut sockets.nfs)?;
        self.take_all("nfs_networks", str::parse, &mut config.nfs.networks)?;
        self.take("nfs_squash", str::parse::<Squash>, &mut config.nfs.squash)?;
        self.take_all("nfs_read_only", word, &mut config.nfs.read_only)?;
        self.take("nfs_any_port", parse::switch, &mut config.nfs.any_port)?;
        self.take_places("http", &mut sockets.http)?;
        self.take("insecure", parse::switch, &mut sockets.insecure)?;
        self.take("socket_group", access::group, &mut sockets.group)?;
        self.take("http_socket_group", access::group, &mut sockets.http_group)?;
        let cluster = &mut config.cluster;
        self.take("advertise", place, &mut cluster.advertise)?;
        self.take("domain", word, &mut cluster.domain)?;
        self.take("node_name", word, &mut cluster.name)?;
        self.take("holder_domains", parse::spread, &mut cluster.spread)?;
        self.take("follow_clients", interval, &mut cluster.follow_clients)?;
        self.take("hold_budget", parse::budget, &mut cluster.hold_bytes)?;
        self.take("warm", path, &mut config.warm)?;
        self.take("warm_size", parse::budget, &mut config.warm_bytes)?;
        self.take("warm_frames", parse::budget, &mut config.warm_frames_bytes)?;
        self.take("flash_budget", parse::budget, &mut config.flash_bytes)?;
        self.take("cache", parse::budget, &mut config.cache_bytes)?;
        self.take("index", parse::budget, &mut config.index_bytes)?;
        self.take("requests", parse::budget, &mut config.requests_bytes)?;
        self.take("held", parse::budget, &mut config.held_bytes)?;
        self.take("compression", compression, &mut config.compression)?;
        self.take("parity", parse::parity, &mut config.parity)?;
        self.take("read_ahead", parse::switch, &mut config.read_ahead)?;
        self.take("direct_path", parse::switch, &mut config.direct_path)?;
        self.take("stuck_after", parse::duration, &mut config.stuck_after)?;
        self.take("stop_parallel", workers, &mut config.stop_parallel)?;
        self.take("destage.age", parse::duration, &mut config.destage.age)?;
        self.take("destage.writes_per_minute", number, &mut config.destage.writes_per_minute)?;
        self.take("destage.bytes", parse::budget, &mut config.destage.bytes)?;
        self.take("destage.batch", parse::budget, &mut config.destage.batch_bytes)?;
        self.take("destage.workers", workers, &mut config.destage.workers)?;
        self.take("destage.deadline", parse::duration, &mut config.destage.deadline)?;
        self.take("sweep.interval", interval, &mut config.sweep.interval)?;
        self.take("sweep.percent", percent, &mut config.sweep.percent)?;
        self.take("sweep.grace", parse::duration, &mut config.sweep.grace)?;
        self.take("sweep.compact_below", compact_below, &mut config.sweep.compact_below)?;
        self.take("collector.idle", interval, &mut config.collector.idle)?;
        self.take("collector.interval", pause, &mut config.collector.interval)?;
        self.take("collector.batch", batch, &mut config.collector.batch)?;
        self.take("scrub.interval", interval, &mut config.scrub.interval)?;
        self.take("scrub.rate", parse::budget, &mut config.scrub.bytes_per_second)?;
        self.take("prices.write", str::parse::<Price>, &mut config.prices.write)?;
        self.take("prices.read", str::parse::<Price>, &mut config.prices.read)?;
        self.take("prices.stored", str::parse::<Price>, &mut config.prices.stored)?;
        self.take("prices.received", str::parse::<Price>, &mut config.prices.received)
    }

    /// Reads a value, if the file has it.
    fn take<T, S: From<T>>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, String>,
        setting: &mut S,
    ) -> Result<(), String> {
        self.known.push(key);
        let Some(value) = self.values.remove(key) else { return Ok(()) };
        *setting = read_value(key, &value, read)?.into();
        Ok(())
    }

    /// Reads one place, or a list of them.
    fn take_places(&mut self, key: &'static str, places: &mut Vec<Address>) -> Result<(), String> {
        let mut read: Vec<AddressOrOff> = places.drain(..).map(Some).collect();
        self.take_all(key, address, &mut read)?;
        places.extend(read.into_iter().flatten());
        Ok(())
    }

    /// Reads one value, or a list of them.
    fn take_all<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, String>,
        setting: &mut Vec<T>,
    ) -> Result<(), String> {
        self.known.push(key);
        let values = match self.values.remove(key) {
            None => return Ok(()),
            Some(Value::Array(values)) => values,
            Some(value) => vec![value],
        };
        let read = values.iter().map(|value| read_value(key, value, &read));
        *setting = read.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Refuses a file that has another key.
    fn end(self) -> Result<(), String> {
        let Self { values, known } = self;
        for (key, value) in values {
            let inside = format!("{key}.");
            if known.iter().any(|known| known.starts_with(&inside)) {
                match value {
                    // It says nothing.
                    Value::Table(_) => continue,
                    _ => return Err(format!("'{key}' must be a table: write [{key}]")),
                }
            }
            return Err(match nearest(&key, &known) {
                Some(near) => format!("there is no setting '{key}': did you mean '{near}'?"),
                None => format!("there is no setting '{key}': there are {}", known.join(", ")),
            });
        }
        Ok(())
    }
}

fn read_value<T>(
    key: &str,
    value: &Value,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, String> {
    read(&text_of(key, value)?).map_err(|error| format!("'{key}': {error}"))
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

fn word(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn path(text: &str) -> Result<PathBuf, String> {
    Ok(text.into())
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

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number"))
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
    use rekindle_node::config::{Destage, Sweep};

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
            nfs = "127.0.0.1:2049"
            nfs_networks = ["10.0.0.0/8", "fd00::/8"]
            nfs_squash = "root"
            nfs_read_only = "images"
            nfs_any_port = "on"
            flash_budget = "4G"
            cache = 1048576
            compression = "lz4"
            parity = "16+1"
            stuck_after = "3s"
            stop_parallel = 8
            read_ahead = "on"
            direct_path = "off"
            follow_clients = "2m"
            [destage]
            age = "2s"
            workers = 4
            writes_per_minute = 0
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
        let Settings { config, sockets, .. } = settings;
        assert_eq!(config.store.as_deref(), Some("s3://bucket/prefix"));
        assert_eq!((sockets.nbd.len(), sockets.http.len()), (2, 0));
        assert_eq!((sockets.nfs.len(), config.nfs.networks.len()), (1, 2));
        let nfs = &config.nfs;
        assert_eq!((nfs.squash, nfs.any_port), (Squash::Root, true));
        assert_eq!(nfs.read_only, ["images"]);
        assert_eq!((config.flash_bytes, config.cache_bytes), (Some(4 << 30), 1 << 20));
        assert_eq!(config.compression, Compression::Lz4);
        assert_eq!(config.parity.map(|parity| parity.to_string()), Some("16+1".into()));
        assert_eq!(parse("parity = 'off'").expect("good").config.parity, None);
        assert_eq!((config.read_ahead, config.direct_path), (true, false));
        assert_eq!(config.cluster.follow_clients, Some(Duration::from_secs(120)));
        assert_eq!(
            parse("follow_clients = 'off'").expect("good").config.cluster.follow_clients,
            None
        );
        let Destage { age, workers, writes_per_minute, .. } = config.destage;
        assert_eq!((age, workers, writes_per_minute), (Duration::from_secs(2), 4, 0));
        assert_eq!((config.stuck_after, config.stop_parallel), (Duration::from_secs(3), 8));
        let Sweep { interval, percent, compact_below, .. } = config.sweep;
        assert_eq!((interval, percent, compact_below), (None, 50, 60));
        let collector = config.collector;
        assert_eq!((collector.idle, collector.batch), (Some(Duration::from_secs(1800)), 500));
        assert_eq!(collector.interval, Config::default().collector.interval);
        assert_eq!(config.prices.write, Price(4_000_000));
        assert_eq!(config.prices.received, Price(90_000_000));
        let week = Duration::from_secs(7 * 24 * 3600);
        assert_eq!((config.scrub.interval, config.scrub.bytes_per_second), (Some(week), 20 << 20));
        for nothing in ["", "[destage]"] {
            assert_eq!(parse(nothing), Ok(Settings::default()));
        }
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
            ("nfs_networks = ['10.0.0.0/8', 'here']", "'nfs_networks'"),
            ("nfs_squash = 'some'", "'nfs_squash'"),
            ("parity = '16'", "'parity': '16' is no parity: write 16+1"),
            ("parity = 16", "'parity'"),
            ("destage = 1", "'destage' must be a table: write [destage]"),
            ("[destage]\nworkers = 0", "'destage.workers'"),
            ("[collector]\nbatch = 0", "'collector.batch'"),
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
        let documented = Reader::of(&switched_on()).expect("TOML").values;
        let mut file = Reader::of("").expect("TOML");
        file.read(&mut Settings::default()).expect("nothing is read");
        file.known.sort_unstable();
        assert_eq!(documented.into_keys().collect::<Vec<_>>(), file.known);
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
        assert_eq!(set, Settings::default());
    }
}
