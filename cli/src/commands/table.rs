//! Text tables. Each column is as wide as its widest cell.

use std::fmt;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Left-aligned, for text.
    Left,
    /// Right-aligned, for numbers.
    Right,
}

/// Heading of the column with store names.
const STORE: &str = "STORE";

/// Table with a heading.
#[derive(Debug)]
pub(super) struct Table<const COLUMNS: usize> {
    columns: [(&'static str, Align); COLUMNS],
    rows: Vec<[String; COLUMNS]>,
    /// Name of the store of each row. If all names are empty, because the broker serves one store, the column is omitted.
    stores: Vec<String>,
    heading: bool,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub(super) fn new(columns: [(&'static str, Align); COLUMNS]) -> Self {
        Self { columns, rows: Vec::new(), stores: Vec::new(), heading: true }
    }

    /// Adds a row. The caller must escape its cells.
    pub(super) fn row(&mut self, cells: [String; COLUMNS]) {
        self.row_of_store(cells, "");
    }

    /// Adds a row with the name of its store, which the first column shows. The caller must escape its cells.
    pub(super) fn row_of_store(&mut self, cells: [String; COLUMNS], store: &str) {
        self.rows.push(cells);
        self.stores.push(store.to_owned());
    }

    /// Omits the heading, for a table that continues an earlier one.
    pub(super) fn without_heading(mut self) -> Self {
        self.heading = false;
        self
    }
}

impl<const COLUMNS: usize> fmt::Display for Table<COLUMNS> {
    /// Writes no line break after the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = self.columns.map(|(name, _)| name.to_owned());
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]);
            cells.chain([&heading[column]]).map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        let has_stores = self.stores.iter().any(|store| !store.is_empty());
        let store_width = self.stores.iter().map(String::len).chain([STORE.len()]).max().unwrap_or_default();
        let mut stores = self.heading.then_some(STORE).into_iter().chain(self.stores.iter().map(String::as_str));
        for (number, row) in self.heading.then_some(&heading).into_iter().chain(&self.rows).enumerate() {
            let cells: [String; COLUMNS] = std::array::from_fn(|column| {
                let (cell, width) = (&row[column], widths[column]);
                match self.columns[column].1 {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                }
            });
            let end = if number == 0 { "" } else { "\n" };
            let store = stores.next().filter(|_| has_stores);
            let store = store.map(|store| format!("{store:<store_width$}  ")).unwrap_or_default();
            write!(f, "{end}{}", format!("{store}{}", cells.join("  ")).trim_end())?;
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
    fn rows_of_several_stores_begin_with_their_names() {
        let mut table = Table::new([("ID", Align::Right)]);
        table.row_of_store(["7".into()], "mail");
        table.row_of_store(["12".into()], "archive");
        assert_eq!(table.to_string(), "STORE    ID\nmail      7\narchive  12");
    }

    #[test]
    fn a_table_without_rows_is_its_heading() {
        assert_eq!(Table::new([("ID", Align::Right)]).to_string(), "ID");
    }
}
