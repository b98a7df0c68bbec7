//! The output: bars during the run, a table or lines of JSON, a page with plots.

mod plot; // SVG
mod progress; // bars
mod page; // the page with plots
mod row; // one measurement
mod table; // aligned columns

pub(crate) use self::{
    page::page,
    progress::Bar,
    row::{Row, megabytes, rounded},
    table::{detail, table},
};
