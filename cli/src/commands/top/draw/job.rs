//! A job: why it does not run, and all that `howdah job` tells of it.

use ratatui::{Frame, layout::Rect, text::Line, widgets::Paragraph};

use super::{super::state::Top, BOLD};

/// Its lines, from the one to which it was scrolled.
pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    top.height.set(area.height.into());
    let Some(lines) = &top.job else {
        super::nothing(top, frame, area, "there is no such job, or its history has been dropped");
        return;
    };
    // Escaped already, line by line.
    let shown = lines.iter().enumerate().skip(top.scroll).flat_map(|(number, line)| {
        let style = if number == 0 { BOLD } else { super::Style::new() };
        wrapped(line, area.width.into()).into_iter().map(move |part| Line::styled(part, style))
    });
    frame.render_widget(Paragraph::new(shown.take(area.height.into()).collect::<Vec<_>>()), area);
}

/// Cut into pieces that fit: a widget that wraps would read all of a long payload.
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
