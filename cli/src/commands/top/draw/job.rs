//! Draws the view of one job: why the job does not run, and the details that `howdah job` shows.

use ratatui::{Frame, layout::Rect, text::Line, widgets::Paragraph};

use super::{super::state::Top, BOLD};

/// Draws the lines of the job view, beginning at the scroll position.
pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    top.height.set(area.height.into());
    let Some(lines) = &top.job else {
        super::nothing(top, frame, area, "there is no such job, or its history has been dropped");
        return;
    };
    // The reader has already escaped the control characters of these lines.
    let shown = lines.iter().enumerate().skip(top.scroll).flat_map(|(number, line)| {
        let style = if number == 0 { BOLD } else { super::Style::new() };
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
