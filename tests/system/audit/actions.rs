//! Makes one change with each call that the audit log records.

use howdah_proto::{Rpc, v1};
use tonic::{Request, Status};

use super::Entry;
use crate::support::*;

/// The calls that write audit entries.
pub const ACTIONS: [Rpc; 25] = [
    Rpc::CancelJobs,
    Rpc::RetryJobs,
    Rpc::RerunJobs,
    Rpc::EndLeases,
    Rpc::DiscardJobs,
    Rpc::ReprioritizeJobs,
    Rpc::StartBulk,
    Rpc::PauseBulk,
    Rpc::ResumeBulk,
    Rpc::CancelBulk,
    Rpc::UpdateTaskType,
    Rpc::PauseLimitKey,
    Rpc::ResumeLimitKey,
    Rpc::UpdateLimitKey,
    Rpc::UpdateSettings,
    Rpc::DrainStore,
    Rpc::OpenStore,
    Rpc::CreateSchedule,
    Rpc::UpdateSchedule,
    Rpc::PauseSchedule,
    Rpc::ResumeSchedule,
    Rpc::RunSchedule,
    Rpc::DeleteSchedule,
    Rpc::CreateToken,
    Rpc::RevokeTokens,
];

/// The items that a call changes.
pub struct Subject {
    task_type: String,
    /// The id of a job or of a bulk operation.
    job: i64,
    token: String,
}

impl Subject {
    /// Task types that the call's audit entry must name.
    pub fn types(&self, rpc: Rpc) -> Vec<String> {
        match rpc {
            Rpc::UpdateSettings | Rpc::DrainStore | Rpc::OpenStore | Rpc::CreateToken | Rpc::RevokeTokens => Vec::new(),
            _ => vec![self.task_type.clone()],
        }
    }

    /// Ids that the call's audit entry must name. The id of a new token is read from the entry.
    pub fn ids(&self, rpc: Rpc, entry: &Entry) -> Vec<String> {
        match rpc {
            Rpc::CancelJobs | Rpc::RetryJobs | Rpc::EndLeases | Rpc::DiscardJobs | Rpc::ReprioritizeJobs => {
                vec![self.job.to_string()]
            }
            Rpc::UpdateTaskType | Rpc::UpdateSettings => Vec::new(),
            Rpc::PauseLimitKey | Rpc::ResumeLimitKey | Rpc::UpdateLimitKey => vec!["k".into()],
            Rpc::DrainStore | Rpc::OpenStore => vec![stores::own_name().into()],
            Rpc::PauseBulk | Rpc::ResumeBulk | Rpc::CancelBulk => vec![self.job.to_string()],
            Rpc::RerunJobs | Rpc::StartBulk => {
                entry.ids.iter().filter(|id| id.parse::<i64>().is_ok()).cloned().collect()
            }
            Rpc::CreateToken => entry.ids.iter().filter(|id| id.len() == 16).cloned().collect(),
            Rpc::RevokeTokens => vec![self.token.clone()],
            _ => vec![format!("s.{}", self.task_type)],
        }
    }
}

fn schedule(task_type: &str) -> Option<v1::Schedule> {
    let plan = Some(v1::schedule::Plan::Period(wire(HOUR)));
    Some(v1::Schedule {
        name: format!("s.{task_type}"),
        template: Some(new_job(task_type, "p")),
        plan,
        start_time: Some(far().into()),
        ..Default::default()
    })
}

fn token(task_type: &str) -> v1::CreateTokenRequest {
    v1::CreateTokenRequest { principal: "p".into(), scopes: vec![format!("read:{task_type}")], lifetime: None }
}

/// Creates the items that the call changes.
pub async fn prepare(admin: &Service, rpc: Rpc) -> Subject {
    let task_type = format!("t.{}", rpc.name());
    let mut subject = Subject { job: 0, token: String::new(), task_type: task_type.clone() };
    match rpc {
        // These calls need an existing job or task type.
        Rpc::CancelJobs | Rpc::ReprioritizeJobs | Rpc::ResumeLimitKey | Rpc::StartBulk => {
            subject.job = admin.enqueue(&*task_type).await
        }
        Rpc::EndLeases => {
            admin.enqueue(&*task_type).await;
            subject.job = admin.pull(&task_type).lease(HOUR).await[0].id;
        }
        Rpc::RerunJobs => {
            subject.job = admin.enqueue(&*task_type).await;
            admin.cancel(&[subject.job]).await;
        }
        Rpc::RetryJobs | Rpc::DiscardJobs => {
            subject.job = admin.enqueue(&*task_type).max_attempts(1).await;
            let mut worker = admin.worker(&task_type).await;
            let job = worker.next().await;
            worker.nack(&job, "no").await;
            admin.until_state(subject.job, v1::JobState::Dead).await;
        }
        Rpc::UpdateSchedule | Rpc::PauseSchedule | Rpc::ResumeSchedule | Rpc::RunSchedule | Rpc::DeleteSchedule => {
            let request = v1::CreateScheduleRequest { schedule: schedule(&task_type) };
            admin.schedules().create_schedule(request).await.expect("a schedule");
            if rpc == Rpc::ResumeSchedule {
                let name = format!("s.{task_type}");
                admin.schedules().pause_schedule(v1::PauseScheduleRequest { name }).await.expect("a paused schedule");
            }
        }
        // Inserts a bulk operation without jobs that is due in a day, so that it does not end before the call.
        Rpc::PauseBulk | Rpc::ResumeBulk | Rpc::CancelBulk => {
            let state = if rpc == Rpc::ResumeBulk { "paused" } else { "running" };
            let insert = format!(
                "INSERT INTO howdah.bulk (operation, type_id, task_type, last_job_id, selected, has_more, principal, peer,
                                          reason, state, next_at)
                 VALUES ('discard', 2000000000, '{task_type}', 0, 0, false, '', '', '', '{state}', now() + interval '1 day')
                 RETURNING id"
            );
            subject.job = admin.count(&insert).await;
        }
        Rpc::RevokeTokens => {
            let made = admin.access().create_token(token(&task_type)).await.expect("a token").into_inner();
            subject.token = made.token.expect("a token").id;
        }
        _ => {}
    }
    subject
}

fn because<T>(message: T, reason: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(reason) = reason {
        request.metadata_mut().insert("howdah-reason", reason.parse().expect("ASCII"));
    }
    request
}

pub async fn act(admin: &Service, rpc: Rpc, subject: &Subject, reason: Option<&str>) -> Result<(), Status> {
    let (task_type, name) = (|| subject.task_type.clone(), || format!("s.{}", subject.task_type));
    let limit_key = || "k".to_owned();
    let filter = || Some(v1::JobFilter { ids: vec![subject.job], ..Default::default() });
    let (mut jobs, mut types, mut schedules) = (admin.jobs(), admin.task_types(), admin.schedules());
    let mut bulks = admin.bulks();
    match rpc {
        Rpc::CancelJobs => {
            let request = v1::CancelJobsRequest { filter: filter(), ..Default::default() };
            jobs.cancel_jobs(because(request, reason)).await.map(drop)
        }
        Rpc::RetryJobs => {
            let request = v1::RetryJobsRequest { filter: filter(), ..Default::default() };
            jobs.retry_jobs(because(request, reason)).await.map(drop)
        }
        Rpc::RerunJobs => {
            let request = v1::RerunJobsRequest { ids: vec![subject.job], ..Default::default() };
            jobs.rerun_jobs(because(request, reason)).await.map(drop)
        }
        Rpc::EndLeases => {
            let filter = Some(v1::JobFilter { ids: vec![subject.job], ..Default::default() });
            let request = v1::EndLeasesRequest { filter, ..Default::default() };
            jobs.end_leases(because(request, reason)).await.map(drop)
        }
        Rpc::DiscardJobs => {
            let request = v1::DiscardJobsRequest { filter: filter(), ..Default::default() };
            jobs.discard_jobs(because(request, reason)).await.map(drop)
        }
        Rpc::ReprioritizeJobs => {
            let request = v1::ReprioritizeJobsRequest { task_type: task_type(), priority: 1, ..Default::default() };
            jobs.reprioritize_jobs(because(request, reason)).await.map(drop)
        }
        Rpc::StartBulk => {
            let (operation, task_type) = (v1::BulkOperation::Discard as i32, task_type());
            let spec = Some(v1::BulkSpec { operation, task_type, ..Default::default() });
            let request = v1::StartBulkRequest { spec, ..Default::default() };
            bulks.start_bulk(because(request, reason)).await.map(drop)
        }
        Rpc::PauseBulk => bulks.pause_bulk(because(v1::PauseBulkRequest { id: subject.job }, reason)).await.map(drop),
        Rpc::ResumeBulk => {
            bulks.resume_bulk(because(v1::ResumeBulkRequest { id: subject.job }, reason)).await.map(drop)
        }
        Rpc::CancelBulk => {
            bulks.cancel_bulk(because(v1::CancelBulkRequest { id: subject.job }, reason)).await.map(drop)
        }
        Rpc::UpdateTaskType => {
            let settings = Some(v1::TaskTypeSettings { max_attempts: 3, ..Default::default() });
            let request = v1::UpdateTaskTypeRequest { task_type: task_type(), settings, update_mask: None };
            types.update_task_type(because(request, reason)).await.map(drop)
        }
        Rpc::PauseLimitKey => {
            let request =
                v1::PauseLimitKeyRequest { task_type: task_type(), limit_key: limit_key(), ..Default::default() };
            types.pause_limit_key(because(request, reason)).await.map(drop)
        }
        Rpc::ResumeLimitKey => {
            let request = v1::ResumeLimitKeyRequest { task_type: task_type(), limit_key: limit_key() };
            types.resume_limit_key(because(request, reason)).await.map(drop)
        }
        Rpc::UpdateLimitKey => {
            let request = v1::UpdateLimitKeyRequest { task_type: task_type(), limit_key: limit_key(), max_running: 3 };
            types.update_limit_key(because(request, reason)).await.map(drop)
        }
        Rpc::UpdateSettings => {
            let settings = Some(v1::ClusterSettings { headers: 65, ..Default::default() });
            let request = v1::UpdateSettingsRequest { settings, update_mask: None };
            admin.settings().update_settings(because(request, reason)).await.map(drop)
        }
        // Opens the store first, because draining a closed store changes nothing. Does it with SQL, which writes no
        // audit entry.
        Rpc::DrainStore => {
            admin.count("SELECT count(howdah.open_store())").await;
            let store = stores::own_name().to_owned();
            admin.stores().drain_store(because(v1::DrainStoreRequest { store }, reason)).await.map(drop)
        }
        Rpc::OpenStore => {
            let store = stores::own_name().to_owned();
            admin.count(&format!("SELECT count(howdah.close_store('{store}', ''))")).await;
            admin.stores().open_store(because(v1::OpenStoreRequest { store }, reason)).await.map(drop)
        }
        Rpc::CreateSchedule => {
            let request = v1::CreateScheduleRequest { schedule: schedule(&subject.task_type) };
            schedules.create_schedule(because(request, reason)).await.map(drop)
        }
        Rpc::UpdateSchedule => {
            let plan = Some(v1::schedule::Plan::Period(wire(HOUR * 2)));
            let changed = schedule(&subject.task_type).map(|schedule| v1::Schedule { plan, ..schedule });
            let request = v1::UpdateScheduleRequest { schedule: changed, allow_missing: false };
            schedules.update_schedule(because(request, reason)).await.map(drop)
        }
        Rpc::PauseSchedule => {
            schedules.pause_schedule(because(v1::PauseScheduleRequest { name: name() }, reason)).await.map(drop)
        }
        Rpc::ResumeSchedule => {
            schedules.resume_schedule(because(v1::ResumeScheduleRequest { name: name() }, reason)).await.map(drop)
        }
        Rpc::RunSchedule => {
            let request = v1::RunScheduleRequest { name: name(), request_key: String::new() };
            schedules.run_schedule(because(request, reason)).await.map(drop)
        }
        Rpc::DeleteSchedule => {
            schedules.delete_schedule(because(v1::DeleteScheduleRequest { name: name() }, reason)).await.map(drop)
        }
        Rpc::CreateToken => admin.access().create_token(because(token(&subject.task_type), reason)).await.map(drop),
        Rpc::RevokeTokens => {
            let selection = Some(v1::revoke_tokens_request::Selection::Id(subject.token.clone()));
            admin.access().revoke_tokens(because(v1::RevokeTokensRequest { selection }, reason)).await.map(drop)
        }
        other => panic!("{other:?} writes no audit entry"),
    }
}

/// Returns as text all data that the calls change, including the counters of schedules. Names of task types are excluded,
/// because brokers store them before the change.
pub async fn snapshot(database: &TestDatabase) -> String {
    let sql = "SELECT concat_ws(E'\\n',
        (SELECT string_agg(concat(id, state, priority, attempt), ' ' ORDER BY id) FROM howdah.job),
        (SELECT string_agg(concat(name, max_attempts), ' ' ORDER BY name) FROM howdah.task_type
         WHERE max_attempts IS NOT NULL),
        (SELECT string_agg(s::text, ' ' ORDER BY name) FROM howdah.schedule s),
        (SELECT string_agg(l::text, ' ' ORDER BY limit_key) FROM howdah.limit_state l),
        (SELECT string_agg(concat(id, revoked), ' ' ORDER BY id) FROM howdah.token),
        (SELECT string_agg(concat(id, state), ' ' ORDER BY id) FROM howdah.bulk),
        (SELECT headers FROM howdah.settings))";
    database.connect().await.query_one(sql, &[]).await.expect(sql).get(0)
}
