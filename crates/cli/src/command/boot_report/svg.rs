//! The timeline: one bar a phase on an axis in milliseconds. Plain SVG, legible on light and dark.

use super::{milliseconds, since};
use rekindle_front::http::api::{BootPhase, BootReport};

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

/// Draws the report.
pub fn timeline(report: &BootReport) -> String {
    let mut drawing = Drawing::of(report);
    drawing.head(report);
    drawing.axis();
    for (row, phase) in report.phases.iter().enumerate() {
        drawing.phase(TOP + row as u64 * ROW, phase);
    }
    drawing.fetches(report);
    drawing.put("</svg>");
    drawing.svg
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
    fn of(report: &BootReport) -> Self {
        let ends = report.phases.iter().map(|phase| phase.began_us + phase.took_us);
        let all_us = ends.max().unwrap_or(0).max(1);
        Self { svg: String::new(), all_us, bottom: TOP + report.phases.len() as u64 * ROW }
    }

    fn put(&mut self, line: &str) {
        self.svg.push_str(line);
        self.svg.push('\n');
    }

    /// Where a time is on the axis.
    fn place(&self, time_us: f64) -> f64 {
        LEFT as f64 + time_us * AXIS as f64 / self.all_us as f64
    }

    fn head(&mut self, report: &BootReport) {
        let (width, height) = (LEFT + AXIS + RIGHT, self.bottom + 3 * ROW);
        self.put(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\">"
        ));
        let first = match report.first_reply_us {
            Some(time) => format!("first reply after {} ms", milliseconds(time)),
            None => "no client has been answered yet".to_owned(),
        };
        let title = format!("rekindle {}, start {}: {first}", report.version, report.incarnation);
        let title = escaped(&title);
        self.put(&format!("<title>{title}</title>"));
        self.put(&format!("<text x=\"12\" y=\"20\" font-size=\"15\">{title}</text>"));
        self.put(&format!("<text x=\"12\" y=\"38\">milliseconds {}</text>", since(report)));
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

    fn fetches(&mut self, report: &BootReport) {
        let (read, y) = (&report.fetched, self.bottom + ROW);
        self.put(&format!(
            "<text x=\"12\" y=\"{y}\">read for it: {} in RAM, {} in warm memory (hits {}), {} from the store</text>",
            read.ram,
            read.warm,
            crate::command::warm::rate(read.warm, crate::command::warm::missed(&report.misses)),
            read.store
        ));
        for fetch in &report.fetches {
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
    use rekindle_front::http::api::BootFetch;

    #[test]
    fn marks_are_round_and_few() {
        for all in [1, 99, 1_000, 23_456, 999_999, 60_000_000] {
            assert!(all / step(all) <= MARKS, "{all}");
        }
        assert_eq!([step(1_000), step(23_456), step(79_000)], [200, 5_000, 10_000]);
    }

    #[test]
    fn it_is_sound_whatever_volumes_are_called() {
        let phase =
            |name: &str| BootPhase { name: name.into(), took_us: 5, ..BootPhase::default() };
        let fetch =
            BootFetch { what: "chunk".into(), source: "store".into(), ..BootFetch::default() };
        let report = BootReport {
            phases: vec![phase("attach </text><&\"'>"), phase(&"ü".repeat(90))],
            fetches: vec![fetch],
            ..BootReport::default()
        };
        for report in [&report, &BootReport::default()] {
            let svg = timeline(report);
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count(), "{svg}");
            assert_eq!(svg.matches("<title>").count(), svg.matches("</title>").count(), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
