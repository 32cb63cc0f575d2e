//! Charts as inline SVG: no script, no outside asset, in the colours of the page.

use crate::metrics::Rates;

/// Size in the units of the drawing.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 90.0;

/// Records and duplicates a second over the last minutes, and how far behind: each with what it is now. `lag` is
/// nothing while a partition does not know its own.
pub(super) fn charts(rates: &[Rates], lag: Option<u64>) -> String {
    let Some(last) = rates.last() else {
        return "<p>The charts begin ten seconds after the start.</p>\n".to_owned();
    };
    let minutes = (rates.len() * 5).div_ceil(60);
    let over = format!("in the last {minutes} min");
    let behind = |rate: &Rates| rate.lag.map(|lag| lag as f64);
    let fastest = rates.iter().map(|rate| rate.records).fold(0.0, f64::max);
    let longest = rates.iter().filter_map(behind).reduce(f64::max);
    let all = line(rates, fastest, "all", |rate| Some(rate.records));
    let again = line(rates, fastest, "again", |rate| Some(rate.duplicates));
    let behind = line(rates, longest.unwrap_or(0.0), "lag", behind);
    let longest = longest.map_or_else(String::new, |most| format!("; at most {most:.0} {over}"));
    let lag = lag.map_or_else(|| "not known now".to_owned(), |lag| lag.to_string());
    let rates = figure(
        &format!("records a second {over}"),
        &format!("{all}{again}"),
        &format!(
            "<span class=\"all\">{:.0} records/s</span>, <span class=\"again\">{:.0} duplicates/s</span>; \
             at most {fastest:.0}/s {over}",
            last.records, last.duplicates
        ),
    );
    let lag = figure(
        &format!("records behind {over}"),
        &behind,
        &format!("<span class=\"lag\">lag: {lag}</span>{longest}"),
    );
    format!("<div class=\"charts\">\n{rates}{lag}</div>\n")
}

fn figure(label: &str, lines: &str, legend: &str) -> String {
    format!(
        "<div><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" preserveAspectRatio=\"none\" \
         aria-label=\"{label}\">{lines}</svg><p class=\"legend\">{legend}</p></div>\n"
    )
}

/// With a gap where nothing is known.
fn line(rates: &[Rates], most: f64, class: &str, of: impl Fn(&Rates) -> Option<f64>) -> String {
    let step = WIDTH / (rates.len().max(2) - 1) as f64;
    let (mut pen, mut points) = ('M', Vec::new());
    for (at, rate) in rates.iter().enumerate() {
        let Some(value) = of(rate) else {
            pen = 'M';
            continue;
        };
        let (x, y) = (at as f64 * step, HEIGHT - 2.0 - value / most.max(1.0) * (HEIGHT - 4.0));
        points.push(format!("{pen}{x:.1},{y:.1}"));
        pen = 'L';
    }
    format!("<path class=\"{class}\" d=\"{}\"/>", points.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_inside_its_box() {
        let quiet = Rates { records: 0.0, duplicates: 0.0, lag: Some(0) };
        let busy = Rates { records: 2_000.0, duplicates: 500.0, lag: Some(30) };
        let drawn = charts(&[quiet, busy], Some(7));
        assert!(drawn.contains("\"all\" d=\"M0.0,88.0 L600.0,2.0\""), "{drawn}");
        assert!(drawn.contains("\"lag\" d=\"M0.0,88.0 L600.0,2.0\""), "{drawn}");
        assert!(drawn.contains("2000 records/s") && drawn.contains("500 duplicates/s"), "{drawn}");
        assert!(drawn.contains("lag: 7<") && drawn.contains("at most 30 in"), "{drawn}");
        assert!(charts(&[quiet, busy], None).contains("lag: not known"));
        let unknown = Rates { lag: None, ..quiet };
        let drawn = charts(&[busy, unknown, quiet], None);
        assert!(drawn.contains("\"lag\" d=\"M0.0,2.0 M600.0,88.0\""), "no lag is not a lag of 0: {drawn}");
        assert!(charts(&[], None).contains("begin"));
        assert!(charts(&[busy], None).contains("d=\"M0.0,2.0\""));
    }
}
