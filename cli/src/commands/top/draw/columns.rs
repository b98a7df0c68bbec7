//! Draws a table that drops its least important columns on narrow terminals.

use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Constraint, Rect},
    style::Style,
    text::Text,
    widgets::{Cell, Row, Table, TableState},
};

use super::{super::super::text, CHOSEN, HEADING};

/// Minimum width of the first column.
const FIRST: u16 = 12;
const GAP: u16 = 1;

/// A column other than the first.
pub(super) struct Column<R> {
    title: &'static str,
    width: u16,
    /// Rank of the column. On a narrow terminal, columns with higher ranks are dropped first.
    rank: u8,
    is_number: bool,
    cell: fn(&R) -> String,
    style: fn(&R) -> Style,
}

impl<R> Column<R> {
    pub(super) const fn words(title: &'static str, width: u16, rank: u8, cell: fn(&R) -> String) -> Self {
        Self { title, width, rank, is_number: false, cell, style: |_| Style::new() }
    }

    pub(super) const fn number(title: &'static str, width: u16, rank: u8, cell: fn(&R) -> String) -> Self {
        Self { is_number: true, ..Self::words(title, width, rank, cell) }
    }

    pub(super) const fn styled(self, style: fn(&R) -> Style) -> Self {
        Self { style, ..self }
    }
}

/// Title and cell of the first column.
type First<R> = (&'static str, fn(&R) -> (String, Style));

/// Returns the columns that fit into `width` next to the first column.
fn fitting<R>(columns: &[Column<R>], width: u16) -> Vec<&Column<R>> {
    let mut kept: Vec<&Column<R>> = columns.iter().collect();
    while FIRST + kept.iter().map(|column| column.width + GAP).sum::<u16>() > width {
        let Some(worst) = kept.iter().enumerate().max_by_key(|(_, column)| column.rank).map(|(at, _)| at) else {
            break;
        };
        kept.remove(worst);
    }
    kept
}

/// Draws rows under a heading, scrolled so that the selected row is visible. Returns the number of rows that fit.
pub(super) fn draw<R>(
    frame: &mut Frame<'_>,
    area: Rect,
    first: First<R>,
    columns: &[Column<R>],
    rows: &[&R],
    chosen: Option<usize>,
) -> usize {
    let kept = fitting(columns, area.width);
    let aligned = |text: String, column: &Column<R>| {
        let text = Text::from(text);
        Cell::from(if column.is_number { text.right_aligned() } else { text })
    };
    let heading = Row::new(
        std::iter::once(Cell::from(first.0)).chain(kept.iter().map(|column| aligned(column.title.to_owned(), column))),
    );
    let height = usize::from(area.height.saturating_sub(1));
    // Rows outside the visible area are not rendered.
    let skipped = chosen.map_or(0, |chosen| chosen.saturating_sub(height.saturating_sub(1)));
    let shown = rows.iter().skip(skipped).take(height).map(|row| {
        let (name, style) = (first.1)(row);
        let others = kept.iter().map(|column| aligned((column.cell)(row), column).style((column.style)(row)));
        Row::new(std::iter::once(Cell::from(name).style(style)).chain(others))
    });
    let widths = std::iter::once(Constraint::Fill(1)).chain(kept.iter().map(|column| Constraint::Length(column.width)));
    let table =
        Table::new(shown, widths).header(heading.style(HEADING)).column_spacing(GAP).row_highlight_style(CHOSEN);
    let mut state = TableState::new().with_selected(chosen.map(|chosen| chosen - skipped));
    frame.render_stateful_widget(table, area, &mut state);
    height
}

/// Formats a count as `12345`, or from ten million as `12.3M`.
pub(super) fn count(number: i64) -> String {
    if number < 10_000_000 { number.to_string() } else { format!("{:.1}M", number as f64 / 1e6) }
}

/// Formats jobs per second as `0.3`, `12` or `12.3k`.
pub(super) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".into(),
        Some(rate) if rate < 0.05 => "0".into(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate < 9_999.5 => format!("{rate:.0}"),
        Some(rate) => format!("{:.1}k", rate / 1e3),
    }
}

/// Formats a duration; `None` as `-`.
pub(super) fn time(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".into(), text::short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        assert_eq!([0, 9_999_999, 12_345_678].map(count), ["0", "9999999", "12.3M"]);
        let rates = [0.0, 0.04, 0.06, 9.94, 9.96, 12.4, 9_999.4, 12_345.0];
        assert_eq!(rates.map(|r| rate(Some(r))), ["0", "0", "0.1", "9.9", "10", "12", "9999", "12.3k"]);
        assert_eq!((rate(None), time(None)), ("-".into(), "-".into()));
    }

    #[test]
    fn the_least_important_columns_are_left_out_first() {
        let column = |title, width, rank| Column::<()>::number(title, width, rank, |()| String::new());
        let columns = [column("A", 5, 1), column("B", 5, 3), column("C", 5, 2)];
        let titles = |width| fitting(&columns, width).iter().map(|column| column.title).collect::<String>();
        assert_eq!([30, 29, 24, 23, 18, 17, 0].map(titles), ["ABC", "AC", "AC", "A", "A", "", ""]);
    }
}
