//! Charts as inline SVG: no script, no external asset, in the colours of the page.

use super::texts::{grouped, rounded};
use crate::metrics::{AgeCount, DuplicatesSummary, Rates};
use crate::units::seconds_text;

/// Size of a chart in SVG user units.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 90.0;
/// Time between two samples, in seconds.
const STEP_S: usize = 5;

/// Records and duplicates per second and the lag over the last minutes, each with its last value.
pub(super) fn charts(rates: &[Rates]) -> String {
    // One sample is no line.
    let [_, .., last] = rates else {
        return "<p>The charts begin 15 seconds after the start.</p>\n".to_owned();
    };
    let lag_of = |rate: &Rates| rate.lag.map(|lag| lag as f64);
    let max_rate = rates.iter().map(|rate| rate.records).fold(0.0, f64::max);
    let max_lag = rates.iter().filter_map(lag_of).fold(0.0, f64::max);
    let of_rates = Chart { title: "records per second", top: top(max_rate), samples: rates.len() };
    let records = of_rates.line("all", rates.iter().map(|rate| Some(rate.records)));
    let duplicates = of_rates.line("again", rates.iter().map(|rate| Some(rate.duplicates)));
    let rates_legend = format!(
        "<span class=\"all\">{} records/s</span>, <span class=\"again\">{} duplicates/s</span>",
        rounded(last.records),
        rounded(last.duplicates)
    );
    let of_lag = Chart { title: "lag in records", top: top(max_lag), samples: rates.len() };
    let lag_line = of_lag.line("lag", rates.iter().map(lag_of));
    let lag = last.lag.map_or_else(|| "unknown".to_owned(), grouped);
    let lag_legend = format!("<span class=\"lag\">lag: {lag}</span>");
    format!(
        "{}{}",
        of_rates.figure(&format!("{records}{duplicates}"), &rates_legend),
        of_lag.figure(&lag_line, &lag_legend)
    )
}

/// The end of an axis: a round number, at least 1 and not below the largest value, which reaches at least two thirds of it.
fn top(max: f64) -> f64 {
    let power = 10_f64.powf(max.max(1.0).log10().floor());
    let factors = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    factors.map(|factor| factor * power).into_iter().find(|end| *end >= max).unwrap_or(max)
}

/// The axes of a chart: from 0 to `top`, and over this many samples up to now.
struct Chart {
    title: &'static str,
    top: f64,
    samples: usize,
}

impl Chart {
    fn figure(&self, lines: &str, legend: &str) -> String {
        let (title, top) = (self.title, rounded(self.top));
        let began = seconds_text((self.samples * STEP_S) as f64);
        let half = HEIGHT / 2.0;
        let drawn = format!("<path class=\"half\" d=\"M0,{half} L{WIDTH},{half}\"/>{lines}");
        let label = format!("{title}, from 0 to {top}, in the last {began}");
        let times = format!("<div class=\"times\"><span>{began} ago</span><span>now</span></div>");
        plot(&Plot { legend, top: &top, label: &label, drawn: &drawn, times: &times })
    }

    /// The line has a gap where the value is unknown.
    fn line(&self, class: &str, values: impl Iterator<Item = Option<f64>>) -> String {
        let step = WIDTH / (self.samples.max(2) - 1) as f64;
        let (mut pen, mut points) = ('M', Vec::new());
        for (at, value) in values.enumerate() {
            let Some(value) = value else {
                pen = 'M';
                continue;
            };
            let (x, y) = (at as f64 * step, HEIGHT - 2.0 - value / self.top * (HEIGHT - 4.0));
            points.push(format!("{pen}{x:.1},{y:.1}"));
            pen = 'L';
        }
        format!("<path class=\"{class}\" d=\"{}\"/>", points.join(" "))
    }
}

/// The parts of a chart, in HTML.
struct Plot<'a> {
    legend: &'a str,
    /// The end of the vertical axis.
    top: &'a str,
    /// What it shows, for those who cannot see it.
    label: &'a str,
    drawn: &'a str,
    /// The horizontal axis.
    times: &'a str,
}

fn plot(Plot { legend, top, label, drawn, times }: &Plot<'_>) -> String {
    format!(
        "<figure><figcaption>{legend}</figcaption>\
         <div class=\"plot\"><div class=\"values\"><span>{top}</span><span>0</span></div>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" preserveAspectRatio=\"none\" aria-label=\"{label}\">{drawn}</svg>\
         {times}</div></figure>\n"
    )
}

/// Ends of the axis of ages, in seconds. It is logarithmic.
const AGES: [f64; 2] = [0.1, 1e7];
/// Labels of this axis.
const TICKS: [(f64, &str); 5] =
    [(1.0, "1s"), (60.0, "1m"), (3_600.0, "1h"), (86_400.0, "1d"), (2_592_000.0, "30d")];

/// The place of an age on the axis: 0 to 1.
fn place(seconds: f64) -> f64 {
    let [first, last] = AGES;
    ((seconds / first).ln() / (last / first).ln()).clamp(0.0, 1.0)
}

/// The observed ages of duplicates, and the length of the window; empty without ages.
pub(super) fn ages(summary: &DuplicatesSummary) -> String {
    let (observed, window) = (summary.observed(), summary.window_seconds);
    let most = summary.ages.iter().map(|it| it.count).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let mut drawn = bars(&summary.ages, most);
    let mut legend =
        format!("<span class=\"again\">ages of duplicates: {} observed</span>", grouped(observed));
    if window > 0.0 {
        drawn.push(format!("<path class=\"window\" d=\"M{:.1},0 V{HEIGHT}\"/>", place(window) * WIDTH));
        legend = format!("{legend}, <span class=\"window\">window: {}</span>", seconds_text(window));
    }
    let tick = |(seconds, text): &(f64, &str)| {
        format!("<span style=\"left:{:.1}%\">{text}</span>", 100.0 * place(*seconds))
    };
    let times = format!("<div class=\"times ages\">{}</div>", TICKS.iter().map(tick).collect::<String>());
    let top = format!("{:.0} %", 100.0 * most as f64 / observed as f64);
    let label = format!("ages of duplicates, up to {top} of them in one interval");
    plot(&Plot { legend: &legend, top: &top, label: &label, drawn: &drawn.concat(), times: &times })
}

/// A bar for each bucket that is not empty; the highest has `most` ages.
fn bars(ages: &[AgeCount], most: u64) -> Vec<String> {
    let from = std::iter::once(0.0).chain(ages.iter().map(|it| it.at_most_seconds));
    let counted = ages.iter().zip(from).filter(|(bucket, _)| bucket.count > 0);
    let bar = |(bucket, from): (&AgeCount, f64)| {
        let [left, right] = [from, bucket.at_most_seconds].map(|seconds| place(seconds) * WIDTH);
        let y = HEIGHT - 2.0 - bucket.count as f64 / most as f64 * (HEIGHT - 4.0);
        format!("<path class=\"bar\" d=\"M{left:.1},{HEIGHT} V{y:.1} H{right:.1} V{HEIGHT}\"/>")
    };
    counted.map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number() {
        for (max, end) in [
            (0.0, 1.0),
            (1.0, 1.0),
            (1.1, 1.2),
            (19.0, 20.0),
            (21.0, 25.0),
            (404.0, 500.0),
            (2_016.0, 2_500.0),
            (2e6, 2e6),
        ] {
            assert!((top(max) - end).abs() < 1e-6, "{max}: {}", top(max));
        }
    }

    #[test]
    fn ages_are_bars_on_a_logarithmic_axis_with_the_length_of_the_window() {
        let bucket = |at_most_seconds, count| AgeCount { at_most_seconds, count };
        let ages_of = |counts: [u64; 4], window_seconds| {
            let bounds = [1.0, 10.0, 100.0, f64::INFINITY];
            let buckets = bounds.into_iter().zip(counts).map(|(bound, count)| bucket(bound, count)).collect();
            ages(&DuplicatesSummary { ages: buckets, window_seconds, ..DuplicatesSummary::default() })
        };
        let drawn = ages_of([30, 0, 10, 0], 1_000.0);
        // One eighth of the width for each power of ten.
        for part in [
            "d=\"M0.0,90 V2.0 H75.0 V90\"",
            "d=\"M150.0,90 V59.3 H225.0 V90\"",
            "class=\"window\" d=\"M300.0,0 V90\"",
            "window: 16m 40s",
            "40 observed",
            "<span>75 %</span>",
            "<span style=\"left:12.5%\">1s</span>",
        ] {
            assert!(drawn.contains(part), "{part} is not in {drawn}");
        }
        assert_eq!(drawn.matches("class=\"bar\"").count(), 2, "{drawn}");
        let late = ages_of([0, 0, 0, 1], 0.0);
        assert!(late.contains("H600.0") && !late.contains("window"), "{late}");
        assert_eq!(ages_of([0; 4], 1_000.0), "");
    }

    #[test]
    fn a_line_stays_inside_its_chart_and_an_unknown_lag_is_a_gap() {
        let quiet = Rates { records: 0.0, duplicates: 0.0, lag: Some(0) };
        let busy = Rates { records: 2_000.0, duplicates: 500.0, lag: Some(50) };
        let drawn = charts(&[quiet, busy]);
        assert!(drawn.contains("\"all\" d=\"M0.0,88.0 L600.0,2.0\""), "{drawn}");
        assert!(drawn.contains("\"lag\" d=\"M0.0,88.0 L600.0,2.0\""), "{drawn}");
        assert!(drawn.contains("2\u{202f}000 records/s") && drawn.contains("500 duplicates/s"), "{drawn}");
        assert!(drawn.contains("lag: 50<") && drawn.contains("<span>50</span>"), "{drawn}");
        assert!(drawn.contains("<span>2\u{202f}000</span><span>0</span>"), "{drawn}");
        assert!(drawn.contains("<span>10s ago</span><span>now</span>"), "{drawn}");
        let unknown = Rates { lag: None, ..busy };
        assert!(charts(&[quiet, unknown]).contains("lag: unknown"));
        let drawn = charts(&[busy, unknown, quiet]);
        assert!(
            drawn.contains("\"lag\" d=\"M0.0,2.0 M600.0,88.0\""),
            "an unknown lag is not a lag of 0: {drawn}"
        );
        for too_few in [&[][..], &[busy]] {
            assert!(charts(too_few).contains("15 seconds after the start"));
        }
    }
}
