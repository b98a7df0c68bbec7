//! Decides when `--drain` ends the worker.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use howdah_client::{
    Client,
    proto::{ListTaskTypesRequest, TaskType},
};
use tokio::{select, sync::watch, time::sleep};
use tonic::Code;

use crate::commands::failure::Failure;

/// Minimum and maximum interval at which the drain counts the remaining jobs. The drain cannot rely on the arrival of jobs,
/// because other workers may take all of them.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time until a job without an obstacle becomes ready, for example after its stopped worker returned it, or after a
/// dependency finished. A job that takes longer is held back by something else.
const BECOMES_READY: Duration = Duration::from_secs(1);
/// Interval of log messages about the jobs that the drain waits for.
const REMINDER: Duration = Duration::from_secs(30);

/// End condition of `--drain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drain {
    /// No job is ready, and this worker holds no job.
    Now,
    /// No job is ready or held by any worker, and no scheduled or waiting job may become ready within this time.
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
                .map_err(|error| format!("{error}; use now, or a duration such as 10m")),
        }
    }
}

/// Numbers of unfinished jobs of the worker's task types, at the last count.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remaining {
    ready: i64,
    /// Jobs that any worker holds.
    leased: i64,
    waiting: i64,
    /// Time until the first scheduled job is due.
    due_in: Option<Duration>,
}

impl Remaining {
    /// Counts the remaining jobs of the worker's task types. Returns `None` if the broker does not answer; the worker must not
    /// end then, because its outcomes may be unsettled.
    async fn count(client: &Client, task_types: &[String]) -> Option<Self> {
        let mut remaining = Self::default();
        for task_type in task_types {
            // One entry for each store that has the type.
            let request = ListTaskTypesRequest { task_type: task_type.clone(), ..Default::default() };
            match client.find_task_types(request).await {
                Ok(found) => found.iter().for_each(|entry| remaining.add(entry)),
                Err(error) => {
                    tracing::warn!(%error, "cannot count the remaining jobs; trying again");
                    return None;
                }
            }
        }
        Some(remaining)
    }

    /// Adds the jobs of a task type in one store.
    fn add(&mut self, entry: &TaskType) {
        let counts = entry.counts.unwrap_or_default();
        self.ready += counts.ready;
        self.leased += counts.leased;
        self.waiting += counts.waiting;
        let due_in = entry.next_due_in.map(|time| Duration::try_from(time).unwrap_or_default());
        self.due_in = self.due_in.into_iter().chain(due_in).min();
    }

    /// Returns whether this worker may still receive a job. `quiet` is the time since its last job.
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

/// Logs the jobs that a drain waits for, first immediately and then every 30 seconds.
#[derive(Default)]
struct Reminder(Option<Instant>);

impl Reminder {
    fn waits(&mut self, Remaining { leased, waiting, due_in, .. }: &Remaining) {
        if self.0.is_none_or(|last| last.elapsed() >= REMINDER) {
            self.0 = Some(Instant::now());
            let next_due = due_in.map_or_else(|| "none".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()));
            tracing::info!(
                held_by_other_workers = leased,
                waiting,
                %next_due,
                "this worker has no job left; it waits for jobs that may become ready again. --drain=now does not wait for them"
            );
        }
    }
}

/// Fails if the caller may not count jobs, because then the end of the drain could not be detected.
pub(super) async fn check_counts(client: &Client, task_types: &[String]) -> Result<(), Failure> {
    for task_type in task_types {
        match client.get_task_type(task_type).await {
            Err(error) if error.code() == Code::PermissionDenied => {
                return Err(Failure::from(error).within("cannot count the remaining jobs for --drain"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Waits until this worker runs no job (`running`), and no job is left or may come back. A job that is then still in transit to this
/// worker arrives while the worker stops, and is run.
pub(super) async fn drained(drain: Drain, client: &Client, task_types: &[String], mut running: watch::Receiver<usize>) {
    let mut reminder = Reminder::default();
    let (mut pause, mut quiet) = (MIN_INTERVAL, None);
    loop {
        // The wait never fails, because the caller holds the sender.
        let _ = running.wait_for(|count| *count == 0).await;
        match Remaining::count(client, task_types).await {
            Some(remaining) if remaining.ready == 0 && *running.borrow_and_update() == 0 => {
                // With several types one check is not enough: a job may move to a type that the check has already counted.
                let is_sure = quiet.is_some() || task_types.len() == 1;
                let quiet = quiet.get_or_insert_with(Instant::now);
                if is_sure && !remaining.may_come(drain, quiet.elapsed()) {
                    return;
                }
                if quiet.elapsed() >= BECOMES_READY {
                    reminder.waits(&remaining);
                }
            }
            _ => quiet = None,
        }
        select! {
            _ = running.changed() => (pause, quiet) = (MIN_INTERVAL, None),
            () = sleep(pause) => pause = (pause * 2).min(MAX_INTERVAL),
        }
    }
}

/// Returns whether no job is left after the worker has stopped. Jobs that were in transit to the worker count as leased,
/// and become ready after a moment.
pub(super) async fn is_empty(drain: Drain, client: &Client, task_types: &[String]) -> bool {
    let begun = Instant::now();
    loop {
        match Remaining::count(client, task_types).await {
            Some(remaining) if remaining.ready > 0 => return false,
            Some(Remaining { leased: 0, waiting: 0, .. }) => return true,
            Some(remaining) if begun.elapsed() >= BECOMES_READY => {
                return !remaining.may_come(drain, Duration::MAX);
            }
            Some(_) => sleep(MIN_INTERVAL).await,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_waits_for_jobs_that_may_come_back_except_with_now() {
        let default: Drain = "".parse().unwrap();
        let long: Drain = "10m".parse().unwrap();
        let remaining = |leased, waiting, due_in| Remaining { ready: 0, leased, waiting, due_in };
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let cases = [
            (remaining(0, 0, None), [false, false, false]),
            (remaining(1, 0, None), [false, true, true]),
            (remaining(0, 0, Some(second)), [false, true, true]),
            (remaining(0, 0, Some(minute)), [false, false, true]),
            (remaining(0, 1, None), [false, false, true]),
        ];
        for (remaining, expected) in cases {
            let found = [Drain::Now, default, long].map(|drain| remaining.may_come(drain, second));
            assert_eq!(found, expected, "{remaining:?}");
        }
        assert!("soon".parse::<Drain>().is_err());
    }
}
