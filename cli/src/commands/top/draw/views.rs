//! Draws the views: task types, workers, the jobs of a type, and one job.

use howdah_client::proto::{Job, JobState as ProtoState, Stats, Worker, WorkerState};
use howdah_core::{job::JobState, logging::escaped};
use jiff::Timestamp;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Paragraph, Sparkline},
};

use super::{
    super::{
        super::{
            jobs::{attempts, next_or_end, remark},
            text,
            workers::{labels, state_name, windows},
        },
        figures::TypeRow,
        state::{Top, View},
    },
    BAD, BOLD, DIM, GOOD, WARNING, columns,
    columns::Column,
};

/// Minimum height of the jobs view, in lines, at which it shows a plot. A lower view needs the space for rows.
const WITH_PLOT: u16 = 16;

const TYPES: [Column<TypeRow>; 13] = [
    Column::number("READY", 8, 0, |row| columns::count(row.ready)),
    Column::number("LEASED", 8, 1, |row| columns::count(row.leased)),
    Column::number("DEAD", 8, 2, |row: &TypeRow| columns::count(row.dead))
        .styled(|row| if row.dead > 0 { BAD } else { Style::new() }),
    Column::number("SCHEDULED", 9, 8, |row| columns::count(row.scheduled)),
    Column::number("WAITING", 8, 7, |row| columns::count(row.waiting)),
    Column::number("OLDEST", 7, 5, |row| columns::time(row.oldest)),
    Column::number("ENQ/s", 6, 4, |row| rate(row, |stats| stats.enqueued_count)),
    Column::number("DONE/s", 6, 3, |row| rate(row, |stats| stats.succeeded_count)),
    Column::number("FAIL/s", 6, 6, |row| rate(row, |stats| stats.failed_count)),
    Column::number("WAIT p50", 8, 11, |row| percentile(row, |stats| stats.wait?.p50)),
    Column::number("WAIT p99", 8, 9, |row| percentile(row, |stats| stats.wait?.p99)),
    Column::number("RUN p50", 8, 12, |row| percentile(row, |stats| stats.run?.p50)),
    Column::number("RUN p99", 8, 10, |row| percentile(row, |stats| stats.run?.p99)),
];

const WORKERS: [Column<Worker>; 8] = [
    Column::words("STATE", 12, 0, state_name).styled(worker_style),
    Column::number("HELD", 6, 1, |worker| worker.held_count.to_string()),
    Column::number("DONE/min", 8, 2, |worker| worker.settled_count.to_string()),
    Column::number("QUIET", 7, 3, |worker| columns::time(text::duration(worker.quiet_for.as_ref()))),
    Column::number("CONNECTED", 9, 6, |worker| columns::time(text::duration(worker.connected_for.as_ref()))),
    Column::words("JOBS", 30, 4, windows),
    Column::words("BROKER", 16, 7, |worker| escaped(&worker.broker).into_owned()),
    Column::words("PEER", 21, 5, |worker| escaped(&worker.peer).into_owned()),
];

const JOBS: [Column<Job>; 6] = [
    Column::words("STATE", 10, 0, |job: &Job| text::state(job.state).into())
        .styled(|job| if job.state() == ProtoState::Dead { BAD } else { Style::new() }),
    Column::number("PRIO", 6, 4, |job| job.priority.to_string()),
    Column::number("ATTEMPTS", 8, 2, attempts),
    Column::number("CREATED", 11, 3, |job| text::ago(job.create_time.as_ref(), Timestamp::now())),
    Column::number("NEXT OR END", 11, 5, |job| text::ago(next_or_end(job), Timestamp::now())),
    Column::words("KEY, LAST ERROR", 28, 1, remark),
];

/// Draws the view of task types.
pub(super) fn types(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let rows = top.type_rows();
    if rows.is_empty() {
        let note = if top.filter.is_empty() { "no task types yet" } else { "no such task types" };
        super::nothing(top, frame, area, note);
        return;
    }
    let chosen = top.type_cursor.among(&top.keys());
    top.height.set(columns::draw(frame, area, ("TYPE", type_name), &TYPES, &rows, chosen));
}

/// Name of a type. The mark `[paused]` precedes the name, because the column cuts off a long name.
fn type_name(row: &TypeRow) -> (String, Style) {
    let name = escaped(&row.name);
    if row.is_paused { (format!("[paused] {name}"), WARNING) } else { (name.into_owned(), Style::new()) }
}

fn rate(row: &TypeRow, count: fn(&Stats) -> i64) -> String {
    columns::rate(row.flow.as_ref().map(|flow| flow.rate(count(&flow.stats))))
}

fn percentile(row: &TypeRow, time: fn(&Stats) -> Option<prost_types::Duration>) -> String {
    columns::time(row.flow.as_ref().and_then(|flow| text::duration(time(&flow.stats).as_ref())))
}

/// Draws the view of the workers of all brokers.
pub(super) fn workers(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let rows: Vec<&Worker> = top.workers.iter().collect();
    if rows.is_empty() {
        super::nothing(top, frame, area, "no workers are connected");
        return;
    }
    let chosen = top.worker_cursor.among(&top.keys());
    top.height.set(columns::draw(frame, area, ("WORKER", worker_name), &WORKERS, &rows, chosen));
}

/// Id and labels of a worker.
fn worker_name(worker: &Worker) -> (String, Style) {
    let words = std::iter::once(worker.worker_id.clone()).chain(labels(worker));
    (escaped(&words.collect::<Vec<_>>().join(" ")).into_owned(), Style::new())
}

fn worker_style(worker: &Worker) -> Style {
    match worker.state() {
        WorkerState::Stuck => BAD,
        WorkerState::Draining | WorkerState::Disconnected => WARNING,
        WorkerState::Idle => DIM,
        WorkerState::Working | WorkerState::Unspecified => Style::new(),
    }
}

/// Draws the view of the jobs of one task type, below the counts of the type.
pub(super) fn jobs(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let plot = if area.height >= WITH_PLOT { 4 } else { 0 };
    let [head, plot, list] =
        Layout::vertical([Constraint::Length(2), Constraint::Length(plot), Constraint::Min(0)]).areas(area);
    if top.read.is_some() {
        frame.render_widget(Paragraph::new(facts(top)), head);
        draw_plot(top, frame, plot);
    }
    let rows: Vec<&Job> = top.jobs.rows.iter().collect();
    if rows.is_empty() {
        super::nothing(top, frame, list, "no jobs in this state: press s for the next state");
        return;
    }
    let chosen = top.job_cursor.among(&top.keys());
    top.height.set(columns::draw(frame, list, ("ID", |job: &Job| (job.id.to_string(), BOLD)), &JOBS, &rows, chosen));
}

fn facts(top: &Top) -> Vec<Line<'_>> {
    let row = &top.jobs.row;
    let state = match &top.view {
        View::Jobs { state: ProtoState::Unspecified, .. } => "in all states",
        View::Jobs { state, .. } => JobState::from_proto(*state as i32).map_or("", JobState::name),
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
    let words = format!("jobs succeeded per minute, last 60 minutes, peak {most}");
    frame.render_widget(Paragraph::new(words).style(DIM), title);
    // If the plot has no room for all minutes, it shows the newest ones.
    let shown = top.jobs.minutes.len().saturating_sub(plot.width.into());
    frame.render_widget(Sparkline::default().data(&top.jobs.minutes[shown..]).style(GOOD), plot);
}

/// Draws the lines of the job view, beginning at the scroll position.
pub(super) fn job(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    top.height.set(area.height.into());
    let Some(lines) = &top.job else {
        super::nothing(top, frame, area, "there is no such job, or its history has been dropped");
        return;
    };
    // The reader has already escaped the control characters of these lines.
    let shown = lines.iter().enumerate().skip(top.scroll).flat_map(|(number, line)| {
        let style = if number == 0 { BOLD } else { Style::new() };
        wrapped(line, area.width.into()).into_iter().map(move |part| Line::styled(part, style))
    });
    frame.render_widget(Paragraph::new(shown.take(area.height.into()).collect::<Vec<_>>()), area);
}

/// Splits a line into pieces of the given width. The widget's own wrapping would process a long payload completely at each
/// draw.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut parts = vec![String::new()];
    for (number, character) in line.replace('\t', "    ").chars().enumerate() {
        if number > 0 && number % width.max(1) == 0 {
            parts.push(String::new());
        }
        parts.last_mut().into_iter().for_each(|part| part.push(character));
    }
    parts
}
