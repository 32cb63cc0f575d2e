//! The pictures in `docs/`: the status page in Chromium, and the panels of the dashboard. `PICTURES=1` writes them.
//!
//! Grafana is not part of the test, so the panels are drawn from the dashboard's queries and this Prometheus.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

use super::demo::{Demo, PROJECT, file, prometheus};
use super::engine::TOP;
use crate::support::now_ms;

/// Panels that start above this line of the grid are drawn: the first rows.
const LINES: u64 = 52;
/// Name, records per second, share of duplicates.
const MORE_TOPICS: [(&str, &str, &str); 2] = [("orders", "300", "0.05"), ("clicks", "3000", "0.4")];
const COLUMN: u64 = 42;
const LINE: u64 = 22;
const HEAD: u64 = 34;
/// Seconds on the time axis.
const SPAN: i64 = 240;
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(217, 95, 2),
    RGBColor(44, 140, 70),
    RGBColor(150, 80, 170),
    RGBColor(190, 40, 50),
    RGBColor(110, 110, 110),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

struct Series {
    legend: String,
    points: Vec<(f64, f64)>,
}

fn requested() -> bool {
    std::env::var_os("PICTURES").is_some()
}

/// Writes `docs/status-page.png` when the instance has run for a minute.
pub fn status_page(port: u16) {
    if !requested() {
        return;
    }
    std::thread::sleep(Duration::from_mins(1));
    let shot = format!("--screenshot={TOP}/docs/status-page.png");
    let options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,1100"];
    let page = format!("http://127.0.0.1:{port}/");
    let mut chromium = Command::new("chromium");
    chromium.args(options).args([&shot, &page]).stdin(Stdio::null()).stderr(Stdio::null());
    assert!(chromium.status().expect("chromium is installed: run scripts/setup").success());
}

/// Two more topics, each with a load and an instance of its own, for the dashboard. They have the name for which `config/prometheus.yml` asks.
pub fn more_topics(demo: &Demo) {
    if !requested() {
        return;
    }
    let (network, label) = (format!("{PROJECT}_default"), format!("com.docker.compose.project={PROJECT}"));
    let image = Demo::image("dedupd");
    for (topic, rate, duplicates) in MORE_TOPICS {
        let [raw, clean] = ["raw", "clean"].map(|kind| format!("{topic}.{kind}"));
        let start = |name: &str, options: &[&str], command: &[&str]| {
            let name = container(topic, name);
            let run = [
                "run",
                "--detach",
                "--restart",
                "always",
                "--name",
                &name,
                "--network",
                &network,
                "--label",
                &label,
            ];
            demo.engine.docker(&[&run[..], options, &[&image], command].concat());
        };
        let load = ["generate", "--bootstrap-servers", "kafka:9092", "--topic", &raw, "--partitions", "6"];
        start("load", &[], &[&load[..], &["--rate", rate, "--duplicates", duplicates]].concat());
        let run = ["run", "--create", "--bootstrap-servers", "kafka:9092", "--id", "json:/id"];
        let names = ["--raw", &raw, "--clean", &clean, "--instance", topic];
        start("dedupd", &["--network-alias", "spare"], &[run, names].concat());
    }
}

fn container(topic: &str, name: &str) -> String {
    format!("{PROJECT}-{topic}-{name}")
}

/// Writes `docs/dashboard.svg` from the last minutes, and ends what was started for it.
pub fn dashboard(demo: &Demo) {
    if !requested() {
        return;
    }
    let declared: Value = serde_json::from_str(&file("dashboards/dedupd.json")).unwrap();
    let panels = declared["panels"].as_array().unwrap();
    let drawn = |panel: &&Value| panel["gridPos"]["y"].as_u64().unwrap() < LINES;
    let path = Path::new(TOP).join("docs/dashboard.svg");
    let size = (pixels(24 * COLUMN), pixels(HEAD + LINES * LINE));
    let root = SVGBackend::new(&path, size).into_drawing_area();
    root.fill(&WHITE).unwrap();
    let title = "Panels of dashboards/dedupd.json, drawn from their queries and a Prometheus that scrapes instances for three topics; not a screenshot of Grafana";
    text(&root, title, (8, 10), 13, BLACK);
    for panel in panels.iter().filter(drawn) {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        let corner = (pixels(at("x") * COLUMN), pixels(HEAD + at("y") * LINE));
        let size = (pixels(at("w") * COLUMN), pixels(at("h") * LINE));
        draw(&root.clone().shrink(corner, size), panel);
    }
    root.present().unwrap();
    for (topic, ..) in MORE_TOPICS {
        demo.engine.docker(&[
            "rm",
            "--force",
            "--volumes",
            &container(topic, "dedupd"),
            &container(topic, "load"),
        ]);
    }
}

fn pixels(count: u64) -> u32 {
    u32::try_from(count).unwrap()
}

fn text(area: &Area<'_>, words: &str, at: (i32, i32), size: u32, colour: RGBColor) {
    area.draw(&Text::new(words.to_owned(), at, ("sans-serif", size).into_font().color(&colour))).unwrap();
}

fn draw(area: &Area<'_>, panel: &Value) {
    let title = panel["title"].as_str().unwrap();
    if panel["type"] == "row" {
        return text(area, title, (8, 4), 15, BLACK);
    }
    let area = area.margin(2, 2, 2, 2);
    let (width, height) = area.dim_in_pixel();
    let corner = (i32::try_from(width).unwrap() - 1, i32::try_from(height).unwrap() - 1);
    area.draw(&Rectangle::new([(0, 0), corner], RGBColor(210, 210, 210))).unwrap();
    text(&area, title, (8, 6), 13, BLACK);
    let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap();
    let series: Vec<_> = panel["targets"].as_array().unwrap().iter().flat_map(series_of).collect();
    if panel["type"] == "stat" { stat(&area, &series, unit) } else { chart(&area, &series, unit) }
}

/// The series of a query over the last minutes. The instance's own labels fill in the legend.
fn series_of(target: &Value) -> Vec<Series> {
    let expr = target["expr"].as_str().unwrap();
    let all = |expr: String, name: &str| expr.replace(name, ".*");
    let expr = expr.replace("$__rate_interval", "1m");
    let expr = ["$topic", "$group", "$instance", "$partition"].into_iter().fold(expr, all);
    let now = now_ms() / 1_000;
    let path = format!("query_range?query={}&start={}&end={now}&step=4", escaped(&expr), now - SPAN);
    let data = prometheus(&path).unwrap_or_else(|| panic!("Prometheus rejects {expr}"));
    let found = data["result"].as_array().unwrap().iter();
    found
        .map(|series| Series {
            legend: legend(target["legendFormat"].as_str().unwrap(), &series["metric"]),
            points: series["values"].as_array().unwrap().iter().filter_map(|it| point(it, now)).collect(),
        })
        .filter(|series| !series.points.is_empty())
        .collect()
}

fn point(pair: &Value, now: i64) -> Option<(f64, f64)> {
    let value: f64 = pair[1].as_str()?.parse().ok()?;
    value.is_finite().then(|| (pair[0].as_f64().unwrap() - now as f64, value))
}

fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |escaped, byte| escaped + &format!("%{byte:02X}"))
}

fn legend(format: &str, labels: &Value) -> String {
    let mut legend = format.to_owned();
    for (name, value) in labels.as_object().unwrap() {
        legend = legend.replace(&format!("{{{{{name}}}}}"), value.as_str().unwrap());
    }
    legend
}

fn stat(area: &Area<'_>, series: &[Series], unit: &str) {
    let last: BTreeMap<_, _> = series.iter().map(|it| (&it.legend, it.points.last().unwrap().1)).collect();
    let step = if last.len() > 1 { 20 } else { 30 };
    for (line, (legend, value)) in last.iter().take(3).enumerate() {
        let at = (10, 26 + step * i32::try_from(line).unwrap());
        let words =
            if last.len() > 1 { format!("{legend}: {}", shown(*value, unit)) } else { shown(*value, unit) };
        text(area, &words, at, pixels(if last.len() > 1 { 15 } else { 28 }), COLOURS[0]);
    }
}

fn chart(area: &Area<'_>, series: &[Series], unit: &str) {
    let values = || series.iter().flat_map(|it| &it.points).map(|point| point.1);
    let top = values().fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin_top(24)
        .margin_right(10)
        .x_label_area_size(18)
        .y_label_area_size(62)
        .build_cartesian_2d(-(SPAN as f64)..0.0, 0.0..if top > 0.0 { top * 1.25 } else { 1.0 })
        .unwrap();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(5)
        .y_labels(4)
        .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
        .y_label_formatter(&|value| shown(*value, unit))
        .label_style(("sans-serif", 11))
        .draw()
        .unwrap();
    for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        chart.draw_series(LineSeries::new(series.points.iter().copied(), colour)).unwrap();
    }
    // As many as the width has room for, at the top of the chart.
    for (place, (series, colour)) in series.iter().zip(COLOURS.iter().cycle()).take(6).enumerate() {
        let place = i32::try_from(place).unwrap();
        let at = (72 + place % 3 * 145, 24 + place / 3 * 14);
        text(area, &series.legend.chars().take(24).collect::<String>(), at, 11, *colour);
    }
}

/// A value with its unit, as in Grafana.
fn shown(value: f64, unit: &str) -> String {
    match unit {
        "percentunit" => format!("{:.1} %", value * 100.0),
        "s" if value > 0.0 && value < 1.0 => format!("{:.0} ms", value * 1_000.0),
        "s" => format!("{value:.0} s"),
        "sci" => format!("{value:.0e}"),
        "bytes" | "Bps" => scaled(value, if unit == "Bps" { "B/s" } else { "B" }),
        "cps" | "ops" => scaled(value, "/s"),
        _ => scaled(value, ""),
    }
}

fn scaled(value: f64, unit: &str) -> String {
    let (divisor, prefix) = match value.abs() {
        size if size >= 1e9 => (1e9, "G"),
        size if size >= 1e6 => (1e6, "M"),
        size if size >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let digits = usize::from((value / divisor).fract().abs() > 1e-9);
    format!("{:.digits$} {prefix}{unit}", value / divisor).trim_end().to_owned()
}
