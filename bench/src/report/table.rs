//! The table at the end of a run.

use super::row::Row;

const HEADING: [&str; 10] = [
    "WORKLOAD",
    "CASE",
    "JOBS/S",
    "OF YARDSTICK",
    "P50 MS",
    "P90 MS",
    "P99 MS",
    "P99.9 MS",
    "RSS MB",
    "LOST/DUP/UNEXP",
];
/// Number of text columns; the other columns are numbers.
const TEXT: usize = 2;

/// Renders all rows in aligned columns.
pub(crate) fn table(rows: &[Row]) -> String {
    let lines: Vec<[String; 10]> = std::iter::once(HEADING.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
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

fn cells(row: &Row) -> [String; 10] {
    let ms = |percentile| row.percentile_ms(percentile).map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
    let part = row.of_yardstick().map_or_else(|| "-".to_owned(), |part| format!("{part:.3}"));
    let resident = row.facts.get("rss_max_mb").map_or_else(|| "-".to_owned(), ToString::to_string);
    let faults = format!("{}/{}/{}", row.faults.lost, row.faults.duplicated, row.faults.unexpected);
    [
        row.workload.to_owned(),
        row.case.clone(),
        thousands(row.jobs_per_s),
        part,
        ms(50.0),
        ms(90.0),
        ms(99.0),
        ms(99.9),
        resident,
        faults,
    ]
}

/// Renders on one line the figures of a row that have no column in the table.
pub(crate) fn detail(row: &Row) -> String {
    let facts = row.facts.iter().map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name} {text}"),
        None => format!("{name} {value}"),
    });
    format!("{}: {}", row.name(), facts.collect::<Vec<_>>().join(", "))
}

/// Formats `1234567` as `1,234,567`.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (environment, digit) in digits.chars().enumerate() {
        if environment > 0 && (digits.len() - environment) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_groups_of_three() {
        assert_eq!([1.4, 999.0, 1_000.0, 1_234_567.0].map(thousands), ["1", "999", "1,000", "1,234,567"]);
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
