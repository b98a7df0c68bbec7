//! Tests which callers may run which jobs again, and in which store the new jobs are.

use howdah_proto::v1::RerunOutcome;

use super::{of, outcomes, rerun_one};
use crate::{access::Guarded, stores::calls::two, support::*};

/// Enqueues a job of a type, and cancels it.
async fn cancelled(broker: &Service, job: impl IntoNewJob) -> i64 {
    let id = broker.enqueue(job.into_new_job()).await;
    assert_eq!(broker.cancel(&[id]).await, [id]);
    id
}

#[tokio::test]
async fn a_caller_runs_again_only_jobs_that_it_may_operate_and_enqueue() {
    let guarded = Guarded::start().await;
    let own = cancelled(&guarded.admin, "mine").await;
    let foreign = cancelled(&guarded.admin, "theirs").await;
    let with_stage = cancelled(&guarded.admin, new_job("mine", "").next_stages(&["theirs"])).await;
    let ann = guarded.caller("ann", &["operate:mine", "enqueue:mine"]).await;
    let jobs = ann.rerun(of(&[own, foreign, with_stage])).await;
    let expected = [(own, RerunOutcome::New), (foreign, RerunOutcome::Unknown), (with_stage, RerunOutcome::Refused)];
    assert_eq!(outcomes(&jobs), expected);
    assert!(jobs[2].problem.contains("enqueue:theirs"), "{jobs:?}");
    let missing = ann.rerun(of(&[foreign + 1_000])).await;
    assert_eq!(missing[0].problem, jobs[1].problem, "a foreign job looks like a missing one");
    let operator = guarded.caller("op", &["operate:mine"]).await;
    let jobs = operator.rerun(of(&[own])).await;
    assert_eq!(jobs[0].outcome(), RerunOutcome::Refused);
    assert!(jobs[0].problem.contains("enqueue:mine"), "{jobs:?}");
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.ready").await, 1);
}

#[tokio::test]
async fn jobs_of_two_stores_run_again_where_they_are() {
    let (shop, mail, broker) = two().await;
    shop.sql("INSERT INTO howdah.task_type (name) VALUES ('order.pay')").await;
    mail.sql("INSERT INTO howdah.task_type (name) VALUES ('mail.send')").await;
    let ids = [cancelled(&broker, "order.pay").await, cancelled(&broker, "mail.send").await];
    let jobs = broker.rerun(of(&[ids[1], ids[0]])).await;
    assert_eq!(outcomes(&jobs), ids.map(|id| (id, RerunOutcome::New)));
    for database in [&shop, &mail] {
        assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 1);
    }
    assert_eq!(rerun_one(&broker, of(&[ids[1]])).await.task_type, "mail.send");
}
