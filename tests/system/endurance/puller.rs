//! A worker without a stream: it pulls jobs with leases that end at a deadline, and settles the jobs by unary calls.

use std::time::Duration;

use howdah_proto::v1::{
    LeasedJob, Outcome, PullJobsRequest, SettleJobsRequest, SettleStatus, worker_service_client::WorkerServiceClient,
};
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use super::{
    record::{Lease, Line, Record, now},
    worker::{Orders, lasts, outcome, word},
};

/// Duration of a pulled lease, longer than the longest job takes.
const LEASE: Duration = Duration::from_secs(4);

pub(super) async fn run(orders: Orders, record: Record) {
    let client = |broker: &String| {
        let endpoint = Endpoint::from_shared(format!("http://{broker}")).expect("address");
        WorkerServiceClient::new(endpoint.connect_timeout(Duration::from_secs(2)).connect_lazy())
    };
    let mut clients: Vec<WorkerServiceClient<Channel>> = orders.brokers.iter().map(client).collect();
    let request = PullJobsRequest {
        task_types: orders.windows.iter().map(|(name, _)| name.clone()).collect(),
        max_jobs: 30,
        lease_duration: Some(LEASE.try_into().expect("a duration")),
        wait: Some(Duration::from_secs(1).try_into().expect("a duration")),
    };
    for turn in 0.. {
        let at = turn % clients.len();
        let answer = timeout(Duration::from_secs(5), clients[at].pull_jobs(request.clone())).await;
        match answer {
            Ok(Ok(jobs)) => work(&orders, &record, &mut clients, turn, jobs.into_inner().jobs).await,
            Ok(Err(status)) => failed(&record, format!("pull: {} {}", status.code(), status.message())).await,
            Err(_) => failed(&record, "pull: no answer".into()).await,
        }
    }
}

async fn failed(record: &Record, why: String) {
    record.write(&Line::Broken { at: now(), why });
    sleep(Duration::from_millis(50)).await;
}

/// Runs the pulled jobs concurrently. When the longest job is done, settles all of them with one call.
async fn work(
    orders: &Orders,
    record: &Record,
    clients: &mut [WorkerServiceClient<Channel>],
    first: usize,
    jobs: Vec<LeasedJob>,
) {
    for job in &jobs {
        let name = String::from_utf8_lossy(&job.payload).into_owned();
        if name == orders.poison {
            std::process::abort();
        }
        let (lease, task_type) = (Lease { id: job.id, token: job.token }, job.task_type.clone());
        record.write(&Line::Begun { at: now(), lease, attempt: job.attempt, task_type, name });
    }
    let longest = jobs.iter().map(|job| lasts(job.token.unsigned_abs())).max().unwrap_or_default();
    sleep(longest).await;
    let mut outcomes: Vec<Outcome> = jobs
        .iter()
        .map(|job| {
            let outcome = outcome(job.token.unsigned_abs(), orders.plain);
            Outcome { id: job.id, token: job.token, outcome: Some(outcome) }
        })
        .collect();
    for outcome in &outcomes {
        let lease = Lease { id: outcome.id, token: outcome.token };
        record.write(&Line::Sent { at: now(), lease, outcome: word(outcome).to_owned() });
    }
    for turn in first.. {
        if outcomes.is_empty() {
            return;
        }
        let at = turn % clients.len();
        let request = SettleJobsRequest { outcomes: outcomes.clone() };
        match timeout(Duration::from_secs(5), clients[at].settle_jobs(request)).await {
            Ok(Ok(answer)) => {
                for result in answer.into_inner().results {
                    let lease = Lease { id: result.id, token: result.token };
                    let status = result.status();
                    record.write(&Line::Settled { at: now(), lease, status: format!("{status:?}") });
                    if status != SettleStatus::Unavailable {
                        outcomes.retain(|outcome| outcome.id != lease.id);
                    }
                }
            }
            Ok(Err(status)) => failed(record, format!("settle: {} {}", status.code(), status.message())).await,
            Err(_) => failed(record, "settle: no answer".into()).await,
        }
    }
}
