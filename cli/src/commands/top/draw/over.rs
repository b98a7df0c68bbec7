//! What lies over the picture: help, questions.

use howdah_server::logging::escaped;
use ratatui::{
    Frame,
    layout::{Rect, Size},
    text::Line,
    widgets::{Block, Clear, Paragraph, Wrap},
};

use super::{
    super::{
        change::Question,
        state::{Over, Top},
    },
    BOLD,
};

const HELP: [&str; 16] = [
    "up, down, j, k    move; PageUp, PageDown, Home, End too",
    "1, 2, Tab         types, workers",
    "Enter             the jobs of a type; a job; of a worker, the job",
    "                  that it has held longest",
    "Esc               back",
    "s                 types: sort by the next figure",
    "                  jobs: show those in the next state",
    "/                 types: only those with this in their name",
    "p                 pause or resume the type (asks)",
    "r                 retry the dead jobs of the type, or the job (asks)",
    "q, Ctrl-C         quit",
    "",
    "Rates and times are those of the last 5 minutes: jobs that came,",
    "succeeded, failed, each second; how long half of them, and 99 %",
    "of them, waited and ran at most.",
    "Numbers of jobs are those of the broker's last count.",
];

/// The keys that answer a question.
pub(super) fn answers(question: &Question) -> &'static str {
    if question.is_unanswered { "y  yes     n, q, Esc  no     (other keys do nothing)" } else { "y  yes     n  no" }
}

/// Help or a question, in the middle of the body; over the head as well, if it does not fit into the body.
pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, body: Rect, above: Rect) {
    match &top.over {
        Over::Nothing | Over::Filter => {}
        Over::Help => show(frame, body, " keys (any key goes back) ", HELP.map(Line::from).to_vec()),
        Over::Question(question) => {
            let first = question.lines.iter().take(1).map(|line| Line::styled(escaped(line), BOLD));
            let more = question.lines.iter().skip(1).map(|line| Line::from(escaped(line)));
            let end = [Line::default(), Line::styled(answers(question), BOLD)];
            let lines: Vec<_> = first.chain(more).collect();
            let whole: Vec<_> = lines.iter().cloned().chain(end).collect();
            // Without room for all of it: the last line of the picture has the answers too.
            match () {
                () if size(&whole, body).height <= body.height => show(frame, body, " sure? ", whole),
                () if size(&whole, above).height <= above.height => show(frame, above, " sure? ", whole),
                () => show(frame, above, " sure? ", lines),
            }
        }
    }
}

/// The size that the lines need, with their frame; no wider than the area.
fn size(lines: &[Line<'_>], area: Rect) -> Size {
    let widest = lines.iter().map(Line::width).max().unwrap_or_default() as u16;
    let width = (widest + 4).min(area.width);
    let inner = usize::from(width.saturating_sub(2).max(1));
    // Words may need a line more than characters do.
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
