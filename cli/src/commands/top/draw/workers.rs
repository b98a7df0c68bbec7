//! Draws the view of the workers of all brokers.

use howdah_client::proto::{Worker, WorkerState};
use howdah_core::logging::escaped;
use ratatui::{Frame, layout::Rect, style::Style};

use super::{
    super::{
        super::{text, workers},
        state::Top,
    },
    BAD, DIM, WARNING, columns,
    columns::Column,
};

const COLUMNS: [Column<Worker>; 8] = [
    Column { style, ..words("STATE", 12, 0, workers::state_name) },
    number("HELD", 6, 1, |worker| worker.held_count.to_string()),
    number("DONE/min", 8, 2, |worker| worker.settled_count.to_string()),
    number("QUIET", 7, 3, |worker| columns::time(text::duration(worker.quiet_for.as_ref()))),
    number("CONNECTED", 9, 6, |worker| columns::time(text::duration(worker.connected_for.as_ref()))),
    words("JOBS", 30, 4, windows),
    words("BROKER", 16, 7, |worker| escaped(&worker.broker).into_owned()),
    words("PEER", 21, 5, |worker| escaped(&worker.peer).into_owned()),
];

pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let rows: Vec<&Worker> = top.workers.iter().collect();
    if rows.is_empty() {
        super::nothing(top, frame, area, "no workers are connected");
        return;
    }
    let chosen = top.worker_cursor.among(&top.keys());
    top.height.set(columns::draw(frame, area, ("WORKER", name), &COLUMNS, &rows, chosen));
}

/// Id and labels of a worker.
fn name(worker: &Worker) -> (String, Style) {
    let mut labels: Vec<_> = worker.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.sort_unstable();
    let words = std::iter::once(worker.worker_id.clone()).chain(labels);
    (escaped(&words.collect::<Vec<_>>().join(" ")).into_owned(), Style::new())
}

/// Formats the held jobs and the window of each task type, such as `email.send 3/10`.
fn windows(worker: &Worker) -> String {
    let windows = worker.windows.iter();
    let windows =
        windows.map(|window| format!("{} {}/{}", escaped(&window.task_type), window.held_count, window.window_jobs));
    windows.collect::<Vec<_>>().join(", ")
}

fn style(worker: &Worker) -> Style {
    match worker.state() {
        WorkerState::Stuck => BAD,
        WorkerState::Draining | WorkerState::Disconnected => WARNING,
        WorkerState::Idle => DIM,
        WorkerState::Working | WorkerState::Unspecified => Style::new(),
    }
}

const fn number(title: &'static str, width: u16, rank: u8, cell: fn(&Worker) -> String) -> Column<Worker> {
    Column { title, width, rank, is_number: true, cell, style: |_| Style::new() }
}

const fn words(title: &'static str, width: u16, rank: u8, cell: fn(&Worker) -> String) -> Column<Worker> {
    Column { is_number: false, ..number(title, width, rank, cell) }
}
