//! The settings of a node, and the sizes that it chooses where they say nothing.
//!
//! Two steps. [`Config`] holds the user's settings, with gaps; the supervisor hands it to each
//! worker unchanged. [`Sizes`] fills the gaps from the machine once, at the first start in a
//! folder, and is then kept in `node.json`. A default that followed the present free space would
//! shift with the node's own use.

use crate::limits;
use crate::prices::Prices;
use crate::scale::Scale;
use rekindle_base::units::format_size;
use rekindle_cluster::machine::choice::Spread;
use rekindle_content::{Compression, Parity};
use rekindle_env::Address;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The triggers and bounds of destaging.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destage {
    /// Age at which a change is destaged, if nothing triggers earlier.
    pub age: Duration,
    /// Writes into the store a minute that commits by age alone may cost; 0: no bound. A change
    /// waits for this pace three quarters of `deadline` at most. By default sweeps and the node's
    /// own records have the rest of one write a second.
    pub writes_per_minute: u32,
    /// Unfinished bytes of a volume that trigger earlier.
    pub bytes: u64,
    /// Most bytes in one batch.
    pub batch_bytes: u64,
    /// Batches at once, of different volumes.
    pub workers: usize,
    /// Age of a volume's oldest change from which the volume is reported as late.
    pub deadline: Duration,
}

impl Default for Destage {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(5),
            writes_per_minute: 50,
            bytes: limits::DESTAGE_BYTES_DEFAULT,
            batch_bytes: limits::BATCH_BYTES_DEFAULT,
            workers: limits::DESTAGERS_DEFAULT,
            deadline: Duration::from_secs(300),
        }
    }
}

/// The node's part in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// Address at which other nodes reach this one; `None`: none does.
    pub advertise: Option<String>,
    /// The token of the cluster to join. The folder remembers it.
    pub join: Option<Token>,
    /// The fault domain of this host; empty: none.
    pub domain: String,
    /// The node's name, for users; empty: none.
    pub name: String,
    /// Where the holders of its copies may be.
    pub spread: HolderSpread,
    /// Flash for copies of other nodes' logs, bytes.
    pub hold_bytes: u64,
    /// Time after which a volume whose clients are all at one other host moves there; `None`: no
    /// volume moves by itself.
    pub follow_clients: Option<Duration>,
}

/// Where the holders of a node's copies may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderSpread {
    /// In other fault domains, if there are any.
    #[default]
    Prefer,
    /// In other fault domains only.
    Remote,
    /// In the node's own fault domain only.
    Local,
}

impl From<HolderSpread> for Spread {
    fn from(spread: HolderSpread) -> Self {
        match spread {
            HolderSpread::Prefer => Spread::Prefer,
            HolderSpread::Remote => Spread::Remote,
            HolderSpread::Local => Spread::Local,
        }
    }
}

/// The token of a cluster: a secret, which no message shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// Takes a text that may be a token.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            advertise: None,
            join: None,
            domain: String::new(),
            name: String::new(),
            spread: HolderSpread::default(),
            hold_bytes: limits::HOLD_BYTES_DEFAULT,
            follow_clients: Some(limits::FOLLOW_CLIENTS_DEFAULT),
        }
    }
}

impl Cluster {
    fn check(&self) -> Result<(), String> {
        if let Some(place) = &self.advertise {
            let address = place.parse::<Address>().map_err(|bad| bad.to_string())?;
            let is_any = matches!(&address, Address::Tcp(place) if place.ip().is_unspecified());
            if is_any {
                return Err(format!(
                    "--advertise {place}: other nodes connect to this address, so it must be one of this host"
                ));
            }
        } else if self.join.is_some() {
            return Err(
                "--join needs --advertise ADDR, at which other nodes reach this one".to_owned()
            );
        }
        for (what, word) in [("--domain", &self.domain), ("--node-name", &self.name)] {
            let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            if word.len() > limits::WORD_BYTES_MAX || !word.chars().all(is_plain) {
                return Err(format!(
                    "{what} '{}' is none: letters, digits, '-', '_' and '.', at most {} of them",
                    word.escape_debug(),
                    limits::WORD_BYTES_MAX
                ));
            }
        }
        if self.spread != HolderSpread::Prefer && self.domain.is_empty() {
            return Err("a rule for fault domains needs the node's own: --domain NAME".to_owned());
        }
        Ok(())
    }
}

/// The pace of sweeps, which give back unreachable space in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sweep {
    /// Time between the beginnings of two sweeps; `None`: only on request.
    pub interval: Option<Duration>,
    /// Share of the time in which a sweep may work; 100 is full speed.
    pub percent: u32,
    /// Time before a condemned pack is deleted, for readers of an old root.
    pub grace: Duration,
    /// A pack is compacted when less than this share of its bytes, percent, is live. A greater
    /// share leaves less waste in the store, and copies more.
    pub compact_below: u8,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            interval: Some(Duration::from_secs(15 * 60)),
            percent: 30,
            grace: limits::SWEEP_GRACE,
            compact_below: rekindle_content::limits::COMPACT_BELOW_PERCENT,
        }
    }
}

/// The pace of scrubs, which read and check all content, and have damage salvaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// Time between the beginnings of two scrubs; `None`, the default: never. A scrub reads
    /// everything, and some stores charge by the byte.
    pub interval: Option<Duration>,
    /// Bytes read per second, at most.
    pub bytes_per_second: u64,
}

impl Default for Scrub {
    fn default() -> Self {
        Self { interval: None, bytes_per_second: limits::SCRUB_BYTES_PER_SECOND }
    }
}

/// The settings of a node. An older supervisor does not say all of them to its workers: what is
/// missing has its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The node's own folder; absolute.
    pub dir: PathBuf,
    /// The user's permission that this folder goes on as its node, although other copies of it have
    /// been started. Good for one start: the folder remembers the number, and a restarted worker
    /// with the same number has no permission any more.
    pub take_identity: Option<u64>,
    /// The user's permission that a folder of copies goes on, although the node was started again
    /// after these copies were made.
    pub older_copies: bool,
    /// URL of the datastore; `DIR/store` when absent.
    pub store: Option<String>,
    /// Faults in front of the store, for drills and tests: `latency=10ms,fail=20%,gone=60s`.
    pub store_fault: Option<String>,
    /// Flash that the log may take, bytes.
    pub flash_bytes: Option<u64>,
    /// File of the warm memory.
    pub warm: Option<PathBuf>,
    /// Length of the warm memory, bytes.
    pub warm_bytes: Option<u64>,
    /// Part of the warm memory for block frames, bytes; 0: none.
    pub warm_frames_bytes: Option<u64>,
    /// RAM for cached chunks, bytes.
    pub cache_bytes: u64,
    /// RAM for the dedup index, bytes.
    pub index_bytes: u64,
    /// RAM for long requests of all clients together, bytes.
    pub requests_bytes: u64,
    /// RAM for writes that wait until the store has them, bytes.
    pub held_bytes: u64,
    pub compression: Compression,
    /// Parity of new packs.
    pub parity: Option<Parity>,
    /// Whether data in memory is read by a plain call; `false` shows the cost of messages between
    /// threads.
    pub direct_path: bool,
    /// Whether a volume's tree is read as soon as it is attached, not only on demand.
    pub read_ahead: bool,
    pub destage: Destage,
    pub sweep: Sweep,
    /// Time after which a volume in a transitional state is reported as stuck.
    pub stuck_after: Duration,
    /// Volumes that a stop takes out of service at once.
    pub stop_parallel: usize,
    /// The rules by which idle volumes go out of service.
    pub collector: rekindle_volume::collector::Settings,
    pub scrub: Scrub,
    /// What the store charges.
    pub prices: Prices,
    pub cluster: Cluster,
    /// Who may use file volumes through NFS.
    pub nfs: rekindle_front::nfs::Settings,
    /// Whether a worker has served before. Clients may then wait at the sockets: a worker that
    /// finds a newer copy of the folder stays, and tells them so.
    pub restarted: bool,
    /// The error of the last worker, if it never came to serve.
    pub last_failure: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            take_identity: None,
            older_copies: false,
            store: None,
            store_fault: None,
            flash_bytes: None,
            warm: None,
            warm_bytes: None,
            warm_frames_bytes: None,
            cache_bytes: limits::CACHE_BYTES_DEFAULT,
            index_bytes: limits::INDEX_BYTES_DEFAULT,
            requests_bytes: limits::REQUESTS_BYTES_DEFAULT,
            held_bytes: limits::HELD_BYTES_DEFAULT,
            compression: Compression::Zstd,
            parity: None,
            direct_path: true,
            read_ahead: false,
            destage: Destage::default(),
            sweep: Sweep::default(),
            prices: Prices::default(),
            cluster: Cluster::default(),
            nfs: rekindle_front::nfs::Settings::default(),
            stuck_after: limits::STUCK_AFTER_DEFAULT,
            stop_parallel: rekindle_volume::limits::STOPS_MAX,
            collector: rekindle_volume::collector::Settings::default(),
            scrub: Scrub::default(),
            restarted: false,
            last_failure: None,
        }
    }
}

impl Config {
    /// Makes the default settings for a node in `dir`.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, ..Self::default() }
    }

    /// Checks that the settings make sense together. The error says what to change.
    pub fn check(&self) -> Result<(), String> {
        let least = |what: &str, bytes: Option<u64>, least: u64| match bytes {
            Some(bytes) if bytes < least => {
                let (bytes, least) = (format_size(bytes), format_size(least));
                Err(format!("{what} {bytes} is too small: {least} at least"))
            }
            _ => Ok(()),
        };
        least("a flash budget of", self.flash_bytes, limits::FLASH_BYTES_MIN)?;
        least("a warm memory of", self.warm_bytes, limits::WARM_BYTES_MIN)?;
        least("requests =", Some(self.requests_bytes), limits::REQUESTS_BYTES_MIN)?;
        least("held =", Some(self.held_bytes), limits::HELD_BYTES_MIN)?;
        if let (Some(bytes), Some(_)) = (self.warm_bytes, self.warm_frames_bytes) {
            self.split_warm(bytes, &Scale::default())?;
        }
        if self.destage.batch_bytes < rekindle_base::limits::CHANGE_BYTES_MAX {
            return Err(format!(
                "a destage batch holds {} at least",
                format_size(rekindle_base::limits::CHANGE_BYTES_MAX)
            ));
        }
        self.cluster.check()?;
        self.collector.check()?;
        if self.scrub.interval.is_some_and(|interval| interval.is_zero()) {
            return Err("scrub.interval must be a time, as in 168h, or off".to_owned());
        }
        if self.scrub.bytes_per_second == 0 {
            return Err("scrub.rate must be bytes per second, as in 16M".to_owned());
        }
        if self.stuck_after.is_zero() {
            return Err("stuck_after must be a time, as in 10s".to_owned());
        }
        if self.store.as_ref().is_some_and(|store| store.trim().is_empty()) {
            return Err(
                "the URL of the store is empty: write file:///FOLDER or s3://BUCKET/PREFIX"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Splits this much warm memory into slots and frames. Frames get the configured size, or else
    /// a quarter, and the rest that makes no whole slot. The error says what to change.
    pub fn split_warm(&self, warm_bytes: u64, scale: &Scale) -> Result<WarmSplit, String> {
        let least = scale.slots_min as u64 * scale.segment_bytes;
        let most = warm_bytes.saturating_sub(least);
        let (frames_least, is_asked) = match self.warm_frames_bytes {
            Some(bytes) => (bytes, true),
            None => ((warm_bytes / limits::WARM_FRAMES_PART).min(most), false),
        };
        if frames_least > most {
            return Err(format!(
                "block frames of {} do not fit a warm memory of {}, of which segments take {} at least: a larger \
                 --warm-size, or a smaller --warm-frames",
                format_size(frames_least),
                format_size(warm_bytes),
                format_size(least)
            ));
        }
        let slots = usize::try_from((warm_bytes - frames_least) / scale.segment_bytes);
        let slots =
            slots.unwrap_or(usize::MAX).clamp(scale.slots_min, rekindle_warm::limits::SLOTS_MAX);
        let rest = warm_bytes.saturating_sub(slots as u64 * scale.segment_bytes);
        Ok(WarmSplit { slots, frames_bytes: if is_asked { frames_least } else { rest } })
    }

    /// Returns the folder of the log's segments.
    #[must_use]
    pub fn flash(&self) -> PathBuf {
        self.dir.join("flash")
    }

    /// Returns the store's URL.
    #[must_use]
    pub fn store_url(&self) -> String {
        self.store.clone().unwrap_or_else(|| self.dir.join("store").display().to_string())
    }
}

/// The split of the warm memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmSplit {
    /// Slots for segments of the log.
    pub slots: usize,
    /// Bytes for block frames.
    pub frames_bytes: u64,
}

/// Sizes that were chosen at the first start in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Flash for the log, bytes.
    pub flash_bytes: u64,
    /// Warm memory, bytes.
    pub warm_bytes: u64,
}

impl Sizes {
    /// Chooses sizes for a machine with this much room: half of the free flash and a sixteenth of
    /// the free warm memory, within the defaults. `None`: no place for warm memory.
    #[must_use]
    pub fn choose(flash_free: u64, warm_free: Option<u64>) -> Self {
        Self {
            flash_bytes: (flash_free / 2)
                .clamp(limits::FLASH_BYTES_MIN, limits::FLASH_BYTES_DEFAULT),
            warm_bytes: (warm_free.unwrap_or(0) / 16)
                .clamp(limits::WARM_BYTES_MIN, limits::WARM_BYTES_DEFAULT),
        }
    }
}

/// Returns the default folder of a daemon: `./rekindle-data` if it is usable, or else the user's
/// data folder.
///
/// `usable` tells whether a folder exists or can be made; `data_home` is `$XDG_DATA_HOME`, `home`
/// is `$HOME`.
#[must_use]
pub fn default_dir(
    here: &Path,
    data_home: Option<&Path>,
    home: Option<&Path>,
    usable: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let beside = here.join("rekindle-data");
    if usable(&beside) {
        return Some(beside);
    }
    match (data_home, home) {
        (Some(data), _) if data.is_absolute() => Some(data.join("rekindle")),
        (_, Some(home)) => Some(home.join(".local/share/rekindle")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::units::{GIB, MIB};

    #[test]
    fn sizes_follow_the_machine_within_bounds() {
        let roomy = Sizes::choose(100 * GIB, Some(24 * GIB));
        assert_eq!(roomy, Sizes { flash_bytes: 4 * GIB, warm_bytes: 256 * MIB });
        let tight = Sizes::choose(2 * GIB, Some(GIB));
        assert_eq!(tight, Sizes { flash_bytes: GIB, warm_bytes: 64 * MIB });
        let none = Sizes::choose(0, None);
        assert_eq!(
            none,
            Sizes { flash_bytes: limits::FLASH_BYTES_MIN, warm_bytes: limits::WARM_BYTES_MIN }
        );
    }

    #[test]
    fn warm_memory_is_split_as_asked_or_a_quarter_goes_to_frames() {
        let mut config = Config::new("/srv/rekindle".into());
        let mut split = |frames, warm: u64| {
            config.warm_frames_bytes = frames;
            config
                .split_warm(warm, &Scale::default())
                .map(|split| (split.slots, split.frames_bytes / MIB))
        };
        assert_eq!(split(None, 256 * MIB), Ok((24, 64)));
        assert_eq!(split(None, 64 * MIB), Ok((6, 16)));
        assert_eq!(split(None, 60 * MIB), Ok((5, 20)), "what makes no slot");
        assert_eq!(split(None, 40 * MIB), Ok((4, 8)));
        assert_eq!(split(None, 32 * MIB), Ok((4, 0)), "segments first");
        assert_eq!(split(Some(0), 256 * MIB), Ok((32, 0)));
        assert_eq!(split(Some(20 * MIB), 64 * MIB), Ok((5, 20)));
        let refused = split(Some(40 * MIB), 64 * MIB).expect_err("too much");
        assert!(refused.contains("--warm-frames"), "{refused}");
        // The slots have a maximum; beyond it, the rest is for frames.
        assert_eq!(split(None, 128 * GIB), Ok((8192, 64 * 1024)));
    }

    #[test]
    fn the_folder_is_beside_us_or_in_the_users_data() {
        let here = Path::new("/work");
        let home = Path::new("/home/me");
        assert_eq!(
            default_dir(here, None, Some(home), |_| true),
            Some("/work/rekindle-data".into())
        );
        assert_eq!(
            default_dir(here, None, Some(home), |_| false),
            Some("/home/me/.local/share/rekindle".into())
        );
        let data = Some(Path::new("/data"));
        assert_eq!(default_dir(here, data, Some(home), |_| false), Some("/data/rekindle".into()));
        assert_eq!(default_dir(here, None, None, |_| false), None);
    }

    #[test]
    fn a_config_survives_the_way_to_the_worker() {
        let mut config = Config::new("/srv/rekindle".into());
        config.store_fault = Some("latency=10ms".into());
        config.parity = Some("16+1".parse().expect("a good one"));
        let text = serde_json::to_string(&config).expect("plain data");
        assert_eq!(serde_json::from_str::<Config>(&text).expect("just written"), config);
        assert_eq!(config.store_url(), "/srv/rekindle/store");
        assert_eq!(config.check(), Ok(()));
        config.flash_bytes = Some(1);
        assert!(config.check().is_err());
    }
}
