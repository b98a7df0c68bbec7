//! The state of the display, without I/O: takes events and figures, and returns effects.

use std::time::{Duration, Instant};

use howdah_client::{
    Error,
    proto::{JobState, Worker},
};

use super::{
    change::{Change, Done, Question},
    figures::{Figures, Jobs, TypeRow, Types},
};

/// View of `howdah top`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// View of all task types.
    Types,
    /// View of the workers of all brokers.
    Workers,
    /// View of the jobs of one task type.
    Jobs {
        task_type: String,
        /// State that the jobs are filtered by; unspecified for all.
        state: JobState,
    },
    Job {
        id: i64,
        /// View to return to.
        from: Box<View>,
    },
}

/// Effect of a key press or terminal event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Only redraw.
    Nothing,
    /// Read the figures of the new view.
    Read,
    /// Make a change.
    Do(Change),
    Quit,
}

/// Sort order of the types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    Ready,
    Leased,
    Dead,
    Oldest,
    Done,
}

impl Sort {
    pub(super) const ALL: [(Self, &'static str); 6] = [
        (Self::Name, "name"),
        (Self::Ready, "ready"),
        (Self::Leased, "leased"),
        (Self::Dead, "dead"),
        (Self::Oldest, "oldest"),
        (Self::Done, "done/s"),
    ];
}

/// State of the connection to the broker.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// The broker has not answered yet.
    Waiting,
    Up,
    /// The broker does not answer: since when, why, and the time of the next attempt.
    Down {
        since: Instant,
        error: String,
        next: Instant,
    },
}

/// Overlay on the view.
#[derive(Clone, Debug)]
pub(super) enum Overlay {
    Nothing,
    Help,
    Question(Question),
    /// The filter is being typed.
    Filter,
}

/// The state of the display.
#[derive(Debug)]
pub struct Top {
    pub(super) address: String,
    pub(super) every: Duration,
    pub(super) view: View,
    pub(super) overlay: Overlay,
    pub(super) link: Link,
    /// Time of the last successful read of the view; `None` before the first answer.
    pub(super) read: Option<Instant>,
    pub(super) types: Types,
    pub(super) workers: Vec<Worker>,
    pub(super) more_workers: bool,
    pub(super) jobs: Jobs,
    /// Description of the job; `None` if it does not exist.
    pub(super) job: Option<Vec<String>>,
    pub(super) type_cursor: Cursor,
    pub(super) worker_cursor: Cursor,
    pub(super) job_cursor: Cursor,
    /// Index of the first visible line of a job.
    pub(super) scroll: usize,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// Result of the last change.
    pub(super) message: Option<String>,
    /// Whether a change is in progress.
    pub(super) is_busy: bool,
    /// Number of rows that the last drawing had room for; PageUp and PageDown move by it.
    pub(super) height: std::cell::Cell<usize>,
}

impl Top {
    /// Creates the state before the first read. `address` is the displayed address of the brokers, `every` the interval between
    /// reads.
    pub fn new(address: String, every: Duration) -> Self {
        Self {
            address,
            every,
            view: View::Types,
            overlay: Overlay::Nothing,
            link: Link::Waiting,
            read: None,
            types: Types::default(),
            workers: Vec::new(),
            more_workers: false,
            jobs: Jobs::default(),
            job: None,
            type_cursor: Cursor::default(),
            worker_cursor: Cursor::default(),
            job_cursor: Cursor::default(),
            scroll: 0,
            sort: Sort::default(),
            filter: String::new(),
            message: None,
            is_busy: false,
            height: std::cell::Cell::new(20),
        }
    }

    /// Returns the view whose figures must be read.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Handles the result of a read.
    pub fn update(&mut self, figures: Figures, now: Instant) {
        self.link = Link::Up;
        let is_current = match (&figures, &self.view) {
            (Figures::Types(_), View::Types) | (Figures::Workers(..), View::Workers) => true,
            (Figures::Jobs(jobs), View::Jobs { task_type, state }) => {
                jobs.row.name == *task_type && jobs.state == *state
            }
            (Figures::Job(job, _), View::Job { id, .. }) => job == id,
            _ => false,
        };
        // Figures of a view that the user has left are ignored.
        if !is_current {
            return;
        }
        self.read = Some(now);
        match figures {
            Figures::Types(types) => self.types = types,
            Figures::Workers(workers, more) => (self.workers, self.more_workers) = (workers, more),
            Figures::Jobs(jobs) => self.jobs = *jobs,
            Figures::Job(_, job) => self.job = job,
        }
        let keys = self.keys();
        if let Some(cursor) = self.cursor() {
            cursor.settle(&keys);
        }
    }

    /// Handles an error of a read; the next read is after `pause`.
    pub fn failed(&mut self, error: &Error, now: Instant, pause: Duration) {
        let since = match self.link {
            Link::Down { since, .. } => since,
            _ => now,
        };
        self.link = Link::Down { since, error: error.to_string(), next: now + pause };
    }

    /// Handles the result of a change.
    pub fn done(&mut self, result: Result<Done, Error>) {
        self.is_busy = false;
        self.message = Some(match result {
            Ok(Done::Message(text)) => text,
            // If another overlay is open, the confirmation is dropped: a key meant for that overlay must not confirm the
            // change.
            Ok(Done::Confirm(_)) if !matches!(self.overlay, Overlay::Nothing) => {
                "not done: another key was pressed before the confirmation appeared".into()
            }
            Ok(Done::Confirm(question)) => {
                self.overlay = Overlay::Question(question);
                return;
            }
            Err(error) => format!("not done: {error}"),
        });
    }

    /// Types that match the filter, in the sort order.
    pub(super) fn type_rows(&self) -> Vec<&TypeRow> {
        let mut rows: Vec<&TypeRow> = self.types.rows.iter().filter(|row| row.name.contains(&self.filter)).collect();
        let down = |value: &dyn Fn(&TypeRow) -> i64| {
            let mut rows = rows.clone();
            rows.sort_by_key(|row| std::cmp::Reverse(value(row)));
            rows
        };
        rows = match self.sort {
            Sort::Name => rows,
            Sort::Ready => down(&|row| row.ready),
            Sort::Leased => down(&|row| row.leased),
            Sort::Dead => down(&|row| row.dead),
            Sort::Oldest => down(&|row| row.oldest.map_or(-1, |age| age.as_millis() as i64)),
            Sort::Done => {
                down(&|row| row.flow.as_ref().map_or(-1, |flow| (flow.rate(flow.stats.succeeded_count) * 1e3) as i64))
            }
        };
        rows
    }

    /// Keys of the rows in the current view.
    pub(super) fn keys(&self) -> Vec<String> {
        match &self.view {
            View::Types => self.type_rows().into_iter().map(|row| row.name.clone()).collect(),
            View::Workers => self.workers.iter().map(|worker| worker.worker_id.clone()).collect(),
            View::Jobs { .. } => self.jobs.rows.iter().map(|job| job.id.to_string()).collect(),
            View::Job { .. } => Vec::new(),
        }
    }

    pub(super) fn cursor(&mut self) -> Option<&mut Cursor> {
        match &self.view {
            View::Types => Some(&mut self.type_cursor),
            View::Workers => Some(&mut self.worker_cursor),
            View::Jobs { .. } => Some(&mut self.job_cursor),
            View::Job { .. } => None,
        }
    }

    /// Task type to which a command key, such as the one for pause, applies.
    pub(super) fn chosen_type(&self) -> Option<&TypeRow> {
        match &self.view {
            View::Types => {
                let name = self.type_cursor.chosen(&self.keys())?;
                self.types.rows.iter().find(|row| row.name == name)
            }
            // Before the first answer the type cannot be changed, because its setting `paused` is unknown.
            View::Jobs { task_type, .. } => Some(&self.jobs.row).filter(|row| row.name == *task_type),
            View::Workers | View::Job { .. } => None,
        }
    }

    /// Job to which a command key, such as the one for retry, applies.
    pub(super) fn chosen_job(&self) -> Option<i64> {
        match &self.view {
            View::Jobs { .. } => self.job_cursor.chosen(&self.keys())?.parse().ok(),
            View::Job { id, .. } => Some(*id),
            View::Types | View::Workers => None,
        }
    }
}

/// Selection in a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    key: Option<String>,
    index: usize,
}

impl Cursor {
    /// Index of the selected row; `None` if the list is empty.
    pub(super) fn among(&self, keys: &[String]) -> Option<usize> {
        let with_key = self.key.as_ref().and_then(|key| keys.iter().position(|other| other == key));
        // If the selected row is gone, the row that is now at its index is selected.
        with_key.or_else(|| keys.len().checked_sub(1).map(|last| self.index.min(last)))
    }

    /// Key of the selected row.
    pub(super) fn chosen(&self, keys: &[String]) -> Option<String> {
        self.among(keys).map(|index| keys[index].clone())
    }

    /// Moves the selection by a number of rows, within the list.
    pub(super) fn move_by(&mut self, rows: isize, keys: &[String]) {
        let Some(index) = self.among(keys) else { return };
        self.index = index.saturating_add_signed(rows).min(keys.len() - 1);
        self.key = Some(keys[self.index].clone());
    }

    /// Stores the index of the selected row after a refresh. If a later refresh removes the row, the selection stays at this
    /// index.
    pub(super) fn settle(&mut self, keys: &[String]) {
        self.move_by(0, keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_row_stays_chosen_while_others_come_and_go() {
        let keys = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let mut cursor = Cursor::default();
        assert_eq!(cursor.among(&[]), None);
        cursor.move_by(1, &[]);
        cursor.move_by(1, &keys("a b c"));
        assert_eq!(cursor.chosen(&keys("c x b a")).as_deref(), Some("b"));
        cursor.settle(&keys("c x b a"));
        assert_eq!(cursor.chosen(&keys("c x d a")).as_deref(), Some("d"), "the one in its place");
        cursor.move_by(isize::MAX, &keys("a b"));
        assert_eq!(cursor.chosen(&keys("a b")).as_deref(), Some("b"));
        cursor.move_by(isize::MIN, &keys("a b"));
        assert_eq!(cursor.chosen(&keys("a b")).as_deref(), Some("a"));
    }
}
