//! Draws the views of `howdah top`.

mod columns;
mod job;
mod jobs;
mod overlay;
mod types;
mod workers;

use std::time::{Duration, Instant};

use howdah_core::logging::escaped;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Paragraph},
};

use super::{
    super::text,
    state::{Link, Overlay, Top, View},
};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const WARNING: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);
const HEADING: Style = Style::new().add_modifier(Modifier::REVERSED);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED).add_modifier(Modifier::BOLD);

/// Draws the whole screen.
pub(super) fn all(top: &Top, frame: &mut Frame<'_>, now: Instant) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(vec![heading(top), tabs(top)]), head);
    match &top.view {
        View::Types => types::draw(top, frame, body),
        View::Workers => workers::draw(top, frame, body),
        View::Jobs { .. } => jobs::draw(top, frame, body),
        View::Job { .. } => job::draw(top, frame, body),
    }
    if matches!(top.link, Link::Down { .. }) {
        frame.buffer_mut().set_style(body, DIM);
    }
    frame.render_widget(Paragraph::new(foot_line(top, now)), foot);
    // A confirmation may cover the heading, so that it is readable on a small terminal.
    let above = Rect { height: frame.area().height.saturating_sub(foot.height), ..frame.area() };
    overlay::draw(top, frame, body, above);
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
            let by = super::state::Sort::ALL.iter().find(|(sort, _)| *sort == top.sort).map_or("", |(_, name)| name);
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
        return Line::styled(overlay::answers(question), BOLD);
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
