//! One measurement, as shown in the table at the end of a run, the JSON and the report.

use howdah_core::numbers::grouped;
use serde_json::{Map, Value, json};

use crate::load::{Faults, Micros, Sample, Span};

/// One measurement: a workload, or one case of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) workload: &'static str,
    /// Name of the case; empty if there is only one.
    pub(crate) case: String,
    /// Jobs per second, from enqueue to confirmed ack.
    pub(crate) jobs_per_s: f64,
    /// Rates of the yardstick's cycle before and after the workload, in jobs per second. `None` if the yardstick was not
    /// measured.
    pub(crate) yardstick: Option<[f64; 2]>,
    /// Times from the due time of a job to the start of its handler.
    pub(crate) latencies: Option<Micros>,
    /// Numbers of lost, duplicated and unexpected jobs.
    pub(crate) faults: Faults,
    /// Throughput and memory over time.
    pub(crate) samples: Vec<Sample>,
    /// Other figures, by JSON key.
    pub(crate) facts: Map<String, Value>,
}

impl Row {
    /// Creates a row with a rate and no other figures.
    pub(crate) fn new(workload: &'static str, case: impl Into<String>, jobs_per_s: f64) -> Self {
        Self {
            workload,
            case: case.into(),
            jobs_per_s,
            yardstick: None,
            latencies: None,
            faults: Faults::default(),
            samples: Vec::new(),
            facts: Map::new(),
        }
    }

    /// Creates a row from the result of a measurement.
    pub(crate) fn from_span(workload: &'static str, case: impl Into<String>, span: Span) -> Self {
        let mut row = Self::new(workload, case, span.rate());
        row.fact("jobs", span.jobs);
        row.fact("seconds", rounded(span.seconds, 3));
        // Processor time per job, which shows where the machine's cores were used.
        for (name, seconds) in ["bench_cpu_us", "broker_cpu_us", "postgres_cpu_us"].into_iter().zip(span.used.cpu) {
            row.known(name, seconds.map(|seconds| rounded(seconds * 1e6 / span.jobs.max(1) as f64, 2)));
        }
        if let [Some(before), Some(after)] = span.used.resident {
            row.fact("rss_start_mb", rounded(megabytes(before), 1));
            row.fact("rss_mb", rounded(megabytes(after), 1));
            let most = span.samples.iter().filter_map(|sample| sample.resident).max();
            row.fact("rss_max_mb", rounded(megabytes(most.unwrap_or(after)), 1));
        }
        row.known("wal_bytes_per_job", span.used.wal.map(|bytes| rounded(bytes as f64 / span.jobs.max(1) as f64, 1)));
        row.samples = span.samples;
        row
    }

    /// Adds a figure by its JSON key.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Adds a figure by its JSON key, if it is known.
    pub(crate) fn known(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.fact(name, value);
        }
    }

    /// Ratio of the measured rate to the mean of the yardstick rates before and after the workload.
    pub(crate) fn of_yardstick(&self) -> Option<f64> {
        let [before, after] = self.yardstick?;
        let mean = f64::midpoint(before, after);
        (mean > 0.0).then(|| self.jobs_per_s / mean)
    }

    /// Returns a percentile of the latencies, in milliseconds; `None` without latencies.
    pub(crate) fn percentile_ms(&self, percentile: f64) -> Option<f64> {
        let latencies = self.latencies.as_ref().filter(|latencies| !latencies.is_empty())?;
        Some(latencies.value_at_percentile(percentile) as f64 / 1e3)
    }

    /// Name of the row for display: workload and case.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.workload, self.case).trim_end().to_owned()
    }

    /// Converts the row to a JSON object. All rows have the same fields, some of them null, followed by the row's other
    /// figures.
    pub(crate) fn json(&self) -> Value {
        let percentile = |p| self.percentile_ms(p).map(|ms| rounded(ms, 3));
        let mut object = json!({
            "workload": self.workload,
            "case": self.case,
            "jobs_per_s": rounded(self.jobs_per_s, 1),
            "of_yardstick": self.of_yardstick().map(|part| rounded(part, 4)),
            "p50_ms": percentile(50.0),
            "p90_ms": percentile(90.0),
            "p99_ms": percentile(99.0),
            "p999_ms": percentile(99.9),
            "max_ms": percentile(100.0),
            "lost": self.faults.lost,
            "duplicated": self.faults.duplicated,
            "unexpected": self.faults.unexpected,
            "yardstick_before": self.yardstick.map(|[before, _]| rounded(before, 0)),
            "yardstick_after": self.yardstick.map(|[_, after]| rounded(after, 0)),
        });
        if let Value::Object(keys) = &mut object {
            keys.extend(self.facts.clone());
        }
        object
    }
}

pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Rounds to `digits` decimal places.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Column of the table: title, and cell of a row.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 10] = [
    ("WORKLOAD", |row| row.workload.to_owned()),
    ("CASE", |row| row.case.clone()),
    ("JOBS/S", |row| grouped(row.jobs_per_s.round() as i64)),
    ("OF YARDSTICK", |row| row.of_yardstick().map_or_else(|| "-".to_owned(), |part| format!("{part:.3}"))),
    ("P50 MS", |row| ms(row, 50.0)),
    ("P90 MS", |row| ms(row, 90.0)),
    ("P99 MS", |row| ms(row, 99.0)),
    ("P99.9 MS", |row| ms(row, 99.9)),
    ("RSS MB", |row| row.facts.get("rss_max_mb").map_or_else(|| "-".to_owned(), ToString::to_string)),
    ("LOST/DUP/UNEXP", |row| format!("{}/{}/{}", row.faults.lost, row.faults.duplicated, row.faults.unexpected)),
];
/// Number of text columns; the other columns are numbers.
const TEXT: usize = 2;

/// Renders all rows in aligned columns.
pub(crate) fn table(rows: &[Row]) -> String {
    let heading = COLUMNS.map(|(title, _)| title.to_owned());
    let lines: Vec<[String; 10]> =
        std::iter::once(heading).chain(rows.iter().map(|row| COLUMNS.map(|(_, cell)| cell(row)))).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; 10] = std::array::from_fn(width);
    let aligned = lines.iter().map(|line| {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column < TEXT { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    aligned.collect::<Vec<_>>().join("\n")
}

fn ms(row: &Row, percentile: f64) -> String {
    row.percentile_ms(percentile).map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"))
}

/// Renders on one line the figures of a row that have no column in the table.
pub(crate) fn detail(row: &Row) -> String {
    let facts = row.facts.iter().map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name} {text}"),
        None => format!("{name} {value}"),
    });
    format!("{}: {}", row.name(), facts.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_compared_with_the_mean_of_the_yardsticks_around_it() {
        let mut row = Row::new("cycle", "", 150.0);
        assert_eq!(row.of_yardstick(), None);
        row.yardstick = Some([250.0, 150.0]);
        assert_eq!(row.of_yardstick(), Some(0.75));
        assert_eq!(row.json()["of_yardstick"], 0.75);
    }

    #[test]
    fn every_row_has_the_same_keys_known_or_not() {
        let row = Row::new("yardstick", "cycle", 1.0).json();
        for key in ["workload", "jobs_per_s", "of_yardstick", "p50_ms", "p99_ms", "lost", "duplicated"] {
            assert!(row.get(key).is_some(), "{key}");
        }
        assert!(row["p50_ms"].is_null());
    }

    #[test]
    fn unknown_values_are_dashes_and_columns_are_aligned() {
        let rows = [Row::new("cycle", "", 200_000.0), Row::new("single", "256 producers", 5.0)];
        let table = table(&rows);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(lines[0], "JOBS/S"), end(lines[1], "200,000"));
        assert_eq!(end(lines[1], "200,000"), end(lines[2], " 5"));
        assert!(lines[2].contains(" - "));
    }
}
