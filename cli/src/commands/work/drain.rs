//! Decides when nothing is left to run.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use tokio::{select, time::sleep};

use tonic::Code;

use super::run::Work;
use crate::commands::failure::Failure;

/// How soon the queue is checked again while jobs are ready but none comes: others may be taking them.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// How long it may take until a job becomes ready that was on its way to a stopped worker, or that waits for a limit or
/// for a finished job. A job that takes longer waits for something else.
const BECOMES_READY: Duration = Duration::from_secs(1);
/// How often the log says for whom it waits.
const REMINDER: Duration = Duration::from_secs(30);

/// Until when `--drain` waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drain {
    /// Until no job is ready and this worker holds none.
    Now,
    /// Also until no other worker holds a job, and no job may become ready within this time.
    Within(Duration),
}

impl FromStr for Drain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "now" => Ok(Self::Now),
            "" => Ok(Self::Within(BECOMES_READY)),
            text => humantime::parse_duration(text)
                .map(|time| Self::Within(time.max(BECOMES_READY)))
                .map_err(|error| format!("{error}; it is now, or a duration such as 10m")),
        }
    }
}

/// The jobs of the worker's types that are left.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    ready: i64,
    /// Held by any worker.
    leased: i64,
    waiting: i64,
    /// When the first scheduled job is due.
    due_in: Option<Duration>,
}

impl Left {
    /// Whether a job may still come; `quiet`: for how long none has.
    fn may_come(&self, drain: Drain, quiet: Duration) -> bool {
        match drain {
            Drain::Now => self.ready > 0 || self.waiting > 0 && quiet < BECOMES_READY,
            Drain::Within(soon) => {
                self.ready > 0
                    || self.leased > 0
                    || self.due_in.is_some_and(|due_in| due_in <= soon)
                    || self.waiting > 0 && quiet < soon
            }
        }
    }
}

/// Says for whom a drain waits, at once and from time to time.
#[derive(Default)]
struct Reminder(Option<Instant>);

impl Reminder {
    fn waits(&mut self, Left { leased, waiting, due_in, .. }: &Left) {
        if self.0.is_none_or(|last| last.elapsed() >= REMINDER) {
            self.0 = Some(Instant::now());
            let next_due = due_in.map_or_else(|| "none".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()));
            tracing::info!(
                held_by_other_workers = leased,
                waiting,
                %next_due,
                "this worker has no job left, and waits for jobs that may come back; --drain=now does not"
            );
        }
    }
}

impl Work {
    /// Fails if the broker does not let us count jobs: then nobody would know when all is done.
    pub(super) async fn check_counts(&self) -> Result<(), Failure> {
        for task_type in &self.task_types {
            match self.client.get_task_type(task_type).await {
                Err(error) if error.code() == Code::PermissionDenied => {
                    return Err(Failure::from(error).within("--drain counts the jobs that are left"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until no command runs, and no job is left or comes back. Even then a job may be on its way to this worker:
    /// it arrives while the worker stops, and is run.
    pub(super) async fn drained(&self, drain: Drain) {
        let mut running = self.running.subscribe();
        let mut reminder = Reminder::default();
        let (mut pause, mut quiet) = (FIRST_LOOK, None);
        loop {
            // We hold the sender, so this never fails.
            let _ = running.wait_for(|count| *count == 0).await;
            match self.left().await {
                Some(left) if left.ready == 0 && *running.borrow_and_update() == 0 => {
                    // A job may go from one type to another between two looks.
                    let is_sure = quiet.is_some() || self.task_types.len() == 1;
                    let quiet = quiet.get_or_insert_with(Instant::now);
                    if is_sure && !left.may_come(drain, quiet.elapsed()) {
                        return;
                    }
                    if quiet.elapsed() >= BECOMES_READY {
                        reminder.waits(&left);
                    }
                }
                _ => quiet = None,
            }
            select! {
                _ = running.changed() => (pause, quiet) = (FIRST_LOOK, None),
                () = sleep(pause) => pause = (pause * 2).min(LAST_LOOK),
            }
        }
    }

    /// Whether all is done after the worker has stopped. Jobs that the broker held for it become ready a moment later.
    /// Until then they are leased, as are jobs that other workers run.
    pub(super) async fn is_empty(&self, drain: Drain) -> bool {
        let begun = Instant::now();
        loop {
            match self.left().await {
                Some(left) if left.ready > 0 => return false,
                Some(Left { leased: 0, waiting: 0, .. }) => return true,
                Some(left) if begun.elapsed() >= BECOMES_READY => {
                    return !left.may_come(drain, Duration::MAX);
                }
                Some(_) => sleep(FIRST_LOOK).await,
                None => return false,
            }
        }
    }

    /// The jobs of our types that are left to run. `None` if the broker does not answer: then the worker cannot end
    /// either, since its outcomes may be unsettled.
    async fn left(&self) -> Option<Left> {
        let mut left = Left::default();
        for task_type in &self.task_types {
            match self.client.get_task_type(task_type).await {
                Ok(found) => {
                    let found = found.unwrap_or_default();
                    let counts = found.counts.unwrap_or_default();
                    left.ready += counts.ready;
                    left.leased += counts.leased;
                    left.waiting += counts.waiting;
                    let due_in = found.next_due_in.map(|time| Duration::try_from(time).unwrap_or_default());
                    left.due_in = left.due_in.into_iter().chain(due_in).min();
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot get the numbers of jobs that are left; trying again");
                    return None;
                }
            }
        }
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_what_may_come_back_unless_told_not_to() {
        let default: Drain = "".parse().unwrap();
        let patient: Drain = "10m".parse().unwrap();
        let left = |leased, waiting, due_in| Left { ready: 0, leased, waiting, due_in };
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let cases = [
            (left(0, 0, None), [false, false, false]),
            (left(1, 0, None), [false, true, true]),
            (left(0, 0, Some(second)), [false, true, true]),
            (left(0, 0, Some(minute)), [false, false, true]),
            (left(0, 1, None), [false, false, true]),
        ];
        for (left, expected) in cases {
            let found = [Drain::Now, default, patient].map(|drain| left.may_come(drain, second));
            assert_eq!(found, expected, "{left:?}");
        }
        assert!("soon".parse::<Drain>().is_err());
    }
}
