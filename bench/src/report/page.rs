//! The report: a self-contained HTML page for light and dark mode, with plots as SVG with transparent background.

use std::fmt::Write as _;

use plotters::{
    chart::ChartBuilder,
    coord::{Shift, ranged1d::Ranged, types::RangedCoordf64},
    prelude::{Cartesian2d, ChartContext, DrawingArea, IntoDrawingArea as _, IntoLogRange as _, SVGBackend},
    series::LineSeries,
    style::{Color as _, RGBColor},
};

use super::row::{Row, megabytes};
use crate::error::{Error, Result};

const STYLE: &str = include_str!("report.css");
/// Columns of the table: heading, and key in a row's JSON.
const COLUMNS: [(&str, &str); 11] = [
    ("jobs/s", "jobs_per_s"),
    ("of yardstick", "of_yardstick"),
    ("p50 ms", "p50_ms"),
    ("p90 ms", "p90_ms"),
    ("p99 ms", "p99_ms"),
    ("p99.9 ms", "p999_ms"),
    ("max ms", "max_ms"),
    ("broker MB", "rss_max_mb"),
    ("lost", "lost"),
    ("duplicated", "duplicated"),
    ("unexpected", "unexpected"),
];

/// Renders the report.
pub(crate) fn page(rows: &[Row]) -> Result<String> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>howdah bench</title>\n<style>\n{STYLE}</style>\n\
         <h1>howdah bench</h1>\n<p>Howdah {}. Throughput is from enqueue to confirmed ack. <em>Of yardstick</em> \
         is its ratio to what this Postgres did without brokers and clients just before and just after: two \
         connections, three transactions a batch.</p>\n",
        env!("CARGO_PKG_VERSION")
    );
    page.push_str(&table(rows));
    let mut workloads: Vec<&str> = rows.iter().map(|row| row.workload).collect();
    workloads.dedup();
    for workload in workloads {
        let cases: Vec<&Row> = rows.iter().filter(|row| row.workload == workload && !row.samples.is_empty()).collect();
        if cases.is_empty() {
            continue;
        }
        let _ = writeln!(page, "<h2>{}</h2>\n<p>{}</p>\n<div class=\"plots\">", escaped(workload), legend(&cases));
        for figure in [throughput(&cases)?, percentiles(&cases)?, memory(&cases)?].into_iter().flatten() {
            let _ = writeln!(page, "<figure><figcaption>{}</figcaption>\n{}</figure>", figure.title, figure.svg);
        }
        page.push_str("</div>\n");
    }
    let _ = writeln!(page, "<h2>Everything</h2>\n<pre>{}</pre>\n</html>", escaped(&json_lines(rows)));
    Ok(page)
}

/// Renders a legend with the colours of the cases.
fn legend(cases: &[&Row]) -> String {
    let entries = cases.iter().enumerate().map(|(number, row)| {
        format!("<b style=\"color: {}\">&#9473;</b> {}", css_colour(number), escaped(&row.name()))
    });
    entries.collect::<Vec<_>>().join(" &emsp; ")
}

fn table(rows: &[Row]) -> String {
    let mut table = "<div class=\"wide\"><table>\n<tr><th>workload</th><th>case</th>".to_owned();
    for (heading, _) in COLUMNS {
        let _ = write!(table, "<th>{heading}</th>");
    }
    table.push_str("</tr>\n");
    for row in rows {
        let json = row.json();
        let _ = write!(table, "<tr><td>{}</td><td>{}</td>", escaped(row.workload), escaped(&row.case));
        for (_, key) in COLUMNS {
            let cell =
                json.get(key).filter(|value| !value.is_null()).map_or_else(|| "–".to_owned(), ToString::to_string);
            let _ = write!(table, "<td class=\"number\">{}</td>", escaped(&cell));
        }
        table.push_str("</tr>\n");
    }
    table + "</table></div>\n"
}

fn json_lines(rows: &[Row]) -> String {
    rows.iter().map(|row| row.json().to_string()).collect::<Vec<_>>().join("\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const SIZE: (u32, u32) = (760, 380);
/// Colour of grid lines. The style sheet of the page repeats this colour.
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Colours of medium brightness, which contrast with white and with black.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x3b, 0x82, 0xf6),
    RGBColor(0xe1, 0x6a, 0x1f),
    RGBColor(0x16, 0x9c, 0x5b),
    RGBColor(0xc0, 0x4a, 0xc9),
    RGBColor(0xc9, 0x8a, 0x0b),
    RGBColor(0xd8, 0x3a, 0x52),
];
/// Maximum number of points in the plot of a value over time.
const POINTS: usize = 60;
/// Number of nines at the end of the percentile axis: with 5 nines, the last percentile is 99.999.
const NINES: f64 = 5.0;

#[derive(Debug)]
struct Figure {
    title: &'static str,
    svg: String,
}

/// Points of one case in a plot, with the colour of the case.
type Line = (RGBColor, Vec<(f64, f64)>);

/// Colour of case `number` in all plots of a workload.
fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Colour of case `number` in CSS syntax.
fn css_colour(number: usize) -> String {
    let RGBColor(red, green, blue) = colour(number);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Plots settled jobs per second over time.
fn throughput(rows: &[&Row]) -> Result<Option<Figure>> {
    let lines = lines(rows, |row| {
        // Thin the samples: enough points to show changes within seconds, and few enough not to show single batches.
        let every = row.samples.len().div_ceil(POINTS).max(1);
        let samples: Vec<_> = row.samples.iter().step_by(every).collect();
        let pairs = samples.windows(2).filter(|pair| pair[1].seconds > pair[0].seconds);
        let rates = pairs.map(|pair| {
            let (jobs, seconds) = (pair[1].settled - pair[0].settled, pair[1].seconds - pair[0].seconds);
            (pair[1].seconds, jobs as f64 / seconds)
        });
        rates.collect()
    });
    figure("Throughput over time, in jobs/s; below, seconds", &lines, over_time)
}

/// Plots the resident memory of the brokers over time.
fn memory(rows: &[&Row]) -> Result<Option<Figure>> {
    let lines = lines(rows, |row| {
        let known = row.samples.iter().filter_map(|sample| Some((sample.seconds, megabytes(sample.resident?))));
        known.collect()
    });
    figure("Resident memory of the brokers, in MB; below, seconds", &lines, over_time)
}

/// Plots the latencies by percentile. The axis is logarithmic: with each unit to the right, a tenth as many jobs are slower.
fn percentiles(rows: &[&Row]) -> Result<Option<Figure>> {
    const STEPS: u32 = 100;
    let lines = lines(rows, |row| {
        let step = |step: u32| {
            let nines = f64::from(step) / f64::from(STEPS) * NINES;
            Some((nines, row.percentile_ms(100.0 * (1.0 - 10_f64.powf(-nines)))?))
        };
        (0..=STEPS).filter_map(step).collect()
    });
    figure("Latency by percentile, in ms", &lines, |area, lines| {
        let (low, high) = (lowest(lines).max(1e-3), highest(lines));
        let mut chart = builder(area).build_cartesian_2d(0.0..NINES, (low * 0.8..high * 1.25).log_scale())?;
        let percentile = |nines: &f64| {
            let digits = (nines.round() as usize).saturating_sub(2);
            format!("{:.digits$}", 100.0 * (1.0 - 10_f64.powf(-nines.round())))
        };
        let mut mesh = chart.configure_mesh();
        mesh.x_labels(6).x_label_formatter(&percentile).y_label_formatter(&|ms| short(*ms));
        mesh.light_line_style(GRID.mix(0.0)).bold_line_style(GRID).draw()?;
        draw(&mut chart, lines)
    })
}

fn over_time(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let end = lines.iter().flat_map(|(_, points)| points).map(|point| point.0).fold(0.0, f64::max);
    let mut chart = builder(area).build_cartesian_2d(0.0..end, 0.0..highest(lines) * 1.1)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_label_formatter(&|seconds| short(*seconds)).y_label_formatter(&|value| short(*value));
    mesh.light_line_style(GRID.mix(0.0)).bold_line_style(GRID).draw()?;
    draw(&mut chart, lines)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn lines(rows: &[&Row], points: impl Fn(&Row) -> Vec<(f64, f64)>) -> Vec<Line> {
    let lines = rows.iter().enumerate().map(|(number, row)| (colour(number), points(row)));
    lines.filter(|(_, points)| points.len() > 1).collect()
}

/// Draws a plot; `None` if no line has points.
fn figure(
    title: &'static str,
    lines: &[Line],
    plot: impl FnOnce(&Area<'_>, &[Line]) -> Drawn,
) -> Result<Option<Figure>> {
    if lines.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let drawn = plot(&area, lines).and_then(|()| Ok(area.present()?));
    drop(area);
    drawn.map_err(|error| Error::Plot(error.to_string()))?;
    Ok(Some(Figure { title, svg }))
}

fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).margin_right(24).x_label_area_size(32).y_label_area_size(64);
    builder
}

fn draw<'a, Y>(chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>, lines: &[Line]) -> Drawn
where
    Y: Ranged<ValueType = f64> + 'static,
{
    for (colour, points) in lines {
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
    }
    Ok(())
}

fn highest(lines: &[Line]) -> f64 {
    let values = lines.iter().flat_map(|(_, points)| points).map(|point| point.1);
    values.fold(0.0, f64::max).max(1e-3)
}

fn lowest(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(f64::MAX, f64::min)
}

/// Formats `1234.5` as `1.2k`.
fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if value.abs() < 1.0 { 2 } else { 1 };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Micros, Sample};

    #[test]
    fn a_report_is_one_page_with_inline_plots_and_no_external_references() {
        let mut row = Row::new("rates", "a <b> & c", 1_000.0);
        row.samples =
            (0..10).map(|n| Sample { seconds: f64::from(n), settled: n as u64 * 7, resident: Some(1 << 20) }).collect();
        let mut latencies = Micros::new_with_bounds(1, 1_000_000, 3).unwrap();
        (1..1_000).for_each(|micros| latencies.record(micros).unwrap());
        row.latencies = Some(latencies);
        let page = page(&[row]).unwrap();
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("a &lt;b&gt; &amp; c") && !page.contains("a <b>"));
        for reference in ["src=", "href=", "url(", "@import"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }

    #[test]
    fn axis_labels_are_short_and_lose_nothing_that_matters() {
        assert_eq!([0.0, 0.25, 10.0, 100.0, 1_500.0, 200_000.0].map(short), ["0", "0.25", "10", "100", "1.5k", "200k"]);
    }
}
