//! Curves as SVG, readable on light and on dark ground.

use crate::Error;
use crate::files::write_atomically;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::path::Path;

/// One plot of several.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Of the axes.
    pub labels: [String; 2],
    /// Whether each axis is logarithmic; what is not positive is then left out.
    pub log: [bool; 2],
    /// Curves with their names, in the order of the legend.
    pub curves: Vec<(String, Vec<[f64; 2]>)>,
    /// Points that are marked, on the curve of that index.
    pub marks: Vec<(usize, [f64; 2])>,
}

const SIZE: (u32, u32) = (560, 400);
/// Text and axes: as far from white as from black.
const GREY: RGBColor = RGBColor(128, 128, 128);
/// Okabe and Ito's colours, which the colour-blind tell apart, as far as they are seen on both grounds.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 133, 202),
    RGBColor(230, 120, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 90, 150),
    RGBColor(200, 60, 60),
    RGBColor(120, 110, 220),
    RGBColor(150, 140, 60),
];

/// Writes the panels beside each other into an SVG file.
///
/// # Errors
/// [`Error::Io`], and [`Error::Config`] for a name that does not end in .svg.
pub fn write(path: &Path, panels: &[Panel]) -> Result<(), Error> {
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err(Error::config("--plot", format!("{:?} must end in .svg", path.display().to_string())));
    }
    let mut text = String::new();
    let drawn = draw(&mut text, panels);
    if let Err(problem) = drawn {
        let source = std::io::Error::other(problem);
        return Err(Error::Io { action: "draw", path: path.to_path_buf(), source });
    }
    write_atomically(path, text.as_bytes())
}

type Drawn = Result<(), String>;

fn draw(text: &mut String, panels: &[Panel]) -> Drawn {
    let columns = panels.len().clamp(1, 3);
    let rows = panels.len().max(1).div_ceil(columns);
    let size = (SIZE.0 * columns as u32, SIZE.1 * rows as u32);
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
        let range = |axis: usize| range(panel, axis);
        match panel.log {
            [false, false] => chart(area, panel, range(0), range(1)),
            [true, false] => chart(area, panel, range(0).log_scale(), range(1)),
            [false, true] => chart(area, panel, range(0), range(1).log_scale()),
            [true, true] => chart(area, panel, range(0).log_scale(), range(1).log_scale()),
        }?;
    }
    root.present().map_err(|e| e.to_string())
}

/// The part of an axis that the curves take, and a little more.
fn range(panel: &Panel, axis: usize) -> std::ops::Range<f64> {
    let values: Vec<f64> = shown(panel).map(|point| point[axis]).collect();
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match (low <= high, panel.log[axis]) {
        (false, true) => 0.1..1.0,
        (false, false) => 0.0..1.0,
        (true, true) => low / 1.2..high * 1.2,
        (true, false) => {
            let margin = 0.05 * (high - low).max(1e-3 * high.abs()).max(1e-12);
            low - margin..high + margin
        }
    }
}

fn shown(panel: &Panel) -> impl Iterator<Item = [f64; 2]> {
    panel.curves.iter().flat_map(|(_, points)| points).copied().filter(|point| is_shown(panel, *point))
}

fn is_shown(panel: &Panel, point: [f64; 2]) -> bool {
    (0..2).all(|axis| point[axis].is_finite() && (!panel.log[axis] || point[axis] > 0.0))
}

fn chart<X, Y>(area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, panel: &Panel, x: X, y: Y) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let said = |e: DrawingAreaErrorKind<std::io::Error>| e.to_string();
    let font = |size: i32| ("sans-serif", size).into_font().color(&GREY);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, font(16))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(x, y)
        .map_err(said)?;
    chart
        .configure_mesh()
        .x_desc(&panel.labels[0])
        .y_desc(&panel.labels[1])
        .axis_style(GREY)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY.mix(0.25))
        .label_style(font(12))
        .axis_desc_style(font(13))
        .x_label_formatter(&|v| number(*v))
        .y_label_formatter(&|v| number(*v))
        .draw()
        .map_err(said)?;
    for (i, (name, points)) in panel.curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        // Dashes tell the curves of the second round of colours apart.
        let points: Vec<(f64, f64)> = points.iter().filter(|p| is_shown(panel, **p)).map(|[x, y]| (*x, *y)).collect();
        let style = colour.stroke_width(2);
        let line = if i < COLOURS.len() {
            chart.draw_series(LineSeries::new(points.iter().copied(), style)).map_err(said)?
        } else {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, style)).map_err(said)?
        };
        line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 2, colour.filled()))).map_err(said)?;
    }
    for (curve, [x, y]) in panel.marks.iter().filter(|(_, point)| is_shown(panel, *point)) {
        let colour = COLOURS[curve % COLOURS.len()];
        chart.draw_series([Circle::new((*x, *y), 6, colour.stroke_width(2))]).map_err(said)?;
    }
    if panel.curves.len() > 1 {
        chart.configure_series_labels().label_font(font(12)).border_style(TRANSPARENT).draw().map_err(said)?;
    }
    Ok(())
}

/// A number with as many digits as an axis needs.
fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        size if (1e-2..1e4).contains(&size) => {
            let text = format!("{x:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        }
        _ => format!("{x:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_shows_every_curve_and_leaves_out_what_has_no_logarithm() {
        let panel = |log| Panel {
            title: "loss".into(),
            labels: ["step".into(), "nats".into()],
            log,
            curves: vec![
                ("one".into(), vec![[1.0, 2.0], [2.0, 0.0], [3.0, f64::NAN], [4.0, 1.0]]),
                ("two".into(), vec![[1.0, 3.0]]),
            ],
            marks: vec![(1, [1.0, 3.0])],
        };
        for log in [[false, false], [true, true], [false, true], [true, false]] {
            let mut text = String::new();
            draw(&mut text, &[panel(log), panel(log)]).unwrap();
            assert!(
                text.contains("one") && text.contains("two") && text.contains("nats") && text.ends_with("</svg>\n")
            );
            assert!(!text.contains("NaN") && !text.contains("inf"));
        }
        draw(&mut String::new(), &[Panel { curves: Vec::new(), ..panel([true, true]) }]).unwrap();
        assert_eq!(["0", "0.5", "12", "2e-5"].map(String::from), [0.0, 0.5, 12.0, 2e-5].map(number));
    }
}
