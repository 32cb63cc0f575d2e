//! A chart as inline SVG: no script, no outside asset, in the colours of the page.

use crate::metrics::Rates;

/// Size in the units of the drawing.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 90.0;

/// Records and duplicates a second over the last minutes, with what they are now.
pub(super) fn rates(rates: &[Rates]) -> String {
    let Some(last) = rates.last() else {
        return "<p>The chart begins ten seconds after the start.</p>".to_owned();
    };
    let most = rates.iter().map(|rate| rate.records).fold(1.0, f64::max);
    let minutes = (rates.len() * 5).div_ceil(60);
    let all = line(rates, most, "all", |rate| rate.records);
    let again = line(rates, most, "again", |rate| rate.duplicates);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" preserveAspectRatio=\"none\" \
         aria-label=\"records a second in the last {minutes} minutes\">{all}{again}</svg>\
         <p class=\"legend\"><span class=\"all\">{:.0} records/s</span>, \
         <span class=\"again\">{:.0} duplicates/s</span>; at most {most:.0}/s in {minutes} min</p>",
        last.records, last.duplicates
    )
}

fn line(rates: &[Rates], most: f64, class: &str, of: impl Fn(&Rates) -> f64) -> String {
    let step = WIDTH / (rates.len().max(2) - 1) as f64;
    let points = rates.iter().enumerate().map(|(at, rate)| {
        let (x, y) = (at as f64 * step, HEIGHT - 2.0 - of(rate) / most * (HEIGHT - 4.0));
        format!("{x:.1},{y:.1}")
    });
    let points: Vec<String> = points.collect();
    format!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_inside_its_box() {
        let quiet = Rates { records: 0.0, duplicates: 0.0, lag: 0 };
        let busy = Rates { records: 2_000.0, duplicates: 500.0, lag: 3 };
        let drawn = rates(&[quiet, busy]);
        assert!(drawn.contains("points=\"0.0,88.0 600.0,2.0\""), "{drawn}");
        assert!(drawn.contains("2000 records/s") && drawn.contains("500 duplicates/s"), "{drawn}");
        assert!(rates(&[]).contains("begins"));
        assert!(rates(&[busy]).contains("points=\"0.0,2.0\""));
    }
}
