//! Checks the tables continuously during the load, each time in one snapshot: no job is in two tables, and no limit is
//! exceeded.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, NoTls};

use super::mix::MAX_RUNNING;

/// Query of one check. It scans the tables of unfinished jobs, which stay small under load.
const CHECK: &str = "WITH live AS (
    SELECT id FROM howdah.ready UNION ALL SELECT id FROM howdah.leased UNION ALL SELECT id FROM howdah.scheduled
    UNION ALL SELECT id FROM howdah.waiting UNION ALL SELECT id FROM howdah.dead)
SELECT (SELECT count(*) - count(DISTINCT id) FROM live),
       (SELECT count(*) FROM live JOIN howdah.history USING (id)),
       (SELECT count(*) FROM howdah.leased JOIN howdah.task_type t ON t.id = type_id WHERE t.name = 'limited'),
       (SELECT coalesce(max(n), 0) FROM (
            SELECT count(*) AS n FROM howdah.leased JOIN howdah.task_type t ON t.id = type_id
            WHERE t.name = 'queued' GROUP BY leased.options ->> 'limit_key') q)";

/// Continuous checks of the tables, and their results so far.
pub(super) struct Watch {
    task: JoinHandle<()>,
    checks: Arc<AtomicUsize>,
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    pub(super) fn start(url: String) -> Self {
        let (checks, wrong) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let task = tokio::spawn(check_repeatedly(url, checks.clone(), wrong.clone()));
        Self { task, checks, wrong }
    }

    /// Stops the checks. Returns their number and the violations.
    pub(super) fn end(self) -> (usize, Vec<String>) {
        self.task.abort();
        (self.checks.load(Ordering::Relaxed), self.wrong.lock().expect("no panic").clone())
    }
}

async fn check_repeatedly(url: String, checks: Arc<AtomicUsize>, wrong: Arc<Mutex<Vec<String>>>) {
    loop {
        // The connection breaks when a test stops Postgres, so connect again until Postgres is available.
        if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
            let connection = tokio::spawn(connection);
            while let Ok(Ok(violation)) = timeout(Duration::from_secs(10), once(&client)).await {
                checks.fetch_add(1, Ordering::Relaxed);
                wrong.lock().expect("no panic").extend(violation);
                sleep(Duration::from_millis(300)).await;
            }
            connection.abort();
        }
        sleep(Duration::from_millis(300)).await;
    }
}

async fn once(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let row = client.query_one(CHECK, &[]).await?;
    let [twice, also_history, limited, queued]: [i64; 4] = std::array::from_fn(|n| row.get(n));
    let fine = twice == 0 && also_history == 0 && limited <= MAX_RUNNING as i64 && queued <= 1;
    Ok((!fine).then(|| {
        format!(
            "in a snapshot: {twice} jobs in two places, {also_history} in history and elsewhere, {limited} leases of a type \
             with a limit of {MAX_RUNNING}, {queued} of a key with a limit of 1"
        )
    }))
}
