//! Output: progress bars during the run, then a table, lines of JSON, or a page with plots.

mod plot; // plots as SVG
mod progress; // progress bars
mod page; // the page with plots
mod row; // one measurement
mod table; // the table at the end

pub(crate) use self::{
    page::page,
    progress::Bar,
    row::{Row, rounded},
    table::{detail, table},
};
