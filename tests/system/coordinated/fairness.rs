//! Tests fair keys: tenants are served round-robin, however many jobs one of them has.

use howdah_proto::v1::NewJob;

use crate::support::*;

fn fair_job(tenant: &str) -> NewJob {
    new_job("share", tenant.to_owned()).fair_key(tenant)
}

#[tokio::test]
async fn tenants_take_turns() {
    let broker = TestBroker::start().await;
    broker.enqueue_all((0..50).map(|_| fair_job("a"))).await;
    broker.enqueue_all((0..3).map(|_| fair_job("b"))).await;
    broker.enqueue_all((0..3).map(|_| fair_job("c"))).await;
    let mut worker = broker.worker("share").window(100).await;
    let mut first = Vec::new();
    for _ in 0..9 {
        first.push(String::from_utf8(worker.next().await.payload.to_vec()).unwrap());
    }
    for tenant in ["a", "b", "c"] {
        assert_eq!(first.iter().filter(|t| *t == tenant).count(), 3, "{first:?}");
    }
}

/// One tenant has 100,000 ready jobs, then 99 tenants enqueue 100 jobs each. All jobs of the 99 tenants must be among the next
/// 20,000 deliveries.
#[tokio::test]
async fn a_flood_of_one_tenant_does_not_hold_up_the_others() {
    // Enqueueing ten thousand jobs with one request may exceed the default timeout on a slow machine.
    let broker = TestBroker::start_with(|config| config.database_timeout = PATIENCE).await;
    for _ in 0..10 {
        broker.enqueue_all((0..10_000).map(|_| fair_job("flood"))).await;
    }
    for tenant in 0..99 {
        broker.enqueue_all((0..100).map(|_| fair_job(&format!("t{tenant}")))).await;
    }
    let among_the_next = broker
        .count(
            "SELECT count(*) FROM (SELECT options FROM howdah.ready ORDER BY rank, id LIMIT 20000) r
             WHERE options ->> 'fair_key' <> 'flood'",
        )
        .await;
    assert_eq!(among_the_next, 9_900);
}

#[tokio::test]
async fn priority_goes_before_fairness() {
    let broker = TestBroker::start().await;
    broker.enqueue_all((0..10).map(|_| fair_job("a"))).await;
    broker.enqueue(fair_job("b").priority(5)).await;
    broker.enqueue(fair_job("a").priority(-5)).await;
    let mut worker = broker.worker("share").window(100).await;
    let mut order = Vec::new();
    for _ in 0..12 {
        order.push(worker.next().await.payload);
    }
    assert_eq!(order[11], "b");
    assert!(order[..11].iter().all(|payload| payload == "a"));
}

/// Two SQL statements store jobs with fair keys: one for requests without any other option, and a general one. Both must assign
/// the same ranks.
#[tokio::test]
async fn fair_ranks_are_the_same_if_a_job_of_the_request_has_further_options() {
    let broker = TestBroker::start().await;
    let large = "l".repeat(2_000);
    let jobs = |task_type: &'static str| {
        let keys = ["a", "a", "a", "b", "", "a", "c", "b", "a"].into_iter().enumerate();
        let mut jobs: Vec<_> = keys.map(|(n, key)| new_job(task_type, format!("{n}")).fair_key(key)).collect();
        jobs[3].payload = large.clone().into();
        jobs[6].priority = 3;
        jobs
    };
    let mut requests_more = jobs("asks-more");
    requests_more[8] = requests_more[8].clone().tags(&["tagged"]);
    // Stops the broker from summing up statistics, because the test reads the changes.
    broker.sql("UPDATE howdah.statistics_sum SET summed = 'infinity'").await;
    let mut orders = Vec::new();
    for (task_type, jobs) in [("share", jobs("share")), ("asks-more", requests_more)] {
        let stored = broker.enqueue_all(jobs).await;
        assert!(stored.is_sorted(), "the ids are not in the order of the jobs: {stored:?}");
        let mut worker = broker.worker(task_type).window(100).await;
        let order: Vec<_> = worker.take(9).await.into_iter().map(|job| job.payload).collect();
        orders.push(order);
        let enqueued = format!(
            "SELECT sum(s.enqueued)::bigint FROM howdah.statistics_change s JOIN howdah.task_type t ON t.id = s.type_id WHERE t.name = '{task_type}'"
        );
        assert_eq!(broker.count(&enqueued).await, 9, "{task_type}");
    }
    assert_eq!(orders[0], orders[1]);
    let expected: Vec<_> = ["0", &large, "1", "7", "2", "5", "8"].map(String::from).into();
    let of_keys: Vec<_> = orders[0].iter().filter(|payload| **payload != "4" && **payload != "6").cloned().collect();
    assert_eq!(of_keys, expected, "jobs of the fair keys a and b");
    assert_eq!(orders[0][8], "6", "a job of lower priority did not come last");
}
