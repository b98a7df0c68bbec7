//! Workers that do with each job what its case says.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use howdah_proto::v1::{LeasedJob, Outcome, SettleStatus, Subscribe, Window, work_response};

use super::cases::{CASE, Case, Deed, ROLE};
use crate::support::*;

/// How often the ack of a job took effect in each type.
pub type Acked = Arc<Mutex<HashMap<(i64, String), usize>>>;

/// Works until it is aborted; when it vanishes it comes back.
pub async fn work(grpc: String, types: Vec<String>, cases: Arc<Vec<Case>>, acked: Acked) {
    loop {
        session(&grpc, &types, &cases, &acked).await;
    }
}

async fn session(grpc: &str, types: &[String], cases: &[Case], acked: &Acked) {
    let window = |task_type: &String| Window { task_type: task_type.clone(), jobs: 4, bytes: 0 };
    let subscribe = Subscribe { windows: types.iter().map(window).collect(), ..Subscribe::default() };
    let mut worker = Worker::subscribe(grpc, subscribe).await;
    // Acks on their way.
    let mut acks: HashMap<(i64, i64), String> = HashMap::new();
    while let Some(message) = worker.message().await.expect("an open stream") {
        match message {
            work_response::Message::Jobs(jobs) => {
                let deeds: Vec<(LeasedJob, Deed)> = jobs
                    .jobs
                    .into_iter()
                    .map(|job| {
                        let deed = deed(cases, &job);
                        (job, deed)
                    })
                    .collect();
                if deeds.iter().any(|(_, deed)| *deed == Deed::Vanish) {
                    return worker.vanish();
                }
                let acked = deeds.iter().filter(|(_, deed)| matches!(deed, Deed::Ack(_)));
                acks.extend(acked.map(|(job, _)| ((job.id, job.token), job.task_type.clone())));
                let outcomes: Vec<Outcome> = deeds.iter().filter_map(|(job, deed)| settled(job, *deed)).collect();
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
            // An attempt took too long.
            work_response::Message::Cancel(_) => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
}

fn deed(cases: &[Case], job: &LeasedJob) -> Deed {
    match (job.headers.get(ROLE).map(String::as_str), job.headers.get(CASE)) {
        (Some("dying"), _) => Deed::Fail,
        (Some(_), _) => Deed::Ack(""),
        (None, case) => {
            cases[case.expect("a case").parse::<usize>().expect("a number")].deed(&job.task_type, job.attempt)
        }
    }
}

fn settled(job: &LeasedJob, deed: Deed) -> Option<Outcome> {
    let nack = nack(job, "as the case says").at_once();
    match deed {
        Deed::Ack(result) => Some(ack(job).result(result)),
        Deed::Retry => Some(nack),
        Deed::Fail => Some(nack.no_retry()),
        Deed::Ignore | Deed::Vanish => None,
    }
}
