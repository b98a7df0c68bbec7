//! Tests data that is written once, the parts of finished jobs that history keeps, and retention.

mod own_mode; // of a job

use howdah_core::config::Config;
use howdah_engine::store::Store;
use howdah_proto::v1::{HistoryMode, JobState, ListJobsRequest, NewJob, TaskTypeSettings};

use crate::support::*;

const LARGE: usize = 100_000;

fn large(task_type: &str, byte: u8) -> NewJob {
    new_job(task_type, vec![byte; LARGE])
}

async fn payload(broker: &TestBroker, id: i64) -> Vec<u8> {
    broker.job(id).await.payload.to_vec()
}

async fn stored_out_of_line(database: &TestDatabase) -> i64 {
    database.count("SELECT count(*) FROM howdah.payload").await
}

#[tokio::test]
async fn a_large_payload_is_written_once_and_is_whole_wherever_its_job_goes() {
    let broker = TestBroker::start().await;
    let keyed = large("l", 3).key("k");
    let delayed = large("l", 4).delay(HOUR);
    let before = broker.enqueue_all([large("l", 1), new_job("l", "small")]).await;
    let full = broker.enqueue_all([new_job("l", "between"), keyed.clone(), delayed]).await;
    assert_eq!(stored_out_of_line(&broker.database).await, 3);
    assert_eq!(broker.enqueue(keyed).await, full[1]);
    assert_eq!(stored_out_of_line(&broker.database).await, 3, "a payload was stored without its job");
    assert_eq!(broker.count("SELECT max(octet_length(payload))::bigint FROM howdah.ready").await, 7);
    assert!(payload(&broker, full[2]).await == [4; LARGE], "payload of a scheduled job");

    let mut worker = broker.worker("l").await;
    let mut got = Vec::new();
    for _ in 0..5 {
        let job = worker.next().await;
        assert!(job.payload.iter().all(|byte| *byte == job.payload[0]) || job.payload.len() < 10);
        got.push((job.id, job.attempt, job.payload.len(), job.payload[0]));
        if (job.id, job.attempt) == (before[0], 1) {
            worker.nack(&job, "again").at_once().sent().await;
        } else {
            assert!(payload(&broker, job.id).await == job.payload, "payload of a leased job");
            worker.ack(&job).sent().await;
        }
    }
    got.sort_unstable();
    let (one, again) = ((before[0], 1, LARGE, 1), (before[0], 2, LARGE, 1));
    let small = |id, length, first| (id, 1, length, first);
    assert_eq!(got, [one, again, small(before[1], 5, b's'), small(full[0], 7, b'b'), small(full[1], LARGE, 3)]);
    // The worker has capacity, so these jobs are enqueued directly into `leased`.
    let direct = broker.enqueue_all([new_job("l", "first"), large("l", 5)]).await;
    let (first, second) = (worker.next().await, worker.next().await);
    assert!((second.id, &second.payload[..]) == (direct[1], &[5; LARGE][..]));
    worker.settle(vec![ack(&first), ack(&second)]).await;
    broker.until("six acks", "SELECT count(*) = 6 FROM howdah.history").await;
    assert_eq!(stored_out_of_line(&broker.database).await, 4);
    assert_eq!(
        broker.count("SELECT sum(octet_length(payload))::bigint FROM howdah.job WHERE state = 'succeeded'").await,
        3 * LARGE as i64 + 17
    );
}

#[tokio::test]
async fn a_window_in_bytes_counts_a_payload_that_is_stored_out_of_line() {
    let broker = TestBroker::start().await;
    broker.enqueue_all((0..6).map(|n| large("l", n))).await;
    let mut worker = broker.worker("l").window(100).bytes(2 * LARGE as i64 + 5).await;
    for n in 0..6 {
        let job = worker.next().await;
        assert_eq!(job.payload[0], n);
        assert!(worker.buffered() < 2, "the window was exceeded");
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn payloads_of_old_days_are_dropped_but_not_those_of_jobs_that_are_still_there() {
    // The broker keeps history for years, because otherwise its own retention could run during the test.
    let broker = TestBroker::start_with(|c| c.history_days = 3_650).await;
    let ids = broker.enqueue_all([large("gone", 1), large("stays", 2)]).await;
    let client = broker.database.connect().await;
    // Deletes the first job, and moves the payloads of both jobs to a day of last month. Retention must drop only the
    // first payload.
    let day = "SELECT ((min(created) AT TIME ZONE 'UTC')::date - 30)::text FROM howdah.payload";
    let day: String = client.query_one(day, &[]).await.expect(day).get(0);
    let old = format!(
        "DELETE FROM howdah.ready WHERE id = {};
         SELECT howdah.make_day_partition('payload', 'created', '{day}');
         UPDATE howdah.payload SET created = created - interval '30 days'",
        ids[0]
    );
    client.batch_execute(&old).await.expect("old");
    let drop = "SELECT howdah.drop_payload_partitions((now() AT TIME ZONE 'UTC')::date - 8)::bigint";
    assert_eq!(broker.database.count_unless_locked(drop).await, 1);
    assert_eq!(stored_out_of_line(&broker.database).await, 1);
    assert!(payload(&broker, ids[1]).await == [2; LARGE]);
    let mut worker = broker.worker("stays").window(1).await;
    assert!(worker.next().await.payload == vec![2; LARGE]);
}

#[tokio::test]
async fn a_type_may_keep_no_succeeded_jobs_or_only_those_that_failed_before() {
    let first = TestBroker::start().await;
    for (task_type, mode) in [("none", HistoryMode::None), ("failures", HistoryMode::Failures)] {
        let settings = TaskTypeSettings { history: mode as i32, ..Default::default() };
        assert_eq!(first.set(task_type, settings).await.history(), mode);
    }
    // Uses a new broker, because it has certainly read the new settings.
    let broker = first.another().await;
    for task_type in ["none", "failures", "full"] {
        let mut worker = broker.worker(task_type).window(1).await;
        let ids = broker.enqueue_all([large(task_type, 1), large(task_type, 2)]).await;
        let job = worker.next().await;
        assert!((job.id, &job.payload[..]) == (ids[0], &[1; LARGE][..]));
        worker.ack(&job).await;
        let job = worker.next().await;
        worker.nack(&job, "once").at_once().await;
        let job = worker.next().await;
        worker.ack(&job).await;
        let kept = format!("SELECT count(*) FROM howdah.job WHERE task_type = '{task_type}'");
        let expected = match task_type {
            "none" => 0,
            "failures" => 1,
            _ => 2,
        };
        assert_eq!(first.count(&kept).await, expected, "{task_type}");
    }
    // Large payloads that history does not keep are not in `howdah.payload` either.
    assert_eq!(stored_out_of_line(&first.database).await, 4);
    let waiting = broker.enqueue("none").await;
    assert_eq!(broker.cancel(&[waiting]).await, [waiting]);
    assert_eq!(first.count("SELECT count(*) FROM howdah.job WHERE state = 'cancelled'").await, 1);
}

#[tokio::test]
async fn junk_in_the_size_of_a_payload_holds_up_no_other_job() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all((0..4).map(|n| new_job("j", format!("{n}")))).await;
    let client = broker.database.connect().await;
    for (id, junk) in ids.iter().zip(["1e300", "-5", "\"x\""]) {
        let sql = format!("UPDATE howdah.ready SET options = '{{\"payload_bytes\": {junk}}}' WHERE id = {id}");
        client.batch_execute(&sql).await.expect("junk");
    }
    let mut worker = broker.worker("j").await;
    // The options of the first job give a payload size that is too large for every window, so the job stays ready.
    for id in &ids[1..] {
        let job = worker.next().await;
        assert_eq!(job.id, *id);
        worker.ack(&job).await;
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 1);
}

#[tokio::test]
async fn a_type_may_keep_only_succeeded_jobs_with_a_result_or_a_failure() {
    let (a, b) = TestBroker::pair().await;
    let mode = HistoryMode::WithoutEmpty as i32;
    let stored = a.set("h", TaskTypeSettings { history: mode, ..Default::default() }).await;
    assert_eq!(stored.history(), HistoryMode::WithoutEmpty);
    a.settings_reach(&b).await;
    let ids = b.enqueue_all(["h", "h", "h", "full"]).await;
    let mut worker = b.worker("h").window(3).await;
    let (empty, result, failed) = (worker.next().await, worker.next().await, worker.next().await);
    worker.ack(&empty).await;
    worker.ack(&result).result("r").await;
    worker.nack(&failed, "once").at_once().await;
    let again = worker.next().await;
    worker.ack(&again).await;
    let mut worker = b.worker("full").window(1).await;
    let full = worker.next().await;
    worker.ack(&full).await;
    let rows =
        a.database.connect().await.query("SELECT id FROM howdah.history ORDER BY id", &[]).await.expect("history");
    let kept: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let mut expected = vec![result.id, failed.id, ids[3]];
    expected.sort_unstable();
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn finished_jobs_are_kept_for_as_many_days_as_their_type_says() {
    let database = database().await;
    let setter = TestBroker::on(&database).await;
    setter.set("short", TaskTypeSettings { history_days: 2, ..Default::default() }).await;
    setter.set("long", TaskTypeSettings { history_days: 30, ..Default::default() }).await;
    setter.set("normal", TaskTypeSettings::default()).await;
    setter.stop().await;
    // Inserts jobs that finished 1, 3, 10 and 40 days ago. One in ten has a payload in `howdah.payload`.
    let sql = "
        SELECT howdah.make_day_partition('history', 'finished', (now() AT TIME ZONE 'UTC')::date - d)
            FROM unnest(ARRAY[1, 3, 10, 40]) d;
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, options, payload)
            SELECT nextval('howdah.job_id'), now() - d * interval '1 day', now() - d * interval '1 day', t.id, 'succeeded', 1, 1, 0,
                   CASE WHEN n % 10 = 0 THEN '{\"payload_bytes\": 5}'::jsonb END, ''
            FROM unnest(ARRAY[1, 3, 10, 40]) d, howdah.task_type t, generate_series(1, 500) n;
        INSERT INTO howdah.payload (id, created, data)
            SELECT id, now(), 'large' FROM howdah.history
            WHERE options IS NOT NULL AND finished > now() - interval '20 days'";
    database.sql(sql).await;
    // A broker runs retention when it starts.
    let broker = TestBroker::on(&database).await;
    let left = "SELECT array_agg(t.name || ' ' || days || ' ' || jobs ORDER BY t.name, days) = ARRAY[
                    'long 1 500', 'long 10 500', 'long 3 500', 'normal 1 500', 'normal 3 500', 'short 1 500']
                FROM (SELECT type_id, extract(day FROM now() - finished)::text AS days, count(*) AS jobs
                      FROM howdah.history GROUP BY 1, 2) h JOIN howdah.task_type t ON t.id = h.type_id";
    broker.until("the jobs within the retention of their types", left).await;
    broker.until("the payloads of these jobs", "SELECT count(*) = 300 FROM howdah.payload").await;
    broker.until("the notes of deleted history", "SELECT count(*) = 2 FROM howdah.history_pruned").await;
    broker.stop().await;
}

#[tokio::test]
async fn old_history_is_dropped_soon_after_its_reader_ends() {
    let database = database().await;
    let old = "SELECT howdah.make_day_partition('history', 'finished', (now() AT TIME ZONE 'UTC')::date - 40)";
    database.sql(old).await;
    let mut reader = database.connect().await;
    let reading = reader.transaction().await.expect("a transaction");
    reading.batch_execute("SELECT count(*) FROM howdah.history").await.expect("a read");
    let broker = TestBroker::on(&database).await;
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    broker.until("a drop that waits for the reader", waits).await;
    broker.until("a drop that has given up", &format!("SELECT NOT ({waits})")).await;
    reading.rollback().await.expect("the end of the read");
    let gone = "SELECT count(*) = 0 FROM pg_class WHERE relname = to_char((now() AT TIME ZONE 'UTC')::date - 40, '\"history_\"YYYYMMDD')";
    broker.until("the drop of the old partition", gone).await;
    broker.stop().await;
}

const DROP_DAYS: &str = "DO $$ DECLARE part regclass; BEGIN
    FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'howdah.history'::regclass AND inhrelid <> 'howdah.history_default'::regclass
    LOOP EXECUTE format('DROP TABLE %s', part); END LOOP; END $$";

/// Returns a query that is true if history has a partition for this day, relative to today.
fn has_day(from_today: i32) -> String {
    format!(
        "SELECT howdah.has_table('history' || to_char((now() AT TIME ZONE 'UTC')::date + {from_today}, '_YYYYMMDD'))"
    )
}

#[tokio::test]
async fn a_broker_starts_and_works_while_a_reader_holds_history_and_partitions_are_missing() {
    let database = database().await;
    database.sql(DROP_DAYS).await;
    let mut reader = database.connect().await;
    let reading = reader.transaction().await.expect("a transaction");
    reading.batch_execute("SELECT count(*) FROM howdah.history").await.expect("a read");
    let broker = TestBroker::on(&database).await;
    let id = broker.enqueue("t").await;
    let mut worker = broker.worker("t").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.history_default").await, 1);
    reading.rollback().await.expect("the end of the read");
    broker.until("the partition of today", &has_day(0)).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.history_default").await, 0);
    assert_eq!(broker.job(id).await.state(), JobState::Succeeded);
    broker.stop().await;
}

#[tokio::test]
async fn a_look_up_by_id_locks_the_days_that_may_have_the_job_and_not_all_of_history() {
    // The broker keeps history for years, because the test moves a job back by 100 days.
    let broker = TestBroker::start_with(|c| c.history_days = 3_650).await;
    let [old, recent] = [broker.enqueue(large("t", 1)).await, broker.enqueue(large("t", 2)).await];
    let mut worker = broker.worker("t").window(2).await;
    for job in worker.take(2).await {
        worker.ack(&job).await;
    }
    let days = "SELECT howdah.make_day_partition('history', 'finished', (now() AT TIME ZONE 'UTC')::date - n),
                       howdah.make_day_partition('payload', 'created', (now() AT TIME ZONE 'UTC')::date - n)
                FROM generate_series(10, 129) n";
    broker.sql(days).await;
    let store = Store::new(&Config::new(&broker.database.url)).expect("store");
    while store.record_id_range().await.expect("ids") {}
    // Moves a job to a day that had no jobs when a broker recorded the day's range of ids.
    let age = format!(
        "UPDATE howdah.history SET finished = finished - interval '100 days' WHERE id = {old};
         UPDATE howdah.payload SET created = created - interval '100 days' WHERE id = {old}"
    );
    broker.sql(&age).await;
    let client = broker.database.connect().await;
    let locks = "SELECT count(DISTINCT c.relname) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                 WHERE l.pid = pg_backend_pid() AND c.relname ~ '^(history|payload)_[0-9]{8}$'";
    for (id, byte) in [(old, 1), (recent, 2)] {
        let job = broker.job(id).await;
        assert_eq!((job.state(), &job.payload[..]), (JobState::Succeeded, &[byte; LARGE][..]));
        client.batch_execute("BEGIN").await.expect("a transaction");
        let found = format!("SELECT octet_length(payload) FROM howdah.job_of(ARRAY[{id}::bigint])");
        assert_eq!(client.query_one(&found, &[]).await.expect(&found).get::<_, i32>(0), LARGE as i32);
        let locked: i64 = client.query_one(locks, &[]).await.expect(locks).get(0);
        assert!(locked <= 20, "{locked} day partitions are locked to read job {id}");
        client.batch_execute("ROLLBACK").await.expect("ROLLBACK");
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_large_default_partition_keeps_its_rows_until_they_expire_and_later_days_get_partitions() {
    let database = database().await;
    let setter = TestBroker::on(&database).await;
    setter.set("t", TaskTypeSettings::default()).await;
    setter.stop().await;
    // Fills the default partition with jobs that finished today, three days ago, and before the start of the retention
    // period.
    let fill = "
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, payload)
        SELECT nextval('howdah.job_id'), now(), now() - d * interval '1 day', t.id, 'succeeded', 1, 1, 0, convert_to(repeat('x', 9000), 'UTF8')
        FROM unnest(ARRAY[0, 3, 100]) d, howdah.task_type t, generate_series(1, 4000)";
    database.sql(&format!("{DROP_DAYS}; {fill}")).await;
    let broker = TestBroker::on(&database).await;
    for day in 1..=3 {
        broker.until("the day partitions of the next days", &has_day(day)).await;
    }
    let excluded = "SELECT count(*) = 0 FROM pg_constraint WHERE conname LIKE 'not\\_%'";
    broker.until("no constraint that excludes a day from the default partition", excluded).await;
    broker.until("no expired rows", "SELECT count(*) = 8000 FROM howdah.history").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.history_default").await, 8_000);
    let id = broker.enqueue("t").await;
    let mut worker = broker.worker("t").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(broker.job(id).await.state(), JobState::Succeeded);
    broker.stop().await;
}

#[tokio::test]
async fn pages_of_a_list_find_the_few_jobs_of_a_type_among_many_of_other_types() {
    let broker = TestBroker::start().await;
    let rare = broker.enqueue_all(["rare", "rare"]).await;
    let mut worker = broker.worker("rare").window(2).await;
    for job in worker.take(2).await {
        worker.ack(&job).await;
    }
    broker.enqueue("other").await;
    let fill = "
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority)
        SELECT nextval('howdah.job_id'), now(), now(), id, 'succeeded', 1, 5, 0 FROM howdah.task_type, generate_series(1, 45000) WHERE name = 'other';
        INSERT INTO howdah.scheduled (id, rank, created, run_at, type_id, attempt, max_attempts, priority, payload)
        SELECT nextval('howdah.job_id'), 0, now(), now() + interval '1 day', id, 0, 5, 0, '' FROM howdah.task_type, generate_series(1, 45000) WHERE name = 'other'";
    broker.sql(fill).await;
    let last = broker.enqueue("rare").delay(HOUR).await;
    for (state, expected) in [
        (JobState::Succeeded, vec![rare[1], rare[0]]),
        (JobState::Scheduled, vec![last]),
        (JobState::Cancelled, vec![]),
    ] {
        let (mut token, mut found) = (String::new(), Vec::new());
        loop {
            let request = ListJobsRequest {
                task_type: "rare".into(),
                state: state.into(),
                page_size: 1,
                page_token: token,
                ..Default::default()
            };
            let page = broker.jobs().list_jobs(request).await.expect("a page").into_inner();
            found.extend(page.jobs.iter().map(|job| job.id));
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, expected, "{state:?}");
    }
}

#[tokio::test]
async fn a_list_that_waited_for_a_lock_has_all_of_its_jobs_on_one_page() {
    let broker = TestBroker::start().await;
    let cancelled = broker.enqueue("t").await;
    broker.cancel(&[cancelled]).await;
    let ready = broker.enqueue("t").await;
    let lock = broker.database.connect().await;
    lock.batch_execute("BEGIN; LOCK TABLE howdah.ready").await.expect("a lock");
    let waits = "SELECT EXISTS (
        SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
               AND query LIKE '-- Returns a page of jobs.%FROM howdah.ready %' AND clock_timestamp() - query_start > interval '200 ms')";
    let let_go = async {
        broker.until("a list that waits", waits).await;
        lock.batch_execute("ROLLBACK").await.expect("no lock");
    };
    let request = ListJobsRequest { task_type: "t".into(), ..Default::default() };
    let mut jobs = broker.jobs();
    let (page, ()) = tokio::join!(jobs.list_jobs(request), let_go);
    let page = page.expect("a page").into_inner();
    let ids: Vec<_> = page.jobs.iter().map(|job| job.id).collect();
    assert_eq!((ids, page.next_page_token.as_str()), (vec![ready, cancelled], ""));
}

#[tokio::test]
async fn calls_and_outcomes_that_wait_for_a_missing_partition_to_be_made_succeed() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("done").await;
    broker.enqueue("done").await;
    let (job, cancelled) = (worker.next().await, broker.enqueue("t").await);
    let today = "(now() AT TIME ZONE 'UTC')::date";
    let drop = format!("DO $$ BEGIN EXECUTE 'DROP TABLE howdah.history_' || to_char({today}, 'YYYYMMDD'); END $$");
    broker.sql(&drop).await;
    let maker = broker.database.connect().await;
    let make = format!("BEGIN; SELECT howdah.make_day_partition('history', 'finished', {today})");
    maker.batch_execute(&make).await.expect(&make);
    let wait = "SELECT count(DISTINCT left(query, 40)) = 2 FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let commit = async {
        broker.until("a call and an outcome that wait", wait).await;
        maker.batch_execute("COMMIT").await.expect("commit");
    };
    let ids = [cancelled];
    let (cancelled_ids, (), ()) = tokio::join!(broker.cancel(&ids), worker.ack(&job), commit);
    assert_eq!(cancelled_ids, ids);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history").await, 2);
}
