//! Draws overlays: the help and confirmations.

use howdah_core::logging::escaped;
use ratatui::{
    Frame,
    layout::{Rect, Size},
    text::Line,
    widgets::{Block, Clear, Paragraph, Wrap},
};

use super::{
    super::{
        change::Question,
        state::{Overlay, Top},
    },
    BOLD,
};

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
pub(super) fn answers(question: &Question) -> &'static str {
    if question.is_unanswered { "y  yes     n, q, Esc  no     (other keys do nothing)" } else { "y  yes     n  no" }
}

/// Draws the help or a confirmation in the middle of the body. A confirmation that does not fit covers the heading too.
pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, body: Rect, above: Rect) {
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
