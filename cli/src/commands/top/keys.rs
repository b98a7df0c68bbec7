//! Effects of key presses in `howdah top`.

use howdah_client::proto::JobState;
use howdah_core::{job, logging::escaped};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    super::text,
    change::{Change, Question},
    figures::Jobs,
    state::{Cursor, Effect, Overlay, Sort, Top, View},
};

/// Maximum length of the filter, equal to the maximum length of a type name.
const FILTER: usize = 200;

impl Top {
    /// Handles a key press or a resize of the terminal.
    pub fn event(&mut self, event: &Event) -> Effect {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key),
            _ => Effect::Nothing,
        }
    }

    fn key(&mut self, key: KeyEvent) -> Effect {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Effect::Quit;
        }
        match std::mem::replace(&mut self.overlay, Overlay::Nothing) {
            Overlay::Nothing => self.plain(key.code),
            Overlay::Help => Effect::Nothing,
            Overlay::Question(question) => self.answered(question, key.code),
            Overlay::Filter => self.typed(key.code),
        }
    }

    fn plain(&mut self, code: KeyCode) -> Effect {
        self.message = None;
        match code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('?' | 'h') => self.overlay = Overlay::Help,
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.step(self.height.get().max(1) as isize),
            KeyCode::PageUp => self.step(-(self.height.get().max(1) as isize)),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            KeyCode::Char('1') => return self.go(View::Types),
            KeyCode::Char('2') => return self.go(View::Workers),
            KeyCode::Tab | KeyCode::BackTab => {
                let other = if self.view == View::Types { View::Workers } else { View::Types };
                return self.go(other);
            }
            KeyCode::Enter => return self.open(),
            KeyCode::Esc | KeyCode::Backspace => return self.back(),
            KeyCode::Char('/') if self.view == View::Types => self.overlay = Overlay::Filter,
            KeyCode::Char('s') => return self.next_order(),
            KeyCode::Char('p') => self.ask_pause(),
            KeyCode::Char('r') => return self.ask_retry(),
            _ => {}
        }
        Effect::Nothing
    }

    fn step(&mut self, rows: isize) {
        if matches!(self.view, View::Job { .. }) {
            let last = self.job.as_ref().map_or(0, Vec::len).saturating_sub(1);
            self.scroll = self.scroll.saturating_add_signed(rows).min(last);
            return;
        }
        let keys = self.keys();
        if let Some(cursor) = self.cursor() {
            cursor.move_by(rows, &keys);
        }
    }

    fn go(&mut self, view: View) -> Effect {
        if view == self.view {
            return Effect::Nothing;
        }
        // Drops the figures of the previously shown type or job, which would be wrong in the new view. The lists of types and
        // workers stay until the next read.
        match &view {
            View::Jobs { .. } => (self.jobs, self.job_cursor) = (Jobs::default(), Cursor::default()),
            View::Job { .. } => (self.job, self.scroll) = (None, 0),
            View::Types | View::Workers => {}
        }
        (self.view, self.read) = (view, None);
        Effect::Read
    }

    fn open(&mut self) -> Effect {
        let view = match &self.view {
            View::Types => {
                self.chosen_type().map(|row| View::Jobs { task_type: row.name.clone(), state: JobState::Unspecified })
            }
            View::Jobs { .. } => self.chosen_job().map(|id| View::Job { id, from: Box::new(self.view.clone()) }),
            View::Workers => self.oldest_of_worker().map(|id| View::Job { id, from: Box::new(View::Workers) }),
            View::Job { .. } => None,
        };
        view.map_or(Effect::Nothing, |view| self.go(view))
    }

    /// The job that the selected worker has held longest.
    fn oldest_of_worker(&self) -> Option<i64> {
        let id = self.worker_cursor.chosen(&self.keys())?;
        let worker = self.workers.iter().find(|worker| worker.worker_id == id)?;
        worker.windows.iter().find_map(|window| window.oldest_job_ids.first().copied())
    }

    fn back(&mut self) -> Effect {
        match self.view.clone() {
            View::Types => {
                self.filter.clear();
                Effect::Nothing
            }
            View::Workers | View::Jobs { .. } => self.go(View::Types),
            View::Job { from, .. } => self.go(*from),
        }
    }

    /// Switches to the next sort order of task types, or to the next state in the list of jobs.
    fn next_order(&mut self) -> Effect {
        match &mut self.view {
            View::Types => {
                let at = Sort::ALL.iter().position(|(sort, _)| *sort == self.sort).unwrap_or_default();
                self.sort = Sort::ALL[(at + 1) % Sort::ALL.len()].0;
                Effect::Nothing
            }
            View::Jobs { state, .. } => {
                let all = job::JobState::ALL.map(job::JobState::to_proto);
                let next = all.iter().position(|other| other == state).map_or(0, |at| at + 1);
                *state = all.get(next).copied().unwrap_or(JobState::Unspecified);
                self.jobs.rows.clear();
                self.read = None;
                Effect::Read
            }
            View::Workers | View::Job { .. } => Effect::Nothing,
        }
    }

    fn ask_pause(&mut self) {
        let Some(row) = self.chosen_type() else { return };
        let (task_type, paused, name) = (row.name.clone(), !row.is_paused, escaped(&row.name));
        let (question, follows) = if paused {
            let follows = "Workers get no more jobs of the type until it is resumed. Running jobs continue.";
            (format!("Pause {name} ({} ready)?", text::jobs(row.ready)), follows)
        } else {
            (format!("Resume {name} ({} ready)?", text::jobs(row.ready)), "Workers get jobs of the type again.")
        };
        let lines = vec![question, follows.into()];
        self.overlay = Overlay::Question(Question::new(lines, Change::Pause { task_type, paused }));
    }

    fn ask_retry(&mut self) -> Effect {
        if let View::Job { id, .. } = self.view {
            let lines = vec![
                format!("Retry job {id}?"),
                "The job runs as soon as possible. A dead job gets all of its attempts again.".into(),
            ];
            self.overlay = Overlay::Question(Question::new(lines, Change::RetryJob { id }));
            return Effect::Nothing;
        }
        let Some(row) = self.chosen_type() else { return Effect::Nothing };
        let (task_type, count) = (row.name.clone(), row.dead);
        self.begin(Change::AskRetry { task_type, count })
    }

    fn answered(&mut self, question: Question, code: KeyCode) -> Effect {
        match code {
            KeyCode::Char('y' | 'Y') => self.begin(question.then),
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => Effect::Nothing,
            // Any key that is no answer leaves the question open, so that a typing error changes nothing.
            _ => {
                self.overlay = Overlay::Question(Question { is_unanswered: true, ..question });
                Effect::Nothing
            }
        }
    }

    fn begin(&mut self, change: Change) -> Effect {
        if self.is_busy {
            self.message = Some("not done: the previous change is still running".into());
            return Effect::Nothing;
        }
        self.is_busy = true;
        Effect::Do(change)
    }

    fn typed(&mut self, code: KeyCode) -> Effect {
        match code {
            KeyCode::Enter => return Effect::Nothing,
            KeyCode::Esc => {
                self.filter.clear();
                return Effect::Nothing;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(typed) if self.filter.len() < FILTER => self.filter.push(typed),
            _ => {}
        }
        self.overlay = Overlay::Filter;
        Effect::Nothing
    }
}
