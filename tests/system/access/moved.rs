//! Tests jobs that change their task type after a call's permission check and before its effect.

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_proto::v1::{self, JobFilter};
use tonic::Code;

use super::fixture::Guarded;
use crate::{locks::Open, support::*};

/// A dead job and a ready job of a type that the caller may operate on. While a call runs, `during` moves the call's job to a
/// type without permission.
struct Moving {
    guarded: Guarded,
    caller: Service,
    dead: i64,
    ready: i64,
}

impl Moving {
    async fn start() -> Self {
        let guarded = Guarded::start().await;
        guarded.admin.enqueue("theirs").await;
        let dead = guarded.admin.enqueue(new_job("mine", "").max_attempts(1)).await;
        let mut worker = guarded.admin.worker("mine").await;
        let job = worker.next().await;
        worker.nack(&job, "no").await;
        drop(worker);
        let ready = guarded.admin.enqueue("mine").await;
        let caller = guarded.caller("ann", &["operate:mine"]).await;
        Self { guarded, caller, dead, ready }
    }

    /// Runs a call, and moves the job to the foreign type after the permission check and before the change.
    async fn during<T>(&self, table: &str, id: i64, call: impl Future<Output = T>) -> T {
        let moved = format!(
            "UPDATE howdah.{table} SET {} type_id = (SELECT t.id FROM howdah.task_type t WHERE t.name = 'theirs') WHERE id = {id}",
            // A leased job also gets another token, as if it had been released and delivered to another worker.
            if table == "leased" { "token = token + 1," } else { "" }
        );
        let database = &self.guarded.broker.database;
        let open = Open::after(database, "moving", &moved).await;
        let moves = async {
            database.until_blocked().await;
            open.commit().await;
        };
        let (answer, ()) = tokio::join!(call, moves);
        answer
    }
}

#[tokio::test]
async fn a_call_by_job_id_changes_nothing_if_the_job_moves_to_a_foreign_type_meanwhile() {
    let all = Moving::start().await;
    let (dead, ready) = (all.dead, all.ready);
    let filter = Some(JobFilter { ids: vec![dead], ..Default::default() });

    let cancelled = all.during("ready", ready, all.caller.cancel(&[ready])).await;
    assert_eq!(cancelled, [0; 0]);
    let request = v1::RetryJobsRequest { filter: filter.clone(), ..Default::default() };
    let mut jobs = all.caller.jobs();
    let retried = all.during("dead", dead, jobs.retry_jobs(request)).await.expect("a call").into_inner();
    assert_eq!(retried.retried_ids, [0; 0]);

    let back = "UPDATE howdah.$ SET type_id = (SELECT t.id FROM howdah.task_type t WHERE t.name = 'mine')";
    for table in ["ready", "dead"] {
        all.guarded.broker.sql(&back.replace('$', table)).await;
    }
    let request = v1::DiscardJobsRequest { filter, ..Default::default() };
    let discarded = all.during("dead", dead, jobs.discard_jobs(request)).await.expect("a call").into_inner();
    assert_eq!(discarded.discarded_ids, [0; 0]);
    let request = v1::ReprioritizeJobsRequest { ids: vec![ready], priority: 5, ..Default::default() };
    let changed = all.during("ready", ready, jobs.reprioritize_jobs(request)).await.expect("a call").into_inner();
    assert_eq!(changed.reprioritized_ids, [0; 0]);
    assert_eq!(all.guarded.broker.count("SELECT count(*) FROM howdah.ready WHERE priority = 5").await, 0);
}

#[tokio::test]
async fn a_lease_is_not_ended_if_its_job_moves_to_a_foreign_type_meanwhile() {
    let all = Moving::start().await;
    let mut worker = all.guarded.admin.worker("mine").await;
    let job = worker.next().await;
    assert_eq!(job.id, all.ready);
    let mut jobs = all.caller.jobs();
    let filter = Some(v1::JobFilter { ids: vec![job.id], ..Default::default() });
    let end = jobs.end_leases(v1::EndLeasesRequest { filter, ..Default::default() });
    let ended = all.during("leased", job.id, end).await.expect("a call").into_inner();
    assert_eq!(ended.ended_ids, [0; 0]);
}

#[tokio::test]
async fn a_schedule_that_became_a_foreign_one_is_neither_changed_nor_run() {
    let guarded = Guarded::start().await;
    for (name, task_type) in [("s", "mine"), ("mine", "mine"), ("theirs", "theirs")] {
        let schedule = NewSchedule::new(name, NewJob::new(task_type), Plan::every(HOUR)).start(far()).into_proto();
        let request = v1::CreateScheduleRequest { schedule: Some(schedule) };
        guarded.admin.schedules().create_schedule(request).await.expect("create");
    }
    let becomes = |other: &str| {
        format!(
            "UPDATE howdah.schedule s SET task_type = o.task_type, template = o.template FROM howdah.schedule o
             WHERE s.name = 's' AND o.name = '{other}'"
        )
    };
    let caller = guarded.caller("ann", &["enqueue:mine"]).await;
    for call in ["pause", "run", "update", "delete"] {
        let open = Open::after(&guarded.broker.database, "moving", &becomes("theirs")).await;
        let moves = async {
            guarded.broker.database.until_blocked().await;
            open.commit().await;
        };
        let (mut client, name) = (caller.schedules(), "s".to_owned());
        let calls = async {
            match call {
                "pause" => client.pause_schedule(v1::PauseScheduleRequest { name }).await.map(drop),
                "run" => client.run_schedule(v1::RunScheduleRequest { name, ..Default::default() }).await.map(drop),
                "delete" => client.delete_schedule(v1::DeleteScheduleRequest { name }).await.map(drop),
                _ => {
                    let schedule = NewSchedule::new("s", NewJob::new("mine"), Plan::every(HOUR * 2)).into_proto();
                    let request = v1::UpdateScheduleRequest { schedule: Some(schedule), allow_missing: false };
                    client.update_schedule(request).await.map(drop)
                }
            }
        };
        let (refused, ()) = tokio::join!(calls, moves);
        assert_eq!(refused.expect_err(call).code(), Code::NotFound, "{call}");
        guarded.broker.sql(&becomes("mine")).await;
    }
    let untouched = "SELECT count(*) FROM howdah.schedule WHERE name = 's' AND NOT paused";
    assert_eq!(guarded.broker.count(untouched).await, 1);
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.job").await, 0);
}
