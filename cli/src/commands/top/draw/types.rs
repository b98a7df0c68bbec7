//! Draws the view of task types.

use howdah_core::logging::escaped;
use ratatui::{Frame, layout::Rect, style::Style};

use super::{
    super::{
        figures::{Flow, TypeRow},
        state::Top,
    },
    BAD, WARNING, columns,
    columns::Column,
};

const COLUMNS: [Column<TypeRow>; 13] = [
    number("READY", 8, 0, |row| columns::count(row.ready)),
    number("LEASED", 8, 1, |row| columns::count(row.leased)),
    Column {
        style: |row| if row.dead > 0 { BAD } else { Style::new() },
        ..number("DEAD", 8, 2, |row| columns::count(row.dead))
    },
    number("SCHEDULED", 9, 8, |row| columns::count(row.scheduled)),
    number("WAITING", 8, 7, |row| columns::count(row.waiting)),
    number("OLDEST", 7, 5, |row| columns::time(row.oldest)),
    number("ENQ/s", 6, 4, |row| columns::rate(flow(row, |flow| flow.enqueued))),
    number("DONE/s", 6, 3, |row| columns::rate(flow(row, |flow| flow.succeeded))),
    number("FAIL/s", 6, 6, |row| columns::rate(flow(row, |flow| flow.failed))),
    number("WAIT p50", 8, 11, |row| columns::time(row.flow.and_then(|flow| flow.wait.p50))),
    number("WAIT p99", 8, 9, |row| columns::time(row.flow.and_then(|flow| flow.wait.p99))),
    number("RUN p50", 8, 12, |row| columns::time(row.flow.and_then(|flow| flow.run.p50))),
    number("RUN p99", 8, 10, |row| columns::time(row.flow.and_then(|flow| flow.run.p99))),
];

pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let rows = top.type_rows();
    if rows.is_empty() {
        let note = if top.filter.is_empty() { "no task types yet" } else { "no such task types" };
        super::nothing(top, frame, area, note);
        return;
    }
    let chosen = top.type_cursor.among(&top.keys());
    top.height.set(columns::draw(frame, area, ("TYPE", name), &COLUMNS, &rows, chosen));
}

/// Name of a type. The mark `[paused]` precedes the name, because the column cuts off a long name.
fn name(row: &TypeRow) -> (String, Style) {
    let name = escaped(&row.name);
    if row.is_paused { (format!("[paused] {name}"), WARNING) } else { (name.into_owned(), Style::new()) }
}

fn flow(row: &TypeRow, figure: fn(&Flow) -> f64) -> Option<f64> {
    row.flow.as_ref().map(figure)
}

const fn number(title: &'static str, width: u16, rank: u8, cell: fn(&TypeRow) -> String) -> Column<TypeRow> {
    Column { title, width, rank, is_number: true, cell, style: |_| Style::new() }
}
