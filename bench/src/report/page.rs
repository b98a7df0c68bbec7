//! The report: a self-contained HTML page for light and dark mode.

use std::fmt::Write as _;

use super::{plot, row::Row};
use crate::error::Result;

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
        for figure in
            [plot::throughput(&cases)?, plot::percentiles(&cases)?, plot::memory(&cases)?].into_iter().flatten()
        {
            let _ = writeln!(page, "<figure><figcaption>{}</figcaption>\n{}</figure>", figure.title, figure.svg);
        }
        page.push_str("</div>\n");
    }
    let _ = writeln!(page, "<h2>Everything</h2>\n<pre>{}</pre>\n</html>", escaped(&lines(rows)));
    Ok(page)
}

/// Renders a legend with the colours of the cases.
fn legend(cases: &[&Row]) -> String {
    let entries = cases.iter().enumerate().map(|(number, row)| {
        format!("<b style=\"color: {}\">&#9473;</b> {}", plot::css_colour(number), escaped(&row.name()))
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

fn lines(rows: &[Row]) -> String {
    rows.iter().map(|row| row.json().to_string()).collect::<Vec<_>>().join("\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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
}
