//! Looks at the tables all the time, each look one snapshot: no job in two places, no limit exceeded.

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

/// One look. The tables of jobs that have not ended are small.
const LOOK: &str = "WITH live AS (
    SELECT id FROM howdah.ready UNION ALL SELECT id FROM howdah.leased UNION ALL SELECT id FROM howdah.scheduled
    UNION ALL SELECT id FROM howdah.waiting UNION ALL SELECT id FROM howdah.dead)
SELECT (SELECT count(*) - count(DISTINCT id) FROM live),
       (SELECT count(*) FROM live JOIN howdah.history USING (id)),
       (SELECT count(*) FROM howdah.leased JOIN howdah.task_type t ON t.id = type_id WHERE t.name = 'limited'),
       (SELECT coalesce(max(n), 0) FROM (
            SELECT count(*) AS n FROM howdah.leased JOIN howdah.task_type t ON t.id = type_id
            WHERE t.name = 'queued' GROUP BY leased.options ->> 'limit_key') q)";

/// What it has seen so far.
pub(super) struct Watch {
    looking: JoinHandle<()>,
    looks: Arc<AtomicUsize>,
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    pub(super) fn start(url: String) -> Self {
        let (looks, wrong) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let looking = tokio::spawn(look(url, looks.clone(), wrong.clone()));
        Self { looking, looks, wrong }
    }

    /// How often it looked, and what was wrong.
    pub(super) fn end(self) -> (usize, Vec<String>) {
        self.looking.abort();
        (self.looks.load(Ordering::Relaxed), self.wrong.lock().expect("no panic").clone())
    }
}

async fn look(url: String, looks: Arc<AtomicUsize>, wrong: Arc<Mutex<Vec<String>>>) {
    loop {
        // Postgres goes away, and comes back.
        if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
            let connection = tokio::spawn(connection);
            while let Ok(Ok(seen)) = timeout(Duration::from_secs(10), once(&client)).await {
                looks.fetch_add(1, Ordering::Relaxed);
                wrong.lock().expect("no panic").extend(seen);
                sleep(Duration::from_millis(300)).await;
            }
            connection.abort();
        }
        sleep(Duration::from_millis(300)).await;
    }
}

async fn once(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let row = client.query_one(LOOK, &[]).await?;
    let [twice, also_history, limited, queued]: [i64; 4] = std::array::from_fn(|n| row.get(n));
    let fine = twice == 0 && also_history == 0 && limited <= MAX_RUNNING as i64 && queued <= 1;
    Ok((!fine).then(|| {
        format!(
            "in a snapshot: {twice} jobs in two places, {also_history} in history and elsewhere, {limited} leases of a type \
             with a limit of {MAX_RUNNING}, {queued} of a key with a limit of 1"
        )
    }))
}
