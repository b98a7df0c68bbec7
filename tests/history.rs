//! What is written once, what is kept of a finished job, and for how long.

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
    assert_eq!(stored_out_of_line(&broker.database).await, 3, "the payload of a job that was not stored");
    assert_eq!(broker.count("SELECT max(octet_length(payload))::bigint FROM howdah.ready").await, 7);
    assert!(payload(&broker, full[2]).await == [4; LARGE], "of a scheduled job");

    let mut worker = broker.worker("l").await;
    let mut got = Vec::new();
    for _ in 0..5 {
        let job = worker.next().await;
        assert!(job.payload.iter().all(|byte| *byte == job.payload[0]) || job.payload.len() < 10);
        got.push((job.id, job.attempt, job.payload.len(), job.payload[0]));
        if (job.id, job.attempt) == (before[0], 1) {
            worker.nack(&job, "again").at_once().sent().await;
        } else {
            assert!(payload(&broker, job.id).await == job.payload, "of a leased job");
            worker.ack(&job).sent().await;
        }
    }
    got.sort_unstable();
    let (one, again) = ((before[0], 1, LARGE, 1), (before[0], 2, LARGE, 1));
    let small = |id, length, first| (id, 1, length, first);
    assert_eq!(got, [one, again, small(before[1], 5, b's'), small(full[0], 7, b'b'), small(full[1], LARGE, 3)]);
    // Directly to the worker.
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
    // It keeps them for years itself: its own cleaning, which begins at some time after its start, leaves them to us.
    let broker = TestBroker::start_with(|c| c.history_days = 3_650).await;
    let ids = broker.enqueue_all([large("gone", 1), large("stays", 2)]).await;
    let client = broker.database.connect().await;
    // As if both were of last month, and the first had been dropped with its history since. The day may be over.
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
    // A broker that starts now has read them.
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
    // What is not kept is not written out of line either.
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
    // The first seems too large for any window: it stays where it is.
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
    // Finished 1, 3, 10 and 40 days ago; one in ten with a payload that is out of line.
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
    // The cleaning comes with the start.
    let broker = TestBroker::on(&database).await;
    let left = "SELECT array_agg(t.name || ' ' || days || ' ' || jobs ORDER BY t.name, days) = ARRAY[
                    'long 1 500', 'long 10 500', 'long 3 500', 'normal 1 500', 'normal 3 500', 'short 1 500']
                FROM (SELECT type_id, extract(day FROM now() - finished)::text AS days, count(*) AS jobs
                      FROM howdah.history GROUP BY 1, 2) h JOIN howdah.task_type t ON t.id = h.type_id";
    broker.until("what is to be kept", left).await;
    broker.until("their payloads", "SELECT count(*) = 300 FROM howdah.payload").await;
    broker.until("a note of what was done", "SELECT count(*) = 2 FROM howdah.history_pruned").await;
    broker.stop().await;
}

#[tokio::test]
async fn old_history_that_somebody_reads_is_dropped_soon_after() {
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
    broker.until("the end of the partition", gone).await;
    broker.stop().await;
}

#[tokio::test]
async fn jobs_among_many_of_other_types_are_listed_a_bounded_look_at_a_time() {
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
async fn a_list_that_had_to_wait_has_all_of_its_few_jobs_on_one_page() {
    let broker = TestBroker::start().await;
    let cancelled = broker.enqueue("t").await;
    broker.cancel(&[cancelled]).await;
    let ready = broker.enqueue("t").await;
    let lock = broker.database.connect().await;
    lock.batch_execute("BEGIN; LOCK TABLE howdah.ready").await.expect("a lock");
    let waits = "SELECT EXISTS (
        SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
               AND query LIKE '-- A page of ready jobs%' AND clock_timestamp() - query_start > interval '200 ms')";
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
