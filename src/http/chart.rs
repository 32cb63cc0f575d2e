//! Charts as inline SVG: no script, no external asset, in the colours of the page.

use crate::metrics::Rates;

/// Size of a chart in SVG user units.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 90.0;

/// Records and duplicates per second and the lag over the last minutes, each with its current value. `lag` is `None`
/// while the lag of a partition is unknown.
pub(super) fn charts(rates: &[Rates], lag: Option<u64>) -> String {
    let Some(last) = rates.last() else {
        return "<p>Charts are available 10 seconds after the start.</p>\n".to_owned();
    };
    let minutes = (rates.len() * 5).div_ceil(60);
    let over = format!("in the last {minutes} min");
    let lag_of = |rate: &Rates| rate.lag.map(|lag| lag as f64);
    let max_rate = rates.iter().map(|rate| rate.records).fold(0.0, f64::max);
    // The current lag may be newer than the last sample.
    let max_lag = rates.iter().filter_map(lag_of).chain(lag.map(|lag| lag as f64)).reduce(f64::max);
    let records = line(rates, max_rate, "all", |rate| Some(rate.records));
    let duplicates = line(rates, max_rate, "again", |rate| Some(rate.duplicates));
    let lag_line = line(rates, max_lag.unwrap_or(0.0), "lag", lag_of);
    let max_lag = max_lag.map_or_else(String::new, |max| format!("; at most {max:.0} {over}"));
    let lag = lag.map_or_else(|| "unknown".to_owned(), |lag| lag.to_string());
    let rates = figure(
        &format!("records per second {over}"),
        &format!("{records}{duplicates}"),
        &format!(
            "<span class=\"all\">{:.0} records/s</span>, <span class=\"again\">{:.0} duplicates/s</span>; \
             at most {max_rate:.0}/s {over}",
            last.records, last.duplicates
        ),
    );
    let lag = figure(
        &format!("lag in records {over}"),
        &lag_line,
        &format!("<span class=\"lag\">lag: {lag}</span>{max_lag}"),
    );
    format!("<div class=\"charts\">\n{rates}{lag}</div>\n")
}

fn figure(label: &str, lines: &str, legend: &str) -> String {
    format!(
        "<div><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" preserveAspectRatio=\"none\" \
         aria-label=\"{label}\">{lines}</svg><p class=\"legend\">{legend}</p></div>\n"
    )
}

/// The line has a gap where the value is unknown.
fn line(rates: &[Rates], max: f64, class: &str, of: impl Fn(&Rates) -> Option<f64>) -> String {
    let step = WIDTH / (rates.len().max(2) - 1) as f64;
    let (mut pen, mut points) = ('M', Vec::new());
    for (at, rate) in rates.iter().enumerate() {
        let Some(value) = of(rate) else {
            pen = 'M';
            continue;
        };
        let (x, y) = (at as f64 * step, HEIGHT - 2.0 - value / max.max(1.0) * (HEIGHT - 4.0));
        points.push(format!("{pen}{x:.1},{y:.1}"));
        pen = 'L';
    }
    format!("<path class=\"{class}\" d=\"{}\"/>", points.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_inside_its_chart_and_an_unknown_lag_is_a_gap() {
        let quiet = Rates { records: 0.0, duplicates: 0.0, lag: Some(0) };
        let busy = Rates { records: 2_000.0, duplicates: 500.0, lag: Some(30) };
        let drawn = charts(&[quiet, busy], Some(7));
        assert!(drawn.contains("\"all\" d=\"M0.0,88.0 L600.0,2.0\""), "{drawn}");
        assert!(drawn.contains("\"lag\" d=\"M0.0,88.0 L600.0,2.0\""), "{drawn}");
        assert!(drawn.contains("2000 records/s") && drawn.contains("500 duplicates/s"), "{drawn}");
        assert!(drawn.contains("lag: 7<") && drawn.contains("at most 30 in"), "{drawn}");
        assert!(charts(&[quiet, busy], None).contains("lag: unknown"));
        let drawn = charts(&[quiet, busy], Some(404));
        assert!(drawn.contains("lag: 404<") && drawn.contains("at most 404 in"), "{drawn}");
        let unknown = Rates { lag: None, ..quiet };
        let drawn = charts(&[busy, unknown, quiet], None);
        assert!(
            drawn.contains("\"lag\" d=\"M0.0,2.0 M600.0,88.0\""),
            "an unknown lag is not a lag of 0: {drawn}"
        );
        assert!(charts(&[], None).contains("10 seconds after the start"));
        assert!(charts(&[busy], None).contains("d=\"M0.0,2.0\""));
    }
}
