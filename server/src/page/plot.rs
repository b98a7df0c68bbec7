//! SVG plots: stacked bars for counts, lines for durations. The view also shows the data as a table.

use std::fmt::Write as _;

use askama::{Template, filters::HtmlSafe};

/// Size of the drawing area, in SVG units.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// A plot with its scale.
#[derive(Template)]
#[template(path = "parts/plot.html")]
pub(super) struct Plot {
    title: &'static str,
    /// Figure of the whole plot, shown beside its title; empty for none.
    figure: String,
    width: f64,
    height: f64,
    /// CSS class, name and SVG path of each series.
    series: Vec<(&'static str, &'static str, String)>,
    /// Label of the plot's upper edge.
    top: String,
    /// Labels of the plot's left and right edges.
    ends: (String, String),
}

impl HtmlSafe for Plot {}

/// A data series of a plot: CSS class, name and values.
pub(super) type Series<V> = (&'static str, &'static str, Vec<V>);

impl Plot {
    fn new(
        title: &'static str,
        series: Vec<(&'static str, &'static str, String)>,
        top: String,
        ends: &(String, String),
    ) -> Self {
        Self { title, figure: String::new(), width: WIDTH, height: HEIGHT, series, top, ends: ends.clone() }
    }

    /// Returns the plot with a figure beside its title.
    pub(super) fn with_figure(self, figure: String) -> Self {
        Self { figure, ..self }
    }

    /// Creates a plot with stacked bars of counts.
    pub(super) fn bars(
        title: &'static str,
        series: Vec<Series<f64>>,
        ends: &(String, String),
        scale: impl Fn(f64) -> String,
    ) -> Self {
        let slots = series.first().map_or(0, |(_, _, values)| values.len());
        let mut below = vec![0.0; slots];
        let most = (0..slots).map(|i| series.iter().map(|(_, _, values)| values[i]).sum::<f64>()).fold(0.0, f64::max);
        let step = WIDTH / slots.max(1) as f64;
        let drawn = series.into_iter().map(|(class, name, values)| {
            let mut path = String::new();
            for (i, value) in values.into_iter().enumerate().filter(|(_, value)| *value > 0.0) {
                let (x, from) = (i as f64 * step, HEIGHT - below[i] / most * HEIGHT);
                below[i] += value;
                let to = HEIGHT - below[i] / most * HEIGHT;
                // Writing to a String cannot fail.
                let _ = write!(path, "M{x:.1} {from:.1}V{to:.1}h{:.1}V{from:.1}z", step * 0.8);
            }
            (class, name, path)
        });
        Self::new(title, drawn.collect(), scale(most), ends)
    }

    /// Creates a plot with lines of durations. A missing value leaves a gap.
    pub(super) fn lines(
        title: &'static str,
        series: Vec<Series<Option<f64>>>,
        ends: &(String, String),
        scale: impl Fn(f64) -> String,
    ) -> Self {
        let values = series.iter().flat_map(|(_, _, values)| values).flatten();
        let most = values.copied().fold(0.0, f64::max);
        let drawn = series.into_iter().map(|(class, name, values)| {
            let step = WIDTH / values.len().max(1) as f64;
            let (mut path, mut goes_on) = (String::new(), false);
            for (i, value) in values.into_iter().enumerate() {
                if let Some(value) = value {
                    let (x, y) = ((i as f64 + 0.4) * step, HEIGHT - value / most.max(f64::MIN_POSITIVE) * HEIGHT);
                    // The path command `h0` draws a dot, because line ends are round. It makes a value without
                    // neighbours visible.
                    let _ = write!(path, "{}{x:.1} {y:.1}h0", if goes_on { 'L' } else { 'M' });
                }
                goes_on = value.is_some();
            }
            (class, name, path)
        });
        Self::new(title, drawn.collect(), scale(most), ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (String, String) {
        ("then".into(), "now".into())
    }

    #[test]
    fn bars_stand_on_each_other_and_fill_the_height() {
        let plot = Plot::bars("t", vec![("a", "A", vec![3.0, 0.0]), ("b", "B", vec![1.0, 2.0])], &ends(), |n| {
            format!("{n} jobs")
        });
        assert_eq!(plot.series[0].2, "M0.0 120.0V30.0h240.0V120.0z");
        assert_eq!(plot.series[1].2, "M0.0 30.0V0.0h240.0V30.0zM300.0 120.0V60.0h240.0V120.0z");
        assert_eq!(plot.top, "4 jobs");
    }

    #[test]
    fn a_line_is_broken_where_there_is_nothing() {
        let values = vec![Some(1.0), Some(2.0), None, Some(0.0)];
        let plot = Plot::lines("t", vec![("a", "A", values)], &ends(), |n| n.to_string());
        assert_eq!(plot.series[0].2, "M60.0 60.0h0L210.0 0.0h0M510.0 120.0h0");
    }

    #[test]
    fn a_plot_without_values_draws_no_paths() {
        let plot = Plot::bars("t", vec![("a", "A", vec![0.0; 3])], &ends(), |n| n.to_string());
        assert_eq!(plot.series[0].2, "");
        assert!(plot.render().unwrap().contains("<svg"));
        assert_eq!(Plot::lines("t", vec![("a", "A", vec![None])], &ends(), |n| n.to_string()).series[0].2, "");
    }
}
