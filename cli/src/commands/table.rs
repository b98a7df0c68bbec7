//! Text tables. Each column is as wide as its widest cell.

use std::fmt::{self, Display};

use howdah_core::logging::escaped;

/// Table with a heading and a line per row. The columns are given by title and by the function that formats a row's cell.
#[derive(Debug)]
pub(super) struct Table<'a, R> {
    rows: &'a [R],
    columns: Vec<Column>,
    has_heading: bool,
}

#[derive(Debug)]
struct Column {
    /// Title and cells, with control characters escaped.
    cells: Vec<String>,
    width: usize,
    /// Numbers are right-aligned, texts left-aligned.
    is_right: bool,
}

impl<'a, R> Table<'a, R> {
    pub(super) fn new(rows: &'a [R]) -> Self {
        Self { rows, columns: Vec::new(), has_heading: true }
    }

    /// Adds a left-aligned column, for texts.
    pub(super) fn left<T: Display>(self, title: &str, cell: impl Fn(&'a R) -> T) -> Self {
        self.column(title, false, cell)
    }

    /// Adds a right-aligned column, for numbers.
    pub(super) fn right<T: Display>(self, title: &str, cell: impl Fn(&'a R) -> T) -> Self {
        self.column(title, true, cell)
    }

    /// Adds a column with the names of stores, unless all names are empty because the broker serves one store.
    pub(super) fn store(self, name: impl Fn(&'a R) -> &'a String) -> Self {
        if self.rows.iter().all(|row| name(row).is_empty()) { self } else { self.left("STORE", name) }
    }

    /// Omits the heading unless this is the first of several tables that continue each other.
    pub(super) fn with_heading(mut self, is_first: bool) -> Self {
        self.has_heading = is_first;
        self
    }

    fn column<T: Display>(mut self, title: &str, is_right: bool, cell: impl Fn(&'a R) -> T) -> Self {
        let cells = self.rows.iter().map(|row| escaped(&cell(row).to_string()).into_owned());
        let cells: Vec<String> = std::iter::once(title.to_owned()).chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
        self.columns.push(Column { cells, width, is_right });
        self
    }
}

impl<R> Display for Table<'_, R> {
    /// Writes no line break after the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aligned = |column: &Column, line: usize| {
            let (cell, width) = (&column.cells[line], column.width);
            if column.is_right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        let first = usize::from(!self.has_heading);
        for line in first..=self.rows.len() {
            let cells: Vec<String> = self.columns.iter().map(|column| aligned(column, line)).collect();
            let end = if line == first { "" } else { "\n" };
            write!(f, "{end}{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_without_trailing_spaces() {
        let rows = [(7, "é", ""), (1234, "longer", "x")];
        let table = Table::new(&rows).right("ID", |row| row.0).left("NAME", |row| row.1).left("NOTE", |row| row.2);
        assert_eq!(table.to_string(), "  ID  NAME    NOTE\n   7  é\n1234  longer  x");
        assert_eq!(table.with_heading(false).to_string(), "   7  é\n1234  longer  x");
    }

    #[test]
    fn rows_of_several_stores_begin_with_their_names() {
        let rows = [(7, "mail".to_owned()), (12, "archive".to_owned())];
        let table = Table::new(&rows).store(|row| &row.1).right("ID", |row| row.0);
        assert_eq!(table.to_string(), "STORE    ID\nmail      7\narchive  12");
    }

    #[test]
    fn a_table_without_rows_is_its_heading() {
        assert_eq!(Table::<i32>::new(&[]).store(|_| unreachable!()).right("ID", |id| *id).to_string(), "ID");
    }

    #[test]
    fn control_characters_in_cells_are_escaped() {
        assert_eq!(Table::new(&["\u{1b}[2J"]).left("X", |text| text).to_string(), "X\n\\u{1b}[2J");
    }
}
