//! Draws the view of the jobs of one task type, below the counts of the type.

use howdah_client::proto::JobState;
use howdah_core::{job, logging::escaped};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Paragraph, Sparkline},
};

use super::{
    super::{
        figures::JobRow,
        state::{Top, View},
    },
    BAD, BOLD, DIM, GOOD, WARNING, columns,
    columns::Column,
};

/// Minimum height of the jobs view, in lines, at which it shows a plot. A lower view needs the space for rows.
const WITH_PLOT: u16 = 16;

const COLUMNS: [Column<JobRow>; 6] = [
    Column {
        style: |row| if row.state == "dead" { BAD } else { Style::new() },
        ..words("STATE", 10, 0, |row| row.state.into())
    },
    Column { is_number: true, ..words("PRIO", 6, 4, |row| row.priority.to_string()) },
    Column { is_number: true, ..words("ATTEMPTS", 8, 2, |row| row.attempts.clone()) },
    Column { is_number: true, ..words("CREATED", 11, 3, |row| row.created.clone()) },
    Column { is_number: true, ..words("NEXT OR END", 11, 5, |row| row.next.clone()) },
    words("KEY, LAST ERROR", 28, 1, |row| row.remark.clone()),
];

pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let plot = if area.height >= WITH_PLOT { 4 } else { 0 };
    let [head, plot, list] =
        Layout::vertical([Constraint::Length(2), Constraint::Length(plot), Constraint::Min(0)]).areas(area);
    if top.read.is_some() {
        frame.render_widget(Paragraph::new(facts(top)), head);
        draw_plot(top, frame, plot);
    }
    let rows: Vec<&JobRow> = top.jobs.rows.iter().collect();
    if rows.is_empty() {
        super::nothing(top, frame, list, "no jobs in this state: press s for the next state");
        return;
    }
    let chosen = top.job_cursor.among(&top.keys());
    top.height.set(columns::draw(
        frame,
        list,
        ("ID", |row: &JobRow| (row.id.to_string(), BOLD)),
        &COLUMNS,
        &rows,
        chosen,
    ));
}

fn facts(top: &Top) -> Vec<Line<'_>> {
    let row = &top.jobs.row;
    let state = match &top.view {
        View::Jobs { state: JobState::Unspecified, .. } => "in all states",
        View::Jobs { state, .. } => job::JobState::from_proto(*state as i32).map_or("", job::JobState::name),
        _ => "",
    };
    let mut first = vec![Span::styled(format!("jobs {state}"), GOOD), Span::raw("  ")];
    if row.is_paused {
        first.push(Span::styled("[paused]  ", WARNING));
    }
    first.push(Span::raw(format!(
        "{} ready, {} leased, {} scheduled, {} waiting, {} dead",
        columns::count(row.ready),
        columns::count(row.leased),
        columns::count(row.scheduled),
        columns::count(row.waiting),
        columns::count(row.dead),
    )));
    vec![Line::from(first), Line::styled(escaped(&top.jobs.settings), DIM)]
}

fn draw_plot(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let [title, plot] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let most = top.jobs.minutes.iter().max().copied().unwrap_or_default();
    let words = format!("succeeded in each of the last 60 minutes, at most {most}");
    frame.render_widget(Paragraph::new(words).style(DIM), title);
    // If the plot has no room for all minutes, it shows the newest ones.
    let shown = top.jobs.minutes.len().saturating_sub(plot.width.into());
    frame.render_widget(Sparkline::default().data(&top.jobs.minutes[shown..]).style(GOOD), plot);
}

const fn words(title: &'static str, width: u16, rank: u8, cell: fn(&JobRow) -> String) -> Column<JobRow> {
    Column { title, width, rank, is_number: false, cell, style: |_| Style::new() }
}
