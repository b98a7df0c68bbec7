//! One measurement, as shown in the table, the JSON and the report.

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
        let mut row = Self::new(workload, case, span.jobs as f64 / span.seconds.max(1e-9));
        row.fact("jobs", span.jobs);
        row.fact("seconds", rounded(span.seconds, 3));
        let [before, after] = span.marks;
        let parts = ["bench_cpu_us", "broker_cpu_us", "postgres_cpu_us"];
        for (name, (before, after)) in parts.into_iter().zip(before.cpu.into_iter().zip(after.cpu)) {
            if let (Some(before), Some(after)) = (before, after) {
                // Processor time per job, which shows where the machine's cores were used.
                row.fact(name, rounded((after - before) * 1e6 / span.jobs.max(1) as f64, 2));
            }
        }
        if let (Some(before), Some(after)) = (before.resident, after.resident) {
            row.fact("rss_start_mb", rounded(megabytes(before), 1));
            row.fact("rss_mb", rounded(megabytes(after), 1));
            let most = span.samples.iter().filter_map(|sample| sample.resident).max();
            row.fact("rss_max_mb", rounded(megabytes(most.unwrap_or(after)), 1));
        }
        if let (Some(before), Some(after)) = (before.wal, after.wal) {
            row.fact("wal_bytes_per_job", rounded((after - before) as f64 / span.jobs.max(1) as f64, 1));
        }
        row.samples = span.samples;
        row
    }

    /// Adds a figure by its JSON key.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
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
}
