//! Small line charts, side by side in one SVG file.

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// A chart of one value.
pub struct Panel {
    pub title: &'static str,
    /// The unit of the values.
    pub unit: &'static str,
    pub points: Vec<(f64, f64)>,
}

const PANEL: (u32, u32) = (300, 260);
const LINE: RGBColor = RGBColor(31, 119, 180);

/// Draws the panels, with a logarithmic horizontal axis where the values span more than a factor of ten.
pub fn draw(path: &str, panels: &[Panel]) {
    let width = PANEL.0 * u32::try_from(panels.len()).unwrap();
    let root = SVGBackend::new(path, (width, PANEL.1)).into_drawing_area();
    root.fill(&WHITE).unwrap();
    for (area, panel) in root.split_evenly((1, panels.len())).iter().zip(panels) {
        let first = panel.points.first().map_or(0.0, |point| point.0);
        let last = panel.points.last().map_or(1.0, |point| point.0);
        let highest = panel.points.iter().fold(0.0_f64, |most, (_, value)| most.max(*value));
        let caption = format!("{} {}", panel.unit, panel.title);
        let mut chart = ChartBuilder::on(area);
        chart.caption(caption, ("sans-serif", 13)).margin(12).x_label_area_size(24).y_label_area_size(40);
        if last > 10.0 * first {
            let axis = (first..last).log_scale();
            show(&mut chart.build_cartesian_2d(axis, 0.0..highest * 1.15).unwrap(), &panel.points);
        } else {
            show(&mut chart.build_cartesian_2d(first..last, 0.0..highest * 1.15).unwrap(), &panel.points);
        }
    }
    root.present().unwrap();
}

fn show<X>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, RangedCoordf64>>,
    points: &[(f64, f64)],
) where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let label = |value: &f64| format!("{value:.0}");
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(TRANSPARENT).x_labels(4).x_label_formatter(&label).y_label_formatter(&label);
    mesh.draw().unwrap();
    chart.draw_series(LineSeries::new(points.iter().copied(), LINE).point_size(3)).unwrap();
}
