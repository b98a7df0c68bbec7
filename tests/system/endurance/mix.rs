//! The kinds of jobs that producers enqueue in endurance tests.

use std::time::Duration;

use howdah_client::{Client, NewSchedule, Plan, RetryPolicy};
use howdah_proto::v1::{KeyPolicy, NewJob, TaskTypeSettings, UpdateTaskTypeRequest, new_job::Start};

use crate::support::task_types_client;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mix {
    /// Jobs without options.
    Plain,
    /// Jobs without options, of a type in the second store.
    Second,
    /// Jobs without options: half of the producers enqueue to the first store, the other half to the second.
    Stores,
    /// Jobs without options, and jobs with priorities, delays, keys, limits, stages and dependencies.
    All,
}

/// Concurrency limit of the type `limited`.
pub(super) const MAX_RUNNING: usize = 5;
/// Maximum attempts of each job, so high that a hundred faults do not use them up.
pub(super) const MAX_ATTEMPTS: u32 = 500;

impl Mix {
    /// Task types of the mix, each with the window of a worker.
    pub(super) fn windows(self) -> Vec<(String, i32)> {
        let types: &[(&str, i32)] = match self {
            Self::Plain => &[("plain", 40)],
            Self::Second => &[("second", 40)],
            Self::Stores => &[("plain", 40), ("second", 40)],
            Self::All => &[
                ("plain", 30),
                ("keyed", 10),
                ("later", 10),
                ("timed", 10),
                ("limited", 4),
                ("queued", 10),
                ("stage.1", 10),
                ("stage.2", 10),
                ("stage.3", 10),
                ("after", 10),
                ("tick", 10),
            ],
        };
        types.iter().map(|(name, window)| ((*name).to_owned(), *window)).collect()
    }

    /// The mix of jobs that producer number `n` enqueues.
    pub(super) fn of_producer(self, n: usize) -> Self {
        match self {
            Self::Stores if n.is_multiple_of(2) => Self::Plain,
            Self::Stores => Self::Second,
            other => other,
        }
    }

    /// Sets the limits of the task types, and creates the schedule.
    pub(super) async fn prepare(self, grpc: &str) {
        if self != Self::All {
            return;
        }
        let limited = TaskTypeSettings { max_running: MAX_RUNNING as u32, ..TaskTypeSettings::default() };
        let queued = TaskTypeSettings { key_max_running: 1, ..TaskTypeSettings::default() };
        let mut client = task_types_client(&format!("http://{grpc}")).await;
        for (task_type, settings) in [("limited", limited), ("queued", queued)] {
            let request =
                UpdateTaskTypeRequest { task_type: task_type.into(), settings: Some(settings), update_mask: None };
            client.update_task_type(request).await.expect("settings");
        }
        // The schedule fires every second, and fires again for each missed time.
        let job = howdah_client::NewJob::new("tick").payload("tick").max_attempts(MAX_ATTEMPTS);
        let tick = NewSchedule::new("tick", job, Plan::every(Duration::from_secs(1)));
        let client = Client::connect(grpc.to_owned()).await.expect("connect");
        client.create_schedule(tick.missed_all(1_000)).await.expect("a schedule");
    }

    /// Returns the jobs of one request; the payload of each job is its name. Every other request has jobs without options, so
    /// that the broker can enqueue them directly into `leased`.
    pub(super) fn jobs(self, turn: usize, request: &str, count: usize) -> Vec<NewJob> {
        if turn % 2 == 1 && self == Self::All {
            return Self::Plain.jobs(0, request, count);
        }
        (0..count).map(|n| self.job(n, format!("{request}-{n}"))).collect()
    }

    fn job(self, n: usize, name: String) -> NewJob {
        let number = rand::random_range(0..1_000_000);
        let job = |task_type: &str| NewJob {
            task_type: task_type.into(),
            payload: name.clone().into_bytes().into(),
            max_attempts: MAX_ATTEMPTS,
            ..NewJob::default()
        };
        match n {
            _ if self == Self::Second => job("second"),
            _ if self != Self::All => job("plain"),
            0 => NewJob { priority: number % 21 - 10, ..job("plain") },
            1 => NewJob {
                key: format!("k{}", number % 200),
                key_policy: if number % 2 == 0 { KeyPolicy::Keep } else { KeyPolicy::Replace } as i32,
                ..job("keyed")
            },
            2 | 3 => {
                let delay = Duration::from_millis(number as u64 % 2_000);
                NewJob { start: Some(Start::Delay(delay.try_into().expect("a delay"))), ..job("later") }
            }
            4 => job("limited"),
            5 | 6 => NewJob { limit_key: format!("q{}", number % 20), ..job("queued") },
            7 => NewJob {
                next_stages: vec!["stage.2".into(), "stage.3".into()],
                stage_payload: howdah_proto::v1::StagePayload::Unchanged as i32,
                ..job("stage.1")
            },
            8 => NewJob { local_name: "first".into(), ..job("plain") },
            9 | 10 => NewJob { after_local: vec!["first".into()], ..job("after") },
            // Some attempts take longer than the timeout. The worker draws a new random duration for each attempt.
            11 => NewJob {
                timeout: Some(Duration::from_millis(500).try_into().expect("a timeout")),
                retry_policy: Some(RetryPolicy::fixed(Duration::from_millis(200)).into_proto()),
                ..job("timed")
            },
            _ => job("plain"),
        }
    }
}
