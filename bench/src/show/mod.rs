//! What people and programs see: bars on the way, a table or lines of JSON, a page with plots.

mod plot; // SVG
mod progress; // bars
mod report; // the page
mod row; // one measurement
mod table; // aligned columns

pub(crate) use self::{
    progress::Bar,
    report::report,
    row::{Row, megabytes, rounded},
    table::{detail, table},
};
