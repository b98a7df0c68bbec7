//! What is shown. No input or output: events and figures come in, effects and a picture go out.

use std::time::{Duration, Instant};

use howdah_client::{
    Error,
    proto::{JobState, Worker},
};
use ratatui::Frame;

use super::{
    change::{Change, Done, Question},
    cursor::Cursor,
    draw,
    figures::{Jobs, Seen, TypeRow, Types},
};

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// All task types.
    Types,
    /// The workers of all brokers.
    Workers,
    /// Jobs of a type.
    Jobs {
        /// The type.
        task_type: String,
        /// Only in this state; unspecified: in every one.
        state: JobState,
    },
    /// A job.
    Job {
        /// Its id.
        id: i64,
        /// The view behind it.
        from: Box<View>,
    },
}

/// What must be done after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing but to draw.
    Nothing,
    /// Another view must be read.
    Look,
    /// Something must be changed.
    Do(Change),
    /// Somebody is done with it.
    Quit,
}

/// What the types are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    Ready,
    Running,
    Dead,
    Oldest,
    Done,
}

impl Sort {
    pub(super) const ALL: [(Self, &'static str); 6] = [
        (Self::Name, "name"),
        (Self::Ready, "ready"),
        (Self::Running, "running"),
        (Self::Dead, "dead"),
        (Self::Oldest, "oldest"),
        (Self::Done, "done/s"),
    ];
}

/// Whether the broker answers.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// Nothing was answered yet.
    Waiting,
    Up,
    /// Since when it does not, why, and when the next try is.
    Down {
        since: Instant,
        error: String,
        next: Instant,
    },
}

/// What lies over the picture.
#[derive(Clone, Debug)]
pub(super) enum Over {
    Nothing,
    Help,
    Question(Question),
    /// What is typed into the filter.
    Filter,
}

/// Everything that is shown.
#[derive(Debug)]
pub struct Top {
    pub(super) address: String,
    pub(super) every: Duration,
    pub(super) view: View,
    pub(super) over: Over,
    pub(super) link: Link,
    /// When the figures of the view were read; `None`: not yet.
    pub(super) read: Option<Instant>,
    pub(super) types: Types,
    pub(super) workers: Vec<Worker>,
    pub(super) more_workers: bool,
    pub(super) jobs: Jobs,
    /// The job in words; `None`: there is none.
    pub(super) job: Option<Vec<String>>,
    pub(super) type_cursor: Cursor,
    pub(super) worker_cursor: Cursor,
    pub(super) job_cursor: Cursor,
    /// The first line of a job that is shown.
    pub(super) scroll: usize,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// What came of the last change.
    pub(super) said: Option<String>,
    /// A change is under way.
    pub(super) is_busy: bool,
    /// Rows that fit, as drawn last.
    pub(super) height: std::cell::Cell<usize>,
}

impl Top {
    /// Nothing was read yet. `address`: of the broker, as it is shown; `every`: time between two looks.
    pub fn new(address: String, every: Duration) -> Self {
        Self {
            address,
            every,
            view: View::Types,
            over: Over::Nothing,
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
            said: None,
            is_busy: false,
            height: std::cell::Cell::new(20),
        }
    }

    /// What must be read.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Figures came.
    pub fn seen(&mut self, seen: Seen, now: Instant) {
        self.link = Link::Up;
        let is_asked = match (&seen, &self.view) {
            (Seen::Types(_), View::Types) | (Seen::Workers(..), View::Workers) => true,
            (Seen::Jobs(jobs), View::Jobs { task_type, state }) => jobs.row.name == *task_type && jobs.state == *state,
            (Seen::Job(seen, _), View::Job { id, .. }) => seen == id,
            _ => false,
        };
        // An answer for the view before is of no use.
        if !is_asked {
            return;
        }
        self.read = Some(now);
        match seen {
            Seen::Types(types) => self.types = types,
            Seen::Workers(workers, more) => (self.workers, self.more_workers) = (workers, more),
            Seen::Jobs(jobs) => self.jobs = *jobs,
            Seen::Job(_, job) => self.job = job,
        }
        let keys = self.keys();
        if let Some(cursor) = self.cursor() {
            cursor.settle(&keys);
        }
    }

    /// A look has failed; the next one is after `pause`.
    pub fn failed(&mut self, error: &Error, now: Instant, pause: Duration) {
        let since = match self.link {
            Link::Down { since, .. } => since,
            _ => now,
        };
        self.link = Link::Down { since, error: error.to_string(), next: now + pause };
    }

    /// A change has come to its end.
    pub fn done(&mut self, result: Result<Done, Error>) {
        self.is_busy = false;
        self.said = Some(match result {
            Ok(Done::Said(said)) => said,
            // What is typed there must not answer it.
            Ok(Done::Asked(_)) if !matches!(self.over, Over::Nothing) => "not asked: another key came first".into(),
            Ok(Done::Asked(question)) => {
                self.over = Over::Question(question);
                return;
            }
            Err(error) => format!("not done: {error}"),
        });
    }

    /// Draws it.
    pub fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        draw::all(self, frame, now);
    }

    /// The types that the filter lets pass, in order.
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
            Sort::Running => down(&|row| row.running),
            Sort::Dead => down(&|row| row.dead),
            Sort::Oldest => down(&|row| row.oldest.map_or(-1, |age| age.as_millis() as i64)),
            Sort::Done => down(&|row| row.flow.map_or(-1, |flow| (flow.succeeded * 1_000.0) as i64)),
        };
        rows
    }

    /// The keys of the rows of the view.
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

    /// The type that a key is about.
    pub(super) fn chosen_type(&self) -> Option<&TypeRow> {
        match &self.view {
            View::Types => {
                let name = self.type_cursor.chosen(&self.keys())?;
                self.types.rows.iter().find(|row| row.name == name)
            }
            // Before the first answer it is not known whether it is paused.
            View::Jobs { task_type, .. } => Some(&self.jobs.row).filter(|row| row.name == *task_type),
            View::Workers | View::Job { .. } => None,
        }
    }

    /// The job that a key is about.
    pub(super) fn chosen_job(&self) -> Option<i64> {
        match &self.view {
            View::Jobs { .. } => self.job_cursor.chosen(&self.keys())?.parse().ok(),
            View::Job { id, .. } => Some(*id),
            View::Types | View::Workers => None,
        }
    }
}
