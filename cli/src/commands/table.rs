//! Aligned columns: each as wide as its widest cell, numbers to the right.

use std::fmt;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a heading.
#[derive(Debug)]
pub(super) struct Table<const COLUMNS: usize> {
    columns: [(&'static str, Align); COLUMNS],
    rows: Vec<[String; COLUMNS]>,
    heading: bool,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub(super) fn new(columns: [(&'static str, Align); COLUMNS]) -> Self {
        Self { columns, rows: Vec::new(), heading: true }
    }

    /// Adds a row. Its cells must be escaped already.
    pub(super) fn row(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells);
    }

    /// Leaves out the heading, for a further page.
    pub(super) fn without_heading(mut self) -> Self {
        self.heading = false;
        self
    }
}

impl<const COLUMNS: usize> fmt::Display for Table<COLUMNS> {
    /// There is no line break after the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = self.columns.map(|(name, _)| name.to_owned());
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]);
            cells.chain([&heading[column]]).map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        for (number, row) in self.heading.then_some(&heading).into_iter().chain(&self.rows).enumerate() {
            let cells: [String; COLUMNS] = std::array::from_fn(|column| {
                let (cell, width) = (&row[column], widths[column]);
                match self.columns[column].1 {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                }
            });
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_have_no_tail() {
        let mut table = Table::new([("ID", Align::Right), ("NAME", Align::Left), ("NOTE", Align::Left)]);
        table.row(["7".into(), "é".into(), String::new()]);
        table.row(["1234".into(), "longer".into(), "x".into()]);
        assert_eq!(table.to_string(), "  ID  NAME    NOTE\n   7  é\n1234  longer  x");
    }

    #[test]
    fn a_table_without_rows_is_its_heading() {
        assert_eq!(Table::new([("ID", Align::Right)]).to_string(), "ID");
    }
}
