//! Workers that handle each job as its case specifies.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use howdah_proto::v1::{LeasedJob, Outcome, SettleStatus, Subscribe, Window, work_response};

use super::cases::{CASE, Case, ROLE, WorkerAction};
use crate::support::*;

/// Number of acks with status OK of each job, by job id and task type.
pub type Acked = Arc<Mutex<HashMap<(i64, String), usize>>>;

/// Runs a worker until it is aborted. The worker reconnects after it vanished.
pub async fn work(grpc: String, types: Vec<String>, cases: Arc<Vec<Case>>, acked: Acked) {
    loop {
        session(&grpc, &types, &cases, &acked).await;
    }
}

async fn session(grpc: &str, types: &[String], cases: &[Case], acked: &Acked) {
    let window = |task_type: &String| Window { task_type: task_type.clone(), jobs: 4, bytes: 0 };
    let subscribe = Subscribe { windows: types.iter().map(window).collect(), ..Subscribe::default() };
    let mut worker = Worker::subscribe(grpc, subscribe).await;
    // Maps the leases of acked jobs, whose results have not arrived, to their task types.
    let mut acks: HashMap<(i64, i64), String> = HashMap::new();
    while let Some(message) = worker.message().await.expect("an open stream") {
        match message {
            work_response::Message::Jobs(jobs) => {
                let actions: Vec<(LeasedJob, WorkerAction)> = jobs
                    .jobs
                    .into_iter()
                    .map(|job| {
                        let action = action(cases, &job);
                        (job, action)
                    })
                    .collect();
                if actions.iter().any(|(_, action)| *action == WorkerAction::Vanish) {
                    return worker.vanish();
                }
                let acked = actions.iter().filter(|(_, action)| matches!(action, WorkerAction::Ack(_)));
                acks.extend(acked.map(|(job, _)| ((job.id, job.token), job.task_type.clone())));
                let outcomes: Vec<Outcome> = actions.iter().filter_map(|(job, action)| settled(job, *action)).collect();
                if !outcomes.is_empty() {
                    worker.settle(outcomes).await;
                }
            }
            work_response::Message::Settled(settled) => {
                let ok = settled.results.iter().filter(|result| result.status() == SettleStatus::Ok);
                for task_type in ok.filter_map(|result| Some((result.id, acks.remove(&(result.id, result.token))?))) {
                    *acked.lock().unwrap().entry(task_type).or_default() += 1;
                }
            }
            // The broker cancels jobs whose attempt timed out, which the worker ignored on purpose.
            work_response::Message::Cancel(_) => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
}

fn action(cases: &[Case], job: &LeasedJob) -> WorkerAction {
    match (job.headers.get(ROLE).map(String::as_str), job.headers.get(CASE)) {
        (Some("dying"), _) => WorkerAction::Fail,
        (Some(_), _) => WorkerAction::Ack(""),
        (None, case) => {
            cases[case.expect("a case").parse::<usize>().expect("a number")].action(&job.task_type, job.attempt)
        }
    }
}

fn settled(job: &LeasedJob, action: WorkerAction) -> Option<Outcome> {
    let nack = nack(job, "as the case says").at_once();
    match action {
        WorkerAction::Ack(result) => Some(ack(job).result(result)),
        WorkerAction::Retry => Some(nack),
        WorkerAction::Fail => Some(nack.no_retry()),
        WorkerAction::Ignore | WorkerAction::Vanish => None,
    }
}
