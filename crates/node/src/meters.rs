//! Counters of each volume, and their lines in `/metrics`. The recorder of all other metrics never
//! forgets a series. So these counters are kept and written here, and the lines of a volume go with
//! the volume.

use crate::limits;
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_front::nbd::{BUCKETS, VolumeMeters, VolumeReading};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// The counters of volumes that had clients since the start.
#[derive(Default)]
pub(crate) struct Registry {
    state: Mutex<VolumeCounters>,
}

#[derive(Default)]
struct VolumeCounters {
    volumes: BTreeMap<VolumeId, Counted>,
    /// Times that a volume found no room here.
    left_out: u64,
}

struct Counted {
    name: String,
    meters: Arc<VolumeMeters>,
}

impl Registry {
    /// Returns the counters of a volume; new ones if it has none. At the bound, the counters of a
    /// volume without clients make room.
    pub(crate) fn of(&self, id: VolumeId, name: &str) -> Arc<VolumeMeters> {
        let mut state = self.state.lock();
        if let Some(counted) = state.volumes.get_mut(&id) {
            name.clone_into(&mut counted.name);
            return counted.meters.clone();
        }
        if state.volumes.len() >= limits::VOLUMES_IN_METRICS {
            let idle = state.volumes.iter().find(|(_, one)| Arc::strong_count(&one.meters) == 1);
            let Some(idle) = idle.map(|(id, _)| *id) else {
                state.left_out += 1;
                return Arc::default();
            };
            state.volumes.remove(&idle);
        }
        let meters = Arc::<VolumeMeters>::default();
        let counted = Counted { name: name.to_owned(), meters: meters.clone() };
        state.volumes.insert(id, counted);
        meters
    }

    /// Forgets the volume of that name, which is gone.
    pub(crate) fn forget(&self, name: &str) {
        self.state.lock().volumes.retain(|_, counted| counted.name != name);
    }

    /// Renames a volume.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        for counted in self.state.lock().volumes.values_mut().filter(|one| one.name == from) {
            to.clone_into(&mut counted.name);
        }
    }

    /// Returns the times that a volume found no room.
    pub(crate) fn left_out(&self) -> u64 {
        self.state.lock().left_out
    }

    fn read(&self) -> Vec<(String, VolumeReading)> {
        let state = self.state.lock();
        state.volumes.values().map(|one| (quoted(&one.name), one.meters.read())).collect()
    }

    /// Renders the lines of all volumes in the text format of Prometheus.
    pub(crate) fn render(&self) -> String {
        let (volumes, mut text) = (self.read(), String::new());
        if volumes.is_empty() {
            return text;
        }
        let name = family("rekindle_volume_requests_total", &mut text);
        for (volume, found) in &volumes {
            for row in &found.commands {
                let (command, requests) = (row.command, row.requests);
                line(
                    &mut text,
                    name,
                    &format!("volume=\"{volume}\",command=\"{command}\""),
                    requests,
                );
            }
        }
        let mut each = |name, of: fn(&VolumeReading) -> u64| {
            family(name, &mut text);
            for (volume, found) in &volumes {
                line(&mut text, name, &format!("volume=\"{volume}\""), of(found));
            }
        };
        each("rekindle_volume_read_bytes_total", |found| found.read_bytes);
        each("rekindle_volume_written_bytes_total", |found| found.written_bytes);
        each("rekindle_volume_errors_total", |found| found.errors);
        let name = family("rekindle_volume_request_seconds", &mut text);
        for (volume, found) in &volumes {
            for row in &found.commands {
                let labels = format!("volume=\"{volume}\",command=\"{}\"", row.command);
                let bucket = format!("{name}_bucket");
                let mut within = 0;
                for (count, end) in row.buckets.iter().zip(&BUCKETS) {
                    within += count;
                    line(&mut text, &bucket, &format!("{labels},le=\"{}\"", micros(*end)), within);
                }
                let all: u64 = row.buckets.iter().sum();
                line(&mut text, &bucket, &format!("{labels},le=\"+Inf\""), all);
                line(&mut text, &format!("{name}_sum"), &labels, nanos(row.nanoseconds));
                line(&mut text, &format!("{name}_count"), &labels, all);
            }
        }
        text
    }
}

/// Writes the head of a metric.
fn family(name: &'static str, text: &mut String) -> &'static str {
    let (shape, help) = crate::metrics::described(name);
    // Writing to text does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {shape}");
    name
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

/// Formats a time as seconds, exactly.
fn micros(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn nanos(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// Escapes the value of a label.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> VolumeId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        VolumeId(bytes)
    }

    #[test]
    fn a_volume_has_lines_from_its_first_client_until_it_is_removed() {
        let registry = Registry::default();
        assert_eq!(registry.render(), "");
        let kept = registry.of(id(1), "vm1");
        assert!(Arc::ptr_eq(&kept, &registry.of(id(1), "vm1")), "all its clients together");
        registry.of(id(2), "odd\"\\name");
        let text = registry.render();
        for line in [
            "# HELP rekindle_volume_read_bytes_total Bytes",
            "# TYPE rekindle_volume_request_seconds histogram",
            "rekindle_volume_read_bytes_total{volume=\"vm1\"} 0",
            "rekindle_volume_errors_total{volume=\"odd\\\"\\\\name\"} 0",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        registry.rename("vm1", "vm3");
        assert!(registry.render().contains("{volume=\"vm3\"}"));
        registry.forget("vm3");
        let text = registry.render();
        assert!(!text.contains("vm1") && !text.contains("vm3") && text.contains("odd"), "{text}");
        assert!(!Arc::ptr_eq(&kept, &registry.of(id(1), "vm3")), "another volume of that name");
    }

    #[test]
    fn there_is_a_bound_and_who_has_no_clients_gives_way() {
        let registry = Registry::default();
        let most = limits::VOLUMES_IN_METRICS as u64;
        let held: Vec<_> = (0..most).map(|number| registry.of(id(number), "a")).collect();
        registry.of(id(most), "b");
        assert_eq!((registry.left_out(), registry.render().contains("\"b\"")), (1, false));
        drop(held);
        registry.of(id(most), "b");
        assert_eq!((registry.left_out(), registry.render().contains("\"b\"")), (1, true));
        assert_eq!(registry.read().len() as u64, most);
    }

    #[test]
    fn times_are_written_exactly() {
        assert_eq!(
            [10, 2_500, 1_000_000, 10_000_000].map(micros),
            ["0.00001", "0.0025", "1", "10"]
        );
        assert_eq!(nanos(1_000_000_007), "1.000000007");
    }
}
