//! Output: progress bars during the run, then a table, lines of JSON, or a page with plots.

mod progress; // progress bars
mod page; // the page with plots
mod row; // one measurement, and the table at the end

pub(crate) use self::{
    page::page,
    progress::Bar,
    row::{Row, detail, rounded, table},
};
