//! Tests moving a task type from one store to another.

use howdah_cli::postgres::StopMode;
use howdah_proto::v1::{
    CreateScheduleRequest, DrainStoreRequest, ExplainJobRequest, GetScheduleRequest, JobState, MovePhase,
    MoveTypeRequest, MoveTypeResponse, ReasonKind, Schedule, SettleStatus, TaskTypeSettings, schedule::Plan,
};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{
    calls::{at, enqueue_at, jobs, store_of, two},
    empty,
    unavailable::second_server,
};
use crate::support::*;

pub fn to(store: &str) -> MoveTypeRequest {
    MoveTypeRequest { task_type: "t".into(), to_store: store.into(), from_store: String::new() }
}

/// Moves the type `t` to a store, and returns the last response.
pub async fn move_to(broker: &Service, store: &str) -> Result<MoveTypeResponse, Status> {
    let mut answers = with_timeout("an answer", broker.stores().move_type(to(store))).await?.into_inner();
    let mut last = MoveTypeResponse::default();
    while let Some(answer) = with_timeout("progress", answers.message()).await? {
        last = answer;
    }
    Ok(last)
}

/// Moves the type `t` to a store, which must succeed.
pub async fn moved(broker: &Service, store: &str) -> MoveTypeResponse {
    let last = move_to(broker, store).await.expect("a move");
    assert_eq!(last.phase(), MovePhase::Done, "{last:?}");
    last
}

pub async fn number(database: &TestDatabase, sql: &str) -> i64 {
    database.count(sql).await
}

fn reason(status: &Status) -> (Code, String) {
    (status.code(), status.get_details_error_info().map(|info| info.reason).unwrap_or_default())
}

#[tokio::test]
async fn jobs_move_with_all_that_they_have_and_calls_follow_their_old_ids() {
    let (shop, mail, broker) = two().await;
    let ready = enqueue_at(&broker, "shop", "t").await;
    let large = vec![7; 5_000];
    let rich = broker.enqueue("t").payload(large.clone()).key("k").tags(&["a"]).header("h", "v").priority(3).await;
    let later = broker.enqueue("t").delay(HOUR).fallback("t.failed").await;
    let dead = broker.enqueue("t").priority(-1).max_attempts(1).await;
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    assert_eq!(job.id, dead);
    worker.nack(&job, "no").await;
    drop(worker);
    broker.until_state(dead, JobState::Dead).await;
    broker.set("t", TaskTypeSettings { max_attempts: 7, ..TaskTypeSettings::default() }).await;
    let done = moved(&broker, "mail").await;
    assert_eq!((done.moved_count, done.staying_count, done.from_store.as_str()), (4, 0, "shop"), "{done:?}");
    assert_eq!(number(&shop, "SELECT count(*) FROM howdah.job").await, 0);
    assert_eq!(number(&shop, "SELECT count(*) FROM howdah.job_key").await, 0);
    assert_eq!(number(&mail, "SELECT count(*) FROM howdah.job").await, 4);
    assert_eq!(number(&mail, "SELECT max_attempts::bigint FROM howdah.task_type WHERE name = 't'").await, 7);
    for (id, state) in [(ready, JobState::Ready), (later, JobState::Scheduled), (dead, JobState::Dead)] {
        let job = broker.job(id).await;
        assert_eq!((store_of(job.id), job.state()), (1, state), "{job:?}");
    }
    let job = broker.job(rich).await;
    assert_eq!(
        (job.priority, job.key.as_str(), &job.payload[..], &job.tags[..]),
        (3, "k", &large[..], &["a".to_owned()][..])
    );
    assert_eq!(job.headers["h"], "v");
    assert!(job.create_time.is_some());
    // New jobs of the type are stored in the new store, where the moved job still holds its key.
    assert_eq!(store_of(broker.enqueue("t").await), 1);
    assert_eq!(broker.enqueue("t").key("k").await, job.id);
    // A call with the old id of a moved job finds the job, and the response has the old id.
    assert_eq!(broker.cancel(&[later, ready]).await.len(), 2);
    assert_eq!(broker.state(later).await, JobState::Cancelled);
    let waited = broker.wait(later).await;
    assert_eq!((waited.id, waited.state()), (later, JobState::Cancelled));
    let explained = with_timeout("an answer", broker.jobs().explain_job(ExplainJobRequest { id: rich })).await.unwrap();
    assert_eq!(explained.into_inner().id, job.id);
    assert_eq!(broker.retry(&[broker.job(dead).await.id]).await.len(), 1);
}

#[tokio::test]
async fn coordinated_jobs_stay_in_the_old_store_and_run_there() {
    let (_shop, mail, broker) = two().await;
    enqueue_at(&broker, "shop", "t").await;
    let limited = broker.enqueue("t").limit_key("l").await;
    let staged = broker.enqueue("t").next_stages(&["t.next"]).await;
    let first = broker.enqueue("t").await;
    let after = broker.enqueue("t").after(&[first]).await;
    // A job whose dependencies have ended stays near their results.
    let ended = enqueue_at(&broker, "shop", "part").await;
    let mut parts = broker.worker("part").await;
    let part = parts.next().await;
    parts.ack(&part).result("one").await;
    let joins = broker.enqueue("t").after(&[ended]).await;
    let done = moved(&broker, "mail").await;
    let mut stay = done.staying_ids.clone();
    stay.sort_unstable();
    assert_eq!(
        (done.moved_count, done.staying_count, stay),
        (1, 5, vec![limited, staged, first, after, joins]),
        "{done:?}"
    );
    let mut worker = broker.worker("t").window(10).await;
    let mut seen = Vec::new();
    for _ in 0..6 {
        let job = worker.next().await;
        if job.id == joins {
            assert_eq!(&job.after[0].result[..], b"one");
        }
        assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
        seen.push(job.id);
    }
    seen.sort_unstable();
    assert_eq!(&seen[..5], [limited, staged, first, after, joins]);
    assert_eq!(number(&mail, "SELECT count(*) FROM howdah.history").await, 1);
}

#[tokio::test]
async fn limit_keys_have_their_own_limits_and_pauses_in_the_new_store() {
    let (shop, mail, broker) = two().await;
    enqueue_at(&broker, "shop", "t").await;
    broker.limit_key("t", "l", 2).await;
    broker.pause_key("t", "p").await;
    shop.sql(
        "INSERT INTO howdah.limit_state (type_id, limit_key, max_running, paused_until)
              SELECT id, 'many' || n, n, now() + n * interval '1 hour' FROM howdah.task_type, generate_series(1, 1500) n
              WHERE name = 't'",
    )
    .await;
    // Limits of a type that the new store has already are replaced, as the settings of the type are.
    mail.sql("SELECT howdah.enqueue('t')").await;
    mail.sql(
        "INSERT INTO howdah.limit_state (type_id, limit_key, max_running)
              SELECT id, unnest(ARRAY['l', 'own']), 9 FROM howdah.task_type WHERE name = 't'",
    )
    .await;
    moved(&broker, "mail").await;
    let limits = "SELECT sum(max_running)::bigint FROM howdah.limit_state WHERE limit_key = ANY (ARRAY['l', 'own'])";
    assert_eq!((number(&shop, limits).await, number(&mail, limits).await), (2, 2 + 9));
    let paused = "SELECT count(*) FROM howdah.limit_state WHERE limit_key = 'p' AND paused_until = 'infinity'";
    assert_eq!(number(&mail, paused).await, 1);
    let many = "SELECT count(*) FROM howdah.limit_state WHERE limit_key = 'many' || max_running
                AND round(extract(epoch FROM paused_until - now()) / 3600) = max_running";
    assert_eq!(number(&mail, many).await, 1_500);
    // A new job is subject to the pause of its key.
    let waiting = broker.enqueue("t").limit_key("p").await;
    assert_eq!((store_of(waiting), broker.state(waiting).await), (1, JobState::Waiting));
}

#[tokio::test]
async fn a_job_whose_key_is_held_in_the_other_store_stays() {
    let (shop, mail, broker) = two().await;
    let here = enqueue_at(&broker, "shop", "t").await;
    let keyed = broker.enqueue("t").key("k").await;
    mail.sql("SELECT howdah.enqueue('t', 'x'::text, key => 'k')").await;
    let done = moved(&broker, "mail").await;
    assert_eq!((done.moved_count, done.staying_count, &done.staying_ids[..]), (1, 1, &[keyed][..]), "{done:?}");
    assert_eq!(broker.job(keyed).await.id, keyed);
    assert_ne!(broker.job(here).await.id, here);
    let holds = format!("SELECT count(*) FROM howdah.job_key WHERE job_id = {keyed}");
    assert_eq!(number(&shop, &holds).await, 1);
}

#[tokio::test]
async fn schedules_move_and_fire_in_the_other_store() {
    let (shop, mail, broker) = two().await;
    enqueue_at(&broker, "shop", "t").await;
    let schedule = Some(Schedule {
        name: "s".into(),
        template: Some(new_job("t", "p")),
        plan: Some(Plan::Period(wire(HOUR))),
        start_time: Some(far().into()),
        ..Schedule::default()
    });
    broker.schedules().create_schedule(CreateScheduleRequest { schedule }).await.unwrap();
    assert_eq!(number(&shop, "SELECT count(*) FROM howdah.schedule").await, 1);
    let done = moved(&broker, "mail").await;
    assert_eq!(done.moved_schedule_count, 1);
    assert_eq!(number(&shop, "SELECT count(*) FROM howdah.schedule").await, 0);
    let found = broker.schedules().get_schedule(GetScheduleRequest { name: "s".into() }).await.unwrap().into_inner();
    assert_eq!(found.schedule.unwrap().template.unwrap().payload, "p");
    mail.sql("UPDATE howdah.schedule SET next_planned = now(), next_at = now()").await;
    mail.until("a job of the schedule", "SELECT count(*) = 2 FROM howdah.job").await;
}

#[tokio::test]
async fn an_impossible_move_is_refused_before_anything_is_changed() {
    let (shop, mail, broker) = two().await;
    enqueue_at(&broker, "shop", "t").await;
    let request = DrainStoreRequest { store: "mail".into() };
    with_timeout("a closed store", broker.stores().drain_store(request)).await.unwrap();
    let refused = move_to(&broker, "mail").await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "STORE_CLOSED".into()));
    assert!(refused.message().contains("`howdah store open mail`"), "{refused}");
    for (store, expected) in [("nowhere", "this broker serves shop, mail"), ("shop", "only in store shop")] {
        let refused = move_to(&broker, store).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(expected), "{refused}");
    }
    for database in [&shop, &mail] {
        let touched = "SELECT (SELECT count(*) FROM howdah.type_move) + (SELECT count(*) FROM howdah.type_arrival)
                              + (SELECT count(*) FROM howdah.audit WHERE method = 'MoveType')";
        assert_eq!(number(database, touched).await, 0);
    }
}

#[tokio::test]
async fn a_move_is_in_the_audit_and_only_one_goes_on_at_a_time() {
    let (shop, _mail, broker) = two().await;
    let running = enqueue_at(&broker, "shop", "t").await;
    let mut worker = broker.worker("t").window(1).await;
    let job = worker.next().await;
    assert_eq!(job.id, running);
    let mut answers = with_timeout("an answer", broker.stores().move_type(to("mail"))).await.unwrap().into_inner();
    // While a job still runs in the old store, the move waits for it, and the new store already runs jobs of the type.
    loop {
        let at = with_timeout("progress", answers.message()).await.unwrap().expect("the move continues");
        if at.phase() == MovePhase::Following {
            assert_eq!((at.running_count, at.moved_count), (1, 0));
            break;
        }
    }
    let refused = move_to(&broker, "mail").await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "TYPE_MOVING".into()));
    // The new store runs jobs before the move has ended.
    let id = broker.enqueue("t").await;
    assert_eq!(store_of(id), 1);
    let mut other = broker.worker("t").await;
    let next = other.next().await;
    assert_eq!(next.id, id);
    other.ack(&next).await;
    drop(other);
    // The retried job is moved to the new store too.
    worker.nack(&job, "again").at_once().await;
    let again = worker.next().await;
    assert_eq!((store_of(again.id), again.attempt), (1, 2));
    assert_eq!(broker.job(running).await.id, again.id);
    worker.ack(&again).await;
    let mut last = MoveTypeResponse::default();
    while let Some(at) = with_timeout("progress", answers.message()).await.unwrap() {
        last = at;
    }
    assert_eq!((last.phase(), last.moved_count), (MovePhase::Done, 1));
    let audited =
        "SELECT count(*) FROM howdah.audit WHERE method = 'MoveType' AND types = ARRAY['t'] AND ids = ARRAY['mail']";
    assert_eq!(number(&shop, audited).await, 1);
}

#[tokio::test]
async fn a_move_whose_caller_has_left_is_explained_and_continues_at_another_broker() {
    let (shop, mail, broker) = two().await;
    let other = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    let ids: Vec<i64> = {
        enqueue_at(&broker, "shop", "t").await;
        shop.sql("SELECT howdah.enqueue_many('t', array_fill('x'::text, ARRAY[3000]))").await;
        vec![1, 2, 3_001]
    };
    // The gate blocks the statement that stores moved jobs in the new store.
    let gate = gate(&mail, "arrived", "INSERT").await;
    let mut answers = with_timeout("an answer", broker.stores().move_type(to("mail"))).await.unwrap().into_inner();
    loop {
        let at = with_timeout("progress", answers.message()).await.unwrap().expect("the move continues");
        if at.phase() == MovePhase::Moving || at.phase() == MovePhase::Pausing {
            break;
        }
    }
    gate.reached(&mail).await;
    drop(answers);
    let refused = broker.jobs().get_job(howdah_proto::v1::GetJobRequest { id: ids[0] }).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "TYPE_MOVING".into()));
    gate.open(&mail).await;
    shop.until("a move without a broker that works on it", "SELECT owner IS NULL FROM howdah.type_move").await;
    // An explanation of a job that has not moved yet names the interrupted move.
    let explain = ExplainJobRequest { id: ids[2] };
    let explained = with_timeout("an answer", other.jobs().explain_job(explain)).await.unwrap().into_inner();
    let first = &explained.reasons[0];
    assert_eq!(first.kind(), ReasonKind::TypeMoving, "{explained:?}");
    assert!(first.remedy.contains("`howdah type move t --to mail`"), "{first:?}");
    let refused = move_to(&other, "shop").await.unwrap_err();
    assert!(
        refused.message().contains("there is nothing to move") || refused.message().contains("howdah type move"),
        "{refused}"
    );
    let done = moved(&other, "mail").await;
    assert!(done.moved_count >= 1_001, "{done:?}");
    assert_eq!(number(&mail, "SELECT count(*) FROM howdah.ready").await, 3_001);
    assert_eq!(number(&shop, "SELECT count(*) FROM howdah.leaving").await, 0);
}

#[tokio::test]
async fn jobs_enqueued_by_sql_in_the_old_store_during_a_move_are_moved_too() {
    let (shop, mail) = (empty("shop").await, empty("mail").await);
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    enqueue_at(&broker, "shop", "t").await;
    let gate = gate(&mail, "arrived", "INSERT").await;
    let moving = {
        let service = (*broker).clone();
        tokio::spawn(async move { moved(&service, "mail").await })
    };
    gate.reached(&mail).await;
    shop.sql("SELECT howdah.enqueue('t')").await;
    gate.open(&mail).await;
    let done = moving.await.unwrap();
    assert_eq!(done.moved_count, 2);
    // After the move, a job that is enqueued in the old store by SQL stays there, as with any type.
    shop.sql("SELECT howdah.enqueue('t')").await;
    let answer = with_timeout("an answer", broker.jobs().enqueue_jobs(at("shop", jobs(&["t"])))).await.unwrap();
    assert_eq!(store_of(answer.into_inner().jobs[0].id), 0);
    let mut worker = broker.worker("t").window(4).await;
    assert_eq!(worker.take(4).await.len(), 4);
}

#[tokio::test]
async fn a_move_waits_for_a_store_that_stops_in_the_middle() {
    let shop = empty("shop").await;
    let (mut cluster, mail) = second_server().await;
    let stores = [("shop", &shop), ("mail", &mail)];
    let broker = TestBroker::on_stores(&stores, |config| config.database_timeout = secs(8)).await;
    enqueue_at(&broker, "shop", "t").await;
    shop.sql("SELECT howdah.enqueue_many('t', array_fill('x'::text, ARRAY[2999]))").await;
    let gate = gate(&mail, "arrived", "INSERT").await;
    let mut answers = with_timeout("an answer", broker.stores().move_type(to("mail"))).await.unwrap().into_inner();
    let reading = tokio::spawn(async move {
        let (mut problems, mut last) = (0, MoveTypeResponse::default());
        while let Some(at) = answers.message().await? {
            problems += i32::from(!at.problem.is_empty());
            last = at;
        }
        Ok::<_, Status>((problems, last))
    });
    shop.until("jobs that are leaving the old store", "SELECT count(*) > 0 FROM howdah.leaving").await;
    gate.reached(&mail).await;
    // The crash of the new store's server also releases the lock of the gate.
    cluster.stop(StopMode::Immediate).await;
    cluster.restart().await.expect("restart");
    let (problems, last) = with_timeout("the end of the move", reading).await.unwrap().unwrap();
    assert!(problems > 0, "no answer names the unavailable store");
    assert_eq!((last.phase(), last.problem.as_str()), (MovePhase::Done, ""));
    assert_eq!(number(&mail, "SELECT count(*) FROM howdah.ready").await, 3_000);
    assert_eq!(
        number(&shop, "SELECT (SELECT count(*) FROM howdah.job) + (SELECT count(*) FROM howdah.leaving)").await,
        0
    );
}

#[tokio::test]
async fn howdah_type_move_shows_its_progress_and_the_jobs_that_stay() {
    let (_shop, _mail, broker) = two().await;
    enqueue_at(&broker, "shop", "t").await;
    let limited = broker.enqueue("t").limit_key("l").await;
    let move_it = ["type", "move", "t", "--to", "mail", "--server", &broker.grpc, "--reason", "its own database"];
    let (status, _, err) = run(&move_it, b"").await;
    assert!(status.success(), "{err}");
    assert!(err.starts_with("t is paused in shop and mail: waiting until all brokers know that\n"), "{err}");
    let end = format!(
        "t is now in mail: 1 job moved\nnot moved from shop, because of dependencies, limits or stages: 1 job: {limited}\n"
    );
    assert!(err.ends_with(&end), "{err}");
    let (status, _, err) = run(&["type", "move", "t", "--to", "nowhere", "--server", &broker.grpc], b"").await;
    assert_eq!(status.code(), Some(65), "{err}");
    assert!(err.contains("this broker serves shop, mail"), "{err}");
}
