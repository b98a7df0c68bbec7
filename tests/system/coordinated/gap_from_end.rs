//! Tests gaps of limit keys that count from the end of a job. Ends after which a job is ready again at once are tested in
//! `limits_hold`.

use howdah_proto::v1::{ExplainJobRequest, JobReason, JobState, LeasedJob, NewJob, ReasonKind, TaskTypeSettings};

use crate::support::*;

const LOOKED: &str = "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())";

fn keyed(key: &str) -> NewJob {
    new_job("work", key).limit_key(key)
}

/// Starts a broker with a gap of an hour, and with other limits that would allow several jobs.
async fn broker() -> TestBroker {
    let broker = TestBroker::start().await;
    let key_min_gap = Some(wire(HOUR));
    let settings = TaskTypeSettings { key_min_gap, key_gap_from_end: true, key_max_running: 3, ..Default::default() };
    broker.set("work", settings).await;
    broker
}

/// Takes the next job without a stream, so that no worker gets a message when SQL ends its lease.
async fn start(broker: &TestBroker) -> LeasedJob {
    broker.pull("work").wait(MINUTE).lease(HOUR).await.remove(0)
}

async fn an_hour_passes(broker: &TestBroker) {
    broker.sql("UPDATE howdah.limit_state SET check_at = now(), gap_from = gap_from - interval '1 hour'").await;
    broker.until("the check of the limits", LOOKED).await;
}

async fn reason(broker: &TestBroker, id: i64) -> JobReason {
    let request = ExplainJobRequest { id };
    broker.jobs().explain_job(request).await.expect("reasons").into_inner().reasons.remove(0)
}

/// Ends the attempt of a job.
async fn end(broker: &TestBroker, way: &str, job: &LeasedJob) {
    let &LeasedJob { id, token, .. } = job;
    let outcome = match way {
        "ack" => ack(job),
        "nack" => nack(job, "no").retry_after(HOUR),
        "last nack" => nack(job, "no").no_retry(),
        "snooze" => snooze(job, HOUR),
        "cancel" => {
            broker.cancel(&[id]).await;
            return;
        }
        sql => {
            let call = sql.replace("ID", &id.to_string()).replace("TOKEN", &token.to_string());
            broker.sql(&format!("SELECT howdah.{call}")).await;
            return;
        }
    };
    broker.settle(vec![outcome]).await;
}

#[tokio::test]
async fn however_an_attempt_ends_the_gap_counts_from_its_end() {
    let broker = broker().await;
    for way in [
        "ack",
        "nack",
        "last nack",
        "snooze",
        "cancel",
        "complete(ID, TOKEN)",
        "fail(ID, TOKEN, 'no', '1 hour')",
        "snooze(ID, TOKEN, '1 hour')",
        "cancel(ID)",
        "end_lease(ID)",
        "end_lease(ID, 'no')",
    ] {
        let jobs = broker.enqueue_all([keyed(way), keyed(way)]).await;
        let first = start(&broker).await;
        assert_eq!(first.id, jobs[0], "{way}");
        let began = "SELECT count(*) FROM howdah.limit_state WHERE gap_from > now() - interval '30 minutes'";
        assert_eq!(broker.count(began).await, 0, "{way}: a gap has begun before the end");
        end(&broker, way, &first).await;
        broker.until("the check of the limits", LOOKED).await;
        assert_eq!(broker.count(began).await, 1, "{way}: no gap has begun at the end");
        assert_eq!(broker.state(jobs[1]).await, JobState::Waiting, "{way}");
        an_hour_passes(&broker).await;
        let second = start(&broker).await;
        assert_eq!(second.id, jobs[1], "{way}");
        broker.settle(vec![ack(&second)]).await;
        broker.sql(&format!("SELECT howdah.cancel({})", first.id)).await;
        an_hour_passes(&broker).await;
    }
}

#[tokio::test]
async fn the_next_job_waits_for_the_end_of_the_running_one_and_then_for_the_gap() {
    let broker = broker().await;
    broker.limit_key("work", "x", 2).await;
    let jobs = broker.enqueue_all([keyed("x"), keyed("x"), keyed("y")]).await;
    let first = start(&broker).await;
    assert_eq!((first.id, start(&broker).await.id), (jobs[0], jobs[2]));
    an_hour_passes(&broker).await;
    let waits = reason(&broker, jobs[1]).await;
    assert_eq!((waits.kind(), waits.jobs[0].id, waits.until), (ReasonKind::LimitKeyGap, first.id, None));
    broker.settle(vec![ack(&first)]).await;
    broker.until("the check of the limits", LOOKED).await;
    let waits = reason(&broker, jobs[1]).await;
    assert_eq!((waits.kind(), waits.jobs.len()), (ReasonKind::LimitKeyGap, 0), "{waits:?}");
    assert!(waits.text.contains("after the last end") && waits.until.is_some(), "{waits:?}");
    an_hour_passes(&broker).await;
    assert_eq!(start(&broker).await.id, jobs[1]);
}

#[tokio::test]
async fn a_job_that_is_cancelled_before_it_starts_begins_no_gap() {
    let broker = broker().await;
    let jobs = broker.enqueue_all((0..3).map(|_| keyed("x"))).await;
    broker.until_state(jobs[0], JobState::Ready).await;
    broker.cancel(&jobs[..2]).await;
    assert_eq!(start(&broker).await.id, jobs[2]);
}
