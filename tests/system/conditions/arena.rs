//! A broker with jobs in every state, prepared before a database condition begins.

use std::collections::HashMap;

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_core::config::Config;
use howdah_proto::v1::{JobState, LeasedJob};

use crate::support::*;

/// Number of keys that jobs hold from the start, enough for an index of several pages.
const KEYS: usize = 3_000;

/// A broker, with prepared jobs for each operation that needs a job.
pub(crate) struct Arena {
    pub(crate) broker: TestBroker,
    /// Database URL that brokers and `howdah doctor` use. Tests read `broker.database` as a superuser instead.
    pub(crate) url: String,
    /// Database URL for notifications; `None` if brokers use `url` for them.
    listen_url: Option<String>,
    /// Leased jobs, by the name of the operation that settles them.
    leased: HashMap<&'static str, LeasedJob>,
    /// Other jobs, by the name of the operation that changes them.
    pub(crate) ids: HashMap<&'static str, i64>,
}

impl Arena {
    pub(crate) async fn start() -> Self {
        Self::on(&database().await, |_| {}).await
    }

    pub(crate) async fn on(database: &TestDatabase, change: impl FnOnce(&mut Config)) -> Self {
        let (mut url, mut listen_url) = (database.url.clone(), None);
        let broker = TestBroker::on_with(database, |config| {
            change(config);
            url.clone_from(&config.database_url);
            listen_url.clone_from(&config.listen_database_url);
        })
        .await;
        let mut arena = Self { broker, url, listen_url, leased: HashMap::new(), ids: HashMap::new() };
        arena.prepare().await;
        arena
    }

    /// Restarts the broker and keeps the jobs. While it is stopped, calls `meanwhile` with the arguments of `howdah doctor`.
    pub(crate) async fn restarted(self, meanwhile: impl AsyncFnOnce(&[&str])) -> Self {
        let Self { broker, ids, leased, url, listen_url } = self;
        let database = broker.database.clone();
        broker.stop().await;
        meanwhile(&doctor(&url, listen_url.as_deref())).await;
        Self { broker: TestBroker::on(&database).await, ids, leased, url, listen_url }
    }

    /// Arguments of `howdah doctor` with the connection strings of the broker.
    pub(crate) fn doctor(&self) -> Vec<&str> {
        doctor(&self.url, self.listen_url.as_deref())
    }

    async fn prepare(&mut self) {
        let broker = &self.broker;
        broker.enqueue_all((0..KEYS).map(|n| new_job("keyed", "").key(&key(n)).delay(HOUR))).await;
        let first = broker.enqueue("requested").request_key("repeated").outcome().await.id;
        self.ids.insert("enqueue with a request key", first);
        for name in ["ack", "nack", "snooze", "release", "extend", "wait", "settled"] {
            broker.enqueue(name).await;
            let [job] = <[LeasedJob; 1]>::try_from(broker.pull(name).lease(HOUR).await).expect("one job");
            self.leased.insert(name, job);
        }
        broker.settle(vec![ack(&self.leased["settled"])]).await;
        broker.enqueue_all(["claimed"; 10]).await;
        self.ids.insert("cancel", broker.enqueue("cancelled").await);
        broker.enqueue_all(["bulk"; 5]).await;
        let dead = broker.enqueue("retried").max_attempts(1).await;
        let leased = broker.pull("retried").lease(HOUR).await;
        broker.settle(vec![nack(&leased[0], "no route").no_retry()]).await;
        broker.until_state(dead, JobState::Dead).await;
        self.ids.insert("retry", dead);
        let client = broker.client().await;
        let schedule = NewSchedule::new("planned", NewJob::new("planned"), Plan::every(secs(1)));
        with_timeout("a schedule", client.create_schedule(schedule)).await.expect("create");
        // Creates a day partition of history that is 40 days old. In the operation `retention`, another broker drops this
        // partition at its start.
        broker
            .sql(
                "SELECT howdah.make_day_partition('history', 'finished', (now() AT TIME ZONE 'UTC')::date - 40);
                 SELECT howdah.set_rights('{}')",
            )
            .await;
    }

    pub(crate) fn leased(&self, operation: &str) -> &LeasedJob {
        &self.leased[operation]
    }

    /// Fails unless each job is in one state. If all operations have run, also checks that each job is in the state in which
    /// its operation leaves it, and that the condition used up no attempt.
    pub(crate) async fn check(&self, all_have_run: bool) {
        let keyed = "SELECT count(*) FROM howdah.job WHERE task_type = 'keyed' AND state IN ('scheduled', 'ready')";
        assert_eq!(self.broker.count(keyed).await, KEYS as i64, "jobs that hold a key");
        let twice = "SELECT count(*) FROM (SELECT FROM howdah.job GROUP BY id HAVING count(*) > 1) twice";
        assert_eq!(self.broker.count(twice).await, 0, "a job is in two states");
        if !all_have_run {
            return;
        }
        let expected = [
            ("ack", JobState::Succeeded, 1),
            ("nack", JobState::Scheduled, 1),
            ("snooze", JobState::Scheduled, 0),
            ("release", JobState::Ready, 0),
            ("extend", JobState::Leased, 1),
            ("wait", JobState::Succeeded, 1),
        ];
        for (name, state, attempt) in expected {
            let job = self.broker.job(self.leased[name].id).await;
            assert_eq!((job.state(), job.attempt), (state, attempt), "{name}");
        }
        assert_eq!(self.broker.state(self.ids["cancel"]).await, JobState::Cancelled);
    }
}

fn doctor<'a>(url: &'a str, listen_url: Option<&'a str>) -> Vec<&'a str> {
    let mut args = vec!["doctor", "--json", "--database-url", url];
    if let Some(url) = listen_url {
        args.extend(["--listen-database-url", url]);
    }
    args
}

/// Returns the `n`-th of the keys that jobs hold from the start. The order of these keys depends on the collation.
pub(crate) fn key(n: usize) -> String {
    let letter = ["a", "B", "ä", "-", "Z", "_"][n % 6];
    format!("{letter}{n}")
}
