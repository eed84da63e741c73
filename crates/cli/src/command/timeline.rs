//! Timelines of starts and recoveries: a table, or one bar a phase on an axis of time (plain SVG,
//! legible on light and dark).
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use rekindle_base::units::format_size;
use rekindle_front::http::api::{BootFetch, BootPhase};
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;

const ROW: u64 = 22;
/// Left end of the axis, which has names to its left.
const LEFT: u64 = 200;
/// Length of the axis.
const AXIS: u64 = 640;
/// Room for the time beside the last bar.
const RIGHT: u64 = 90;
const TOP: u64 = 64;
/// Approximate count of the marks on the axis.
const MARKS: u64 = 8;
/// A color that can be seen on white and on black alike.
const INK: &str = "#808080";

/// What is drawn.
#[derive(Default)]
pub struct Timeline<'a> {
    pub title: String,
    /// The origin of the times, in words.
    pub since: &'a str,
    /// Each phase before its parts.
    pub phases: &'a [BootPhase],
    /// A line below the bars, and single reads below that.
    pub read: String,
    pub fetches: &'a [BootFetch],
}

impl Timeline<'_> {
    /// Draws it.
    pub fn svg(&self) -> String {
        let mut drawing = Drawing::of(self.phases);
        drawing.head(self);
        drawing.axis();
        for (row, phase) in self.phases.iter().enumerate() {
            drawing.phase(TOP + row as u64 * ROW, phase);
        }
        drawing.fetches(self);
        drawing.put("</svg>");
        drawing.svg
    }
}

/// The picture as far as it is drawn.
struct Drawing {
    svg: String,
    /// Length of the axis, microseconds.
    all_us: u64,
    /// Lower end of the bars.
    bottom: u64,
}

impl Drawing {
    fn of(phases: &[BootPhase]) -> Self {
        let ends = phases.iter().map(|phase| phase.began_us + phase.took_us);
        let all_us = ends.max().unwrap_or(0).max(1);
        Self { svg: String::new(), all_us, bottom: TOP + phases.len() as u64 * ROW }
    }

    fn put(&mut self, line: &str) {
        self.svg.push_str(line);
        self.svg.push('\n');
    }

    /// Where a time is on the axis.
    fn place(&self, time_us: f64) -> f64 {
        LEFT as f64 + time_us * AXIS as f64 / self.all_us as f64
    }

    fn head(&mut self, timeline: &Timeline<'_>) {
        let (width, height) = (LEFT + AXIS + RIGHT, self.bottom + 3 * ROW);
        self.put(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\">"
        ));
        let (title, since) = (escaped(&timeline.title), escaped(timeline.since));
        self.put(&format!("<title>{title}</title>"));
        self.put(&format!("<text x=\"12\" y=\"20\" font-size=\"15\">{title}</text>"));
        self.put(&format!("<text x=\"12\" y=\"38\">milliseconds {since}</text>"));
    }

    fn axis(&mut self) {
        let (step, bottom) = (step(self.all_us), self.bottom);
        for mark in (0..=self.all_us / step).map(|mark| mark * step) {
            let x = self.place(mark as f64);
            self.put(&format!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{INK}\" stroke-opacity=\"0.35\"/>"
            ));
            let (y, label) = (TOP - 8, mark as f64 / 1000.0);
            self.put(&format!(
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"
            ));
        }
    }

    fn phase(&mut self, y: u64, phase: &BootPhase) {
        let (indent, color) = match (&phase.part_of, phase.name.as_str()) {
            (Some(_), _) => (26, "#6fa8dc"),
            // Not our time: no client had connected yet.
            (None, "first-connection") => (12, "#b0b0b0"),
            (None, _) => (12, "#3d85c6"),
        };
        let x = self.place(phase.began_us as f64);
        let length = (self.place((phase.began_us + phase.took_us) as f64) - x).max(1.5);
        let (name, baseline) = (escaped(&phase.name), y + 15);
        let (began, took) = (milliseconds(phase.began_us), milliseconds(phase.took_us));
        self.put(&format!("<text x=\"{indent}\" y=\"{baseline}\">{}</text>", shortened(&name)));
        self.put(&format!(
            "<rect x=\"{x:.1}\" y=\"{}\" width=\"{length:.1}\" height=\"{}\" rx=\"2\" fill=\"{color}\"><title>{name}: \
             from {began} ms, {took} ms</title></rect>",
            y + 4,
            ROW - 8,
        ));
        let beside = x + length + 5.0;
        self.put(&format!("<text x=\"{beside:.1}\" y=\"{baseline}\">{took}</text>"));
    }

    fn fetches(&mut self, timeline: &Timeline<'_>) {
        let (read, y) = (escaped(&timeline.read), self.bottom + ROW);
        self.put(&format!("<text x=\"12\" y=\"{y}\">{read}</text>"));
        for fetch in timeline.fetches {
            let color = match fetch.source.as_str() {
                "store" => "#cc4125",
                "warm" => "#e69138",
                _ => "#6aa84f",
            };
            let x = self.place(fetch.began_us as f64);
            let length = (self.place(fetch.began_us as f64 + fetch.took_us) - x).max(1.0);
            self.put(&format!(
                "<rect x=\"{x:.1}\" y=\"{}\" width=\"{length:.1}\" height=\"8\" fill=\"{color}\"><title>{} {} from {}: {:.1} \
                 us</title></rect>",
                y + 10,
                escaped(&fetch.what),
                escaped(&fetch.name),
                escaped(&fetch.source),
                fetch.took_us
            ));
        }
    }
}

/// Formats microseconds as milliseconds, to a hundredth.
pub fn milliseconds(microseconds: u64) -> String {
    let hundredths = microseconds / 10;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Writes the drawing to a file.
pub fn write(path: &std::path::Path, timeline: &Timeline<'_>) -> Outcome {
    std::fs::write(path, timeline.svg()).map_err(|error| {
        Failure::new(format!("cannot write {}", path.display()))
            .because(error)
            .next("name another file with --svg")
    })
}

/// Prints the phases as a table.
pub fn print(phases: &[BootPhase]) {
    let mut table = output::table(["PHASE", "BEGAN MS", "TOOK MS"]);
    for phase in phases {
        table.add_row(cells(phase));
    }
    output::rows(&table);
}

/// Prints the phases as a table, with the changes that each has brought back out of a log.
pub fn print_changes(phases: &[BootPhase]) {
    let mut table = output::table(["PHASE", "BEGAN MS", "TOOK MS", "CHANGES", "RATE"]);
    for phase in phases {
        let [name, began, took] = cells(phase);
        let changes = phase.bytes.map(|bytes| (format_size(bytes), rate(bytes, phase.took_us)));
        let (changes, rate) = changes.unwrap_or_else(|| ("-".to_owned(), "-".to_owned()));
        table.add_row([name, began, took, changes, rate]);
    }
    output::rows(&table);
}

fn cells(phase: &BootPhase) -> [String; 3] {
    let indent = if phase.part_of.is_some() { "  " } else { "" };
    let (began, took) = (milliseconds(phase.began_us), milliseconds(phase.took_us));
    [format!("{indent}{}", phase.name), began, took]
}

/// Formats the bytes of a second.
fn rate(bytes: u64, microseconds: u64) -> String {
    let a_second = u128::from(bytes) * 1_000_000 / u128::from(microseconds.max(1));
    format!("{}/s", format_size(u64::try_from(a_second).unwrap_or(u64::MAX)))
}

/// Returns a round time between two marks: 1, 2 or 5 times a power of ten microseconds.
fn step(all: u64) -> u64 {
    let mut step = 10;
    loop {
        for times in [1, 2, 5] {
            if all / (step * times) <= MARKS {
                return step * times;
            }
        }
        step *= 10;
    }
}

/// Escapes text for SVG: names of volumes may hold anything that can be printed.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Shortens a name to fit to the left of the axis; never cuts within an escape.
fn shortened(escaped: &str) -> &str {
    if escaped.chars().count() <= 28 || escaped.contains('&') {
        return escaped;
    }
    escaped.char_indices().nth(28).map_or(escaped, |(at, _)| &escaped[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for all in [1, 99, 1_000, 23_456, 999_999, 60_000_000] {
            assert!(all / step(all) <= MARKS, "{all}");
        }
        assert_eq!([step(1_000), step(23_456), step(79_000)], [200, 5_000, 10_000]);
    }

    #[test]
    fn rates_are_of_a_second_and_of_no_time_too() {
        assert_eq!(rate(3 << 20, 500_000), "6 MiB/s");
        assert_eq!(rate(0, 0), "0 B/s");
        rate(u64::MAX, 0);
    }

    #[test]
    fn it_is_sound_whatever_volumes_are_called() {
        let phase =
            |name: &str| BootPhase { name: name.into(), took_us: 5, ..BootPhase::default() };
        let fetch =
            BootFetch { what: "chunk".into(), source: "store".into(), ..BootFetch::default() };
        let phases = [phase("attach </text><&\"'>"), phase(&"ü".repeat(90))];
        let full = Timeline { phases: &phases, fetches: &[fetch], ..Timeline::default() };
        for timeline in [&full, &Timeline::default()] {
            let svg = timeline.svg();
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count(), "{svg}");
            assert_eq!(svg.matches("<title>").count(), svg.matches("</title>").count(), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
