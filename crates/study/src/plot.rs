//! Plots as SVG, or with the feature `png` as PNG, readable on light and dark backgrounds.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::path::Path;
use unitgain_train::Error;
use unitgain_train::folder::files::write_atomically;

/// One plot of a figure.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Title above the plot.
    pub title: String,
    /// Labels of the x and y axes.
    pub labels: [String; 2],
    /// Whether each axis is logarithmic; values that are not positive are then omitted.
    pub log: [bool; 2],
    /// Name and points of each curve, in the order of the legend.
    pub curves: Vec<(String, Vec<[f64; 2]>)>,
    /// Marked points, with the index of their curve.
    pub marks: Vec<(usize, [f64; 2])>,
}

/// Size of a panel without its legend, in pixels.
const SIZE: (u32, u32) = (560, 400);
/// Layout of the legend: length of a line sample, first row, distance of rows.
const SAMPLE: i32 = 24;
const TOP: i32 = 44;
const ROW: i32 = 18;
/// Colour of text and axes, with equal contrast on black and white.
const GREY: RGBColor = RGBColor(128, 128, 128);
/// The colour-blind safe colours of Okabe and Ito that are visible on both backgrounds.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 133, 202),
    RGBColor(230, 120, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 90, 150),
    RGBColor(200, 60, 60),
    RGBColor(120, 110, 220),
    RGBColor(150, 140, 60),
];

/// Writes the panels side by side to an SVG file, or with the feature `png` to a PNG file.
///
/// # Errors
/// [`Error::Io`], and errors of [`check`].
pub fn write(path: &Path, panels: &[Panel]) -> Result<(), Error> {
    let format = format_of(path)?;
    let failed = |problem: String| Error::Io {
        action: "draw",
        path: path.to_path_buf(),
        source: std::io::Error::other(problem),
    };
    let mut text = String::new();
    draw(&mut text, panels).map_err(failed)?;
    let bytes = match format {
        Format::Svg => text.into_bytes(),
        #[cfg(feature = "png")]
        Format::Png => png(&text).map_err(failed)?,
    };
    write_atomically(path, &bytes)
}

/// Checks a file name for [`write()`] before anything is computed.
///
/// # Errors
/// [`Error::Value`] if the name does not end in .svg (or in .png with that feature), or its folder does not exist.
pub fn check(path: &Path) -> Result<(), Error> {
    format_of(path)?;
    let refuse = |problem: &str| Err(Error::value("--plot", format!("{:?}", path.display().to_string()), problem));
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        _ if path.is_dir() => refuse("is a folder; give the name of a file"),
        Some(parent) if !parent.is_dir() => refuse("is in a folder that does not exist; create it first"),
        Some(_) | None => Ok(()),
    }
}

enum Format {
    Svg,
    #[cfg(feature = "png")]
    Png,
}

fn format_of(path: &Path) -> Result<Format, Error> {
    let refuse = |problem: &str| Err(Error::value("--plot", format!("{:?}", path.display().to_string()), problem));
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(Format::Svg),
        #[cfg(feature = "png")]
        Some("png") => Ok(Format::Png),
        #[cfg(not(feature = "png"))]
        Some("png") => refuse("needs a build with `--features png`; .svg is drawn by every build"),
        Some(_) | None => refuse("must end in .svg or .png"),
    }
}

/// Twice as many pixels as the SVG has units, on white, because most viewers draw no background.
#[cfg(feature = "png")]
fn png(svg: &str) -> Result<Vec<u8>, String> {
    use resvg::{tiny_skia, usvg};
    const SCALE: f32 = 2.0;
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    // The font of "sans-serif" depends on the system; any font is better than no text.
    let usual = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica"];
    let known: Vec<String> = fonts.faces().flat_map(|face| &face.families).map(|(family, _)| family.clone()).collect();
    let family = usual.iter().map(ToString::to_string).find(|family| known.contains(family));
    match family.or_else(|| known.first().cloned()) {
        Some(family) => fonts.set_sans_serif_family(family),
        None => return Err("the system has no font for its text; install one, or draw an .svg".into()),
    }
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| e.to_string())?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("it has no size")?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or("it is too large")?;
    pixels.fill(tiny_skia::Color::WHITE);
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| e.to_string())
}

type Drawn = Result<(), String>;

fn draw(text: &mut String, panels: &[Panel]) -> Drawn {
    let columns = panels.len().clamp(1, 3);
    let rows = panels.len().max(1).div_ceil(columns);
    let size = size(panels);
    let root = SVGBackend::with_string(text, (size.0 * columns as u32, size.1 * rows as u32)).into_drawing_area();
    for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
        let (plot, beside) = area.split_horizontally(SIZE.0);
        let range = |axis: usize| range(panel, axis);
        match panel.log {
            [false, false] => chart(&plot, panel, range(0), range(1)),
            [true, false] => chart(&plot, panel, range(0).log_scale(), range(1)),
            [false, true] => chart(&plot, panel, range(0), range(1).log_scale()),
            [true, true] => chart(&plot, panel, range(0).log_scale(), range(1).log_scale()),
        }?;
        if panel.curves.len() > 1 {
            legend(&beside, panel)?;
        }
    }
    root.present().map_err(|e| e.to_string())
}

/// Size of a panel with its legend, which fits the longest name and the curves of any panel.
fn size(panels: &[Panel]) -> (u32, u32) {
    let legends = || panels.iter().filter(|panel| panel.curves.len() > 1);
    let longest = legends().flat_map(|panel| &panel.curves).map(|(name, _)| name.chars().count()).max();
    let most = legends().map(|panel| panel.curves.len()).max().unwrap_or(0);
    let width = longest.map_or(0, |letters| SAMPLE as u32 + 20 + 7 * letters as u32);
    (SIZE.0 + width, SIZE.1.max(2 * TOP as u32 + ROW as u32 * most as u32))
}

/// Draws the legend in an area of its own, where it hides no curve.
fn legend(area: &Area<'_>, panel: &Panel) -> Drawn {
    for (i, (name, _)) in panel.curves.iter().enumerate() {
        let y = TOP + ROW * i as i32;
        let style = COLOURS[i % COLOURS.len()].stroke_width(2);
        let line = [(0, y), (SAMPLE, y)];
        let drawn = match i < COLOURS.len() {
            true => area.draw(&PathElement::new(line, style)),
            false => area.draw(&DashedPathElement::new(line, 6, 4, style)),
        };
        drawn.and_then(|()| area.draw(&Text::new(name.as_str(), (SAMPLE + 6, y - 6), font(12)))).map_err(said)?;
    }
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn said(e: DrawingAreaErrorKind<std::io::Error>) -> String {
    e.to_string()
}

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&GREY)
}

/// The range of an axis: the curves with a margin.
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

fn chart<X, Y>(area: &Area<'_>, panel: &Panel, x: X, y: Y) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
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
        .x_label_formatter(&|v| if panel.log[0] { sparse(*v) } else { number(*v) })
        .y_label_formatter(&|v| number(*v))
        .draw()
        .map_err(said)?;
    for (i, (_, points)) in panel.curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        // Dashes distinguish curves whose colours repeat.
        let points: Vec<(f64, f64)> = points.iter().filter(|p| is_shown(panel, **p)).map(|[x, y]| (*x, *y)).collect();
        let style = colour.stroke_width(2);
        if i < COLOURS.len() {
            chart.draw_series(LineSeries::new(points.iter().copied(), style)).map_err(said)?;
        } else {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, style)).map_err(said)?;
        }
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 2, colour.filled()))).map_err(said)?;
    }
    for (curve, [x, y]) in panel.marks.iter().filter(|(_, point)| is_shown(panel, *point)) {
        let colour = COLOURS[curve % COLOURS.len()];
        chart.draw_series([Circle::new((*x, *y), 6, colour.stroke_width(2))]).map_err(said)?;
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

/// Labels only 1, 2 and 5 of a decade, to keep labels apart.
fn sparse(x: f64) -> String {
    let text = format!("{x:.0e}");
    if ["1e", "2e", "5e"].iter().any(|start| text.starts_with(start)) { number(x) } else { String::new() }
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
        let empty = Panel { curves: Vec::new(), ..panel([true, true]) };
        draw(&mut String::new(), std::slice::from_ref(&empty)).unwrap();
        assert_eq!(["0", "0.5", "12", "2e-5"].map(String::from), [0.0, 0.5, 12.0, 2e-5].map(number));
        assert_eq!(["2e-3", "", "", "0.01", "5"].map(String::from), [2e-3, 3e-3, 9e-3, 0.01, 5.0].map(sparse));
        assert_eq!(size(&[empty]), SIZE, "a panel without curves needs no legend");
        assert!(size(&[panel([true, true])]).0 > SIZE.0, "a legend has an area of its own");
    }

    #[test]
    fn the_name_says_the_format() {
        assert!(check(Path::new("a.svg")).is_ok());
        assert!(check(Path::new("a.pdf")).unwrap_err().to_string().contains(".svg or .png"));
        #[cfg(not(feature = "png"))]
        assert!(check(Path::new("a.png")).unwrap_err().to_string().contains("--features png"));
        #[cfg(feature = "png")]
        {
            let path = std::env::temp_dir().join(format!("unitgain-plot-{}.png", std::process::id()));
            let curve = |name: &str| (name.to_string(), vec![[1.0, 2.0], [2.0, 3.0]]);
            let panel = Panel {
                title: "loss".into(),
                labels: ["step".into(), "nats".into()],
                log: [false, false],
                curves: vec![curve("one"), curve("two")],
                marks: Vec::new(),
            };
            write(&path, &[panel]).unwrap();
            assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
            let _ = std::fs::remove_file(path);
        }
    }
}
