//! Draws the views of `howdah top`.

mod columns;
mod views;

use std::time::{Duration, Instant};

use howdah_core::logging::escaped;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect, Size},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Wrap},
};

use super::{
    super::text,
    change::Question,
    state::{Link, Overlay, Sort, Top, View},
};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const WARNING: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);
const HEADING: Style = Style::new().add_modifier(Modifier::REVERSED);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED).add_modifier(Modifier::BOLD);

impl Top {
    /// Draws the whole screen.
    pub fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Paragraph::new(vec![heading(self), tabs(self)]), head);
        match &self.view {
            View::Types => views::types(self, frame, body),
            View::Workers => views::workers(self, frame, body),
            View::Jobs { .. } => views::jobs(self, frame, body),
            View::Job { .. } => views::job(self, frame, body),
        }
        if matches!(self.link, Link::Down { .. }) {
            frame.buffer_mut().set_style(body, DIM);
        }
        frame.render_widget(Paragraph::new(foot_line(self, now)), foot);
        // A confirmation may cover the heading, so that it is readable on a small terminal.
        let above = Rect { height: frame.area().height.saturating_sub(foot.height), ..frame.area() };
        overlay(self, frame, body, above);
    }
}

fn heading(top: &Top) -> Line<'_> {
    let mut spans = vec![Span::styled("howdah top", BOLD), "  ".into(), Span::raw(escaped(&top.address))];
    let rows = &top.types.rows;
    if !rows.is_empty() {
        let (ready, leased, dead) =
            rows.iter().fold((0, 0, 0), |sum, row| (sum.0 + row.ready, sum.1 + row.leased, sum.2 + row.dead));
        let sums = format!("  {} ready  {} leased  ", columns::count(ready), columns::count(leased));
        spans.push(Span::raw(sums));
        let style = if dead > 0 { BAD } else { Style::new() };
        spans.push(Span::styled(format!("{} dead", columns::count(dead)), style));
    }
    Line::from(spans)
}

fn tabs(top: &Top) -> Line<'_> {
    let tab = |number, name, is_on| {
        let style = if is_on { HEADING } else { DIM };
        Span::styled(format!(" {number} {name} "), style)
    };
    let mut spans = vec![
        tab(1, "Types", top.view == View::Types),
        " ".into(),
        tab(2, "Workers", top.view == View::Workers),
        "  ".into(),
    ];
    match &top.view {
        View::Types if !top.filter.is_empty() || matches!(top.overlay, Overlay::Filter) => {
            spans.push(Span::styled(format!("/{}", escaped(&top.filter)), WARNING));
            if matches!(top.overlay, Overlay::Filter) {
                spans.push(Span::styled("_", WARNING));
            }
        }
        View::Types => {
            let by = Sort::ALL.iter().find(|(sort, _)| *sort == top.sort).map_or("", |(_, name)| name);
            spans.push(Span::styled(format!("by {by}"), DIM));
        }
        View::Workers => {}
        View::Jobs { task_type, .. } => spans.push(Span::styled(escaped(task_type), BOLD)),
        View::Job { id, .. } => spans.push(Span::styled(format!("job {id}"), BOLD)),
    }
    Line::from(spans)
}

/// The last line: a connection problem, the result of the last change, or the age of the figures.
fn foot_line(top: &Top, now: Instant) -> Line<'_> {
    if let Overlay::Question(question) = &top.overlay {
        return Line::styled(answers(question), BOLD);
    }
    let age = |since: Instant| text::short(now.saturating_duration_since(since).max(Duration::from_secs(1)));
    if let Link::Down { since, error, next } = &top.link {
        let wait = next.saturating_duration_since(now).as_secs();
        let stale = if top.read.is_some() { "figures are stale; " } else { "" };
        let text =
            format!("no answer from the broker for {}; {stale}next try in {wait}s: {}", age(*since), escaped(error));
        return Line::styled(text, BAD);
    }
    if let Some(text) = &top.message {
        return Line::styled(escaped(text), GOOD);
    }
    if top.is_busy {
        return Line::styled("working ...", GOOD);
    }
    let mut parts = vec!["? help  q quit".to_owned()];
    match (&top.read, &top.view) {
        (None, _) => parts.push("reading ...".into()),
        (Some(_), View::Types) => {
            parts.extend(top.types.counted.map(|counted| format!("counted {} ago", age(counted))));
            parts.extend(top.types.has_more.then(|| "only the first 1000 types by name".into()));
            parts.extend(top.types.no_flow.clone());
        }
        (Some(_), View::Workers) if top.more_workers => parts.push("only the first 1000 workers".into()),
        (Some(_), View::Jobs { .. }) if top.jobs.has_more => {
            parts.push(format!("only the first {} jobs", top.jobs.rows.len()));
        }
        (Some(_), _) => {}
    }
    parts.push(format!("every {}", text::short(top.every)));
    Line::styled(parts.join("  |  "), DIM)
}

/// Draws a note instead of rows.
fn nothing(top: &Top, frame: &mut Frame<'_>, area: Rect, note: &'static str) {
    if top.read.is_some() {
        frame.render_widget(Paragraph::new(note).style(DIM).block(Block::new()), area);
    }
}

const HELP: [&str; 16] = [
    "up, down, j, k    move; PageUp, PageDown, Home, End too",
    "1, 2, Tab         types, workers",
    "Enter             open the jobs of a type, a job, or the job",
    "                  that a worker has held longest",
    "Esc               back",
    "s                 types: sort by the next column",
    "                  jobs: show the next state",
    "/                 types: filter by a part of the name",
    "p                 pause or resume the type (asks first)",
    "r                 retry the dead jobs of the type, or the job (asks first)",
    "q, Ctrl-C         quit",
    "",
    "Rates and times cover the last 5 minutes: jobs enqueued,",
    "succeeded and failed per second; p50 and p99 of the wait time",
    "and the run time.",
    "Numbers of jobs are from the broker's last count.",
];

/// Hint for the keys that answer a question.
fn answers(question: &Question) -> &'static str {
    if question.is_unanswered { "y  yes     n, q, Esc  no     (other keys do nothing)" } else { "y  yes     n  no" }
}

/// Draws the help or a confirmation in the middle of the body. A confirmation that does not fit covers the heading too.
fn overlay(top: &Top, frame: &mut Frame<'_>, body: Rect, above: Rect) {
    match &top.overlay {
        Overlay::Nothing | Overlay::Filter => {}
        Overlay::Help => show(frame, body, " keys (any key goes back) ", HELP.map(Line::from).to_vec()),
        Overlay::Question(question) => {
            let first = question.lines.iter().take(1).map(|line| Line::styled(escaped(line), BOLD));
            let more = question.lines.iter().skip(1).map(|line| Line::from(escaped(line)));
            let end = [Line::default(), Line::styled(answers(question), BOLD)];
            let lines: Vec<_> = first.chain(more).collect();
            let whole: Vec<_> = lines.iter().cloned().chain(end).collect();
            // If the overlay has no room for the hint about keys, the hint is omitted: the last line of the screen also shows
            // it.
            match () {
                () if size(&whole, body).height <= body.height => show(frame, body, " sure? ", whole),
                () if size(&whole, above).height <= above.height => show(frame, above, " sure? ", whole),
                () => show(frame, above, " sure? ", lines),
            }
        }
    }
}

/// Returns the size of an overlay for these lines, including its frame. It is no wider than the area.
fn size(lines: &[Line<'_>], area: Rect) -> Size {
    let widest = lines.iter().map(Line::width).max().unwrap_or_default() as u16;
    let width = (widest + 4).min(area.width);
    let inner = usize::from(width.saturating_sub(2).max(1));
    // Wrapping at words may need one more line than the character count suggests.
    let rows = |line: &Line<'_>| match line.width().div_ceil(inner) {
        0 | 1 => 1,
        more => more as u16 + 1,
    };
    Size { width, height: lines.iter().map(rows).sum::<u16>() + 2 }
}

fn show(frame: &mut Frame<'_>, area: Rect, title: &'static str, lines: Vec<Line<'_>>) {
    let Size { width, height } = size(&lines, area);
    let height = height.min(area.height);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let paragraph = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(paragraph.block(Block::bordered().title(title)), place);
}
