//! Tests moves of jobs whose options relate them to other jobs or to their type: fair keys, stages, fallbacks, held keys, keys
//! of dead jobs. Also tests a deleted target type.

use howdah_proto::v1::EnqueueOutcome;

use super::{
    moved::{moved, to},
    *,
};

async fn type_of(broker: &Service, id: i64) -> String {
    broker.job(id).await.task_type
}

/// Runs the next job of a type, which must have this id, and acks it.
async fn runs(broker: &Service, task_type: &str, id: i64) {
    let mut worker = broker.worker(task_type).window(1).await;
    let job = worker.next().await;
    assert_eq!((job.id, &*job.task_type), (id, task_type));
    worker.ack(&job).await;
}

/// Runs the next job of a type, which must have this id, and fails it for good.
async fn fails(broker: &Service, task_type: &str, id: i64) {
    let mut worker = broker.worker(task_type).window(1).await;
    let job = worker.next().await;
    assert_eq!((job.id, &*job.task_type), (id, task_type));
    worker.nack(&job, "no").no_retry().await;
}

#[tokio::test]
async fn jobs_with_a_fair_key_take_their_turns_in_the_other_type() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec![new_job("b", "x").fair_key("x"); 10]).await;
    broker.enqueue_all(vec![new_job("a", "y").fair_key("y"); 2]).await;
    // Gives the jobs of `a` later ranks than all jobs of `b`. The move must compute new ranks from the fair key.
    let later = "UPDATE howdah.ready SET rank = rank + 60000000
                 WHERE type_id = (SELECT id FROM howdah.task_type WHERE name = 'a')";
    broker.sql(later).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 2);
    let mut worker = broker.worker("b").window(12).await;
    let order: Vec<_> = worker.take(12).await.into_iter().map(|job| job.payload).collect();
    assert_eq!(order[..4].iter().filter(|payload| *payload == "y").count(), 2, "{order:?}");
}

#[tokio::test]
async fn a_job_in_a_later_stage_goes_on_from_the_other_type_and_keeps_the_key_of_the_first_stage() {
    let broker = TestBroker::start().await;
    let staged = |first: &str| new_job(first, "url").key("k").next_stages(&["parse", "index"]);
    let id = broker.enqueue(staged("fetch")).await;
    runs(&broker, "fetch", id).await;
    assert_eq!(moved(&broker, to("parse", "parse.slow")).await.done_count, 1);
    assert_eq!(type_of(&broker, id).await, "parse.slow");
    assert_eq!(broker.enqueue(staged("fetch")).await, id, "the moved job holds its key in the type of its first stage");
    let other = broker.enqueue(new_job("parse.slow", "").key("k").delay(HOUR)).await;
    assert_ne!(other, id, "each type has a separate key space");
    runs(&broker, "parse.slow", id).await;
    runs(&broker, "index", id).await;
    assert_eq!(broker.state(id).await, JobState::Succeeded);
    let next = broker.enqueue(staged("fetch")).await;
    assert_ne!(next, id, "a finished job still holds its key");

    // Moves a job in its first stage. From then on, the job holds its key in the new type, also in later stages.
    assert_eq!(moved(&broker, to("fetch", "load")).await.done_count, 1);
    runs(&broker, "load", next).await;
    assert_eq!(type_of(&broker, next).await, "parse");
    assert_eq!(broker.enqueue(staged("load")).await, next);
    assert_ne!(broker.enqueue(staged("fetch")).await, next);
}

#[tokio::test]
async fn a_job_moved_from_a_later_stage_in_its_first_type_keeps_its_key_in_that_type() {
    let broker = TestBroker::start().await;
    let staged = || new_job("a", "").key("k").next_stages(&["b", "a"]);
    let id = broker.enqueue(staged()).await;
    runs(&broker, "a", id).await;
    runs(&broker, "b", id).await;
    assert_eq!(moved(&broker, to("a", "c")).await.done_count, 1);
    assert_eq!(broker.enqueue(staged()).await, id, "the moved job holds its key in the type of its first stage");
    runs(&broker, "c", id).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_key").await, 0);
}

#[tokio::test]
async fn a_job_falls_back_to_a_third_type_and_not_to_the_one_that_it_is_in() {
    let broker = TestBroker::start().await;
    let same = broker.enqueue(new_job("a", "").fallback("b")).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 1);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready WHERE options ? 'fallback'").await, 0);
    fails(&broker, "b", same).await;
    broker.until_state(same, JobState::Dead).await;
    assert_eq!(type_of(&broker, same).await, "b");

    let third = broker.enqueue(new_job("a", "").fallback("c")).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 1);
    fails(&broker, "b", third).await;
    runs(&broker, "c", third).await;
    assert_eq!(broker.state(third).await, JobState::Succeeded);
}

#[tokio::test]
async fn when_the_other_type_is_deleted_meanwhile_the_jobs_stay_and_the_operation_says_so() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec!["a"; 600]).await;
    let bulk = broker.start_bulk(BulkSpec { max_jobs_per_second: 1, ..to("a", "b") }).await;
    broker.begun_bulk(bulk.id).await;
    let paused = broker.pause_bulk(bulk.id).await;
    assert_eq!(paused.state(), BulkState::Paused);
    // Deletes the target type: cancels the jobs that were moved to it, and simulates that it was unused for eight days.
    broker.ended_bulk(broker.start_bulk(spec(BulkOperation::Cancel, "b")).await.id).await;
    let unused = "SELECT howdah.delete_unused_task_types('1 week', 10);
                  UPDATE howdah.task_type SET unused_since = now() - interval '8 days' WHERE name = 'b';
                  SELECT howdah.delete_unused_task_types('1 week', 10)";
    broker.sql(unused).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.task_type WHERE name = 'b'").await, 0);
    broker.resume_bulk(bulk.id).await;
    broker.hurry(bulk.id).await;
    let ended = broker.ended_bulk(bulk.id).await;
    assert_eq!((ended.state(), ended.done_count), (BulkState::Completed, paused.done_count));
    assert!(ended.skipped_count >= 600 - paused.done_count, "{ended:?}");
    let expected = "was not moved: the task type b has been deleted meanwhile; start the operation again";
    assert!(ended.problem.ends_with(expected), "{}", ended.problem);
    let stayed = broker.count("SELECT count(*) FROM howdah.job WHERE task_type = 'a' AND state = 'ready'").await;
    assert_eq!(stayed, 600 - paused.done_count);
    // A new operation creates the type again. It starts at a new broker, because brokers cache task types for an hour.
    let another = TestBroker::on(&broker.database).await;
    assert_eq!(moved(&another, to("a", "b")).await.done_count, stayed);
}

#[tokio::test]
async fn a_key_hold_moves_with_its_job_and_a_key_hold_in_the_new_type_prevents_the_move() {
    let broker = TestBroker::start().await;
    let held = |task_type: &str| new_job(task_type, "").key("k").key_hold(HOUR);
    let id = broker.enqueue(held("a")).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 1);
    runs(&broker, "b", id).await;
    let again = broker.enqueue(held("b")).outcome().await;
    assert_eq!((again.id, again.outcome()), (id, EnqueueOutcome::Kept), "the key hold has not ended");
    let next = broker.enqueue(held("a")).await;
    assert_ne!(next, id);

    let bulk = moved(&broker, to("a", "b")).await;
    assert_eq!((bulk.done_count, bulk.skipped_count), (0, 1));
    assert_eq!(bulk.problem, format!("job {next} was not moved: job {id} holds its key in b"));
    assert_eq!(type_of(&broker, next).await, "a");
    broker.sql(&format!("UPDATE howdah.job_key SET held_until = now() WHERE job_id = {id}")).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 1);
    assert_eq!(broker.enqueue(held("b")).await, next);
}

#[tokio::test]
async fn the_key_version_of_a_moved_job_counts_in_the_new_type() {
    let broker = TestBroker::start().await;
    let version = |task_type: &str, version| new_job(task_type, "").key("k").replace_if_newer(version);
    let id = broker.enqueue(version("a", 5)).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 1);
    for (newer, expected) in [(4, EnqueueOutcome::Stale), (6, EnqueueOutcome::Replaced)] {
        let outcome = broker.enqueue(version("b", newer)).outcome().await;
        assert_eq!((outcome.id, outcome.outcome()), (id, expected), "version {newer}");
    }
}

#[tokio::test]
async fn a_dead_job_moves_without_its_key_and_takes_it_when_it_is_retried() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("a").key("k").await;
    fails(&broker, "a", id).await;
    broker.until_state(id, JobState::Dead).await;
    let (here, there) =
        (broker.enqueue("a").key("k").delay(HOUR).await, broker.enqueue("b").key("k").delay(HOUR).await);
    let dead = BulkSpec { state: JobState::Dead as i32, ..to("a", "b") };
    let bulk = moved(&broker, dead).await;
    assert_eq!((bulk.done_count, bulk.skipped_count), (1, 0), "{}", bulk.problem);
    assert_eq!((type_of(&broker, id).await, broker.state(id).await), ("b".into(), JobState::Dead));
    for (task_type, holder) in [("a", here), ("b", there)] {
        assert_eq!(broker.enqueue(task_type).key("k").await, holder, "keys of {task_type} stay");
    }
    assert_eq!(broker.retry(&[id]).await, [0; 0], "another job of the new type holds the key");
    broker.cancel(&[there]).await;
    assert_eq!(broker.retry(&[id]).await, [id]);
    assert_eq!(broker.enqueue("b").key("k").await, id);
    assert_eq!(broker.enqueue("a").key("k").await, here);
}
