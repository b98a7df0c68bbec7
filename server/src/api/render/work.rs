//! Conversion of messages from a session to its worker.

use std::time::Duration;

use howdah_core::{
    config::Config,
    error::Error,
    job::{ClusterSettings, Lease, LeasedJob, TaskTypeName},
};
use howdah_engine::{
    registry::Registry,
    session::{Answer, CancelReason, ServerMessage, SessionContext, ping_interval},
};
use howdah_proto::v1::{self, work_response::Message};

use super::{
    settle::{invalid_item_text, settle_result},
    time::duration,
};

/// Converts a message of a session to the protocol message for its worker.
pub(in crate::api) fn work_response(
    message: ServerMessage,
    context: &SessionContext,
) -> Result<v1::WorkResponse, Error> {
    let message = match message {
        ServerMessage::Welcome { session_id, kept, lost, liveness } => {
            Message::Welcome(welcome(session_id, kept, lost, liveness, &context.config, &context.registry.cluster()))
        }
        ServerMessage::Jobs(jobs) => Message::Jobs(v1::Jobs { jobs: leased_jobs(jobs, &context.registry)? }),
        ServerMessage::Settled(answers) => Message::Settled(v1::Settled { results: results(answers) }),
        ServerMessage::Extended(answers) => Message::Extended(v1::Extended { results: results(answers) }),
        ServerMessage::Progressed(answers) => Message::Progressed(v1::Progressed { results: results(answers) }),
        ServerMessage::Cancel(leases, reason) => Message::Cancel(cancel(leases, reason)),
        ServerMessage::Drain { shutdown, reconnect_after } => Message::Drain(drain(shutdown, reconnect_after)),
        ServerMessage::Ping => Message::Ping(v1::Ping {}),
        ServerMessage::Pong => Message::Pong(v1::Pong {}),
    };
    Ok(v1::WorkResponse { message: Some(message) })
}

/// Converts leased jobs. The names of their task types come from the registry.
pub(in crate::api) fn leased_jobs(jobs: Vec<LeasedJob>, registry: &Registry) -> Result<Vec<v1::LeasedJob>, Error> {
    // Most messages have jobs of one type, so the last looked-up name is reused.
    let mut last: Option<(i32, TaskTypeName)> = None;
    jobs.into_iter()
        .map(|job| {
            let name = match &last {
                Some((type_id, name)) if *type_id == job.type_id => name.clone(),
                _ => registry.name(job.type_id).ok_or_else(|| {
                    Error::Internal(format!("job {} has a task type that this broker does not know", job.lease.id))
                })?,
            };
            last = Some((job.type_id, name.clone()));
            Ok(super::leased_job(job, &name))
        })
        .collect()
}

fn welcome(
    session_id: String,
    kept: Vec<Lease>,
    lost: Vec<Lease>,
    liveness: Duration,
    config: &Config,
    cluster: &ClusterSettings,
) -> v1::Welcome {
    let limits = &config.limits;
    v1::Welcome {
        session_id,
        kept: kept.into_iter().map(lease).collect(),
        lost: lost.into_iter().map(lease).collect(),
        ping_interval: Some(duration(ping_interval(liveness))),
        session_grace: Some(duration(config.session_grace.min(liveness))),
        liveness: Some(duration(liveness)),
        limits: Some(v1::Limits {
            max_message_bytes: limits.message_bytes as i64,
            max_payload_bytes: cluster.payload_bytes as i64,
            max_settle_outcomes: cluster.batch as i32,
            max_window_jobs: limits.window_jobs as i32,
            max_enqueue_jobs: cluster.batch as i32,
        }),
        broker: config.name.clone(),
    }
}

fn lease(lease: Lease) -> v1::Lease {
    v1::Lease::new(lease.id, lease.token)
}

fn results(answers: Vec<Answer>) -> Vec<v1::SettleResult> {
    let result = |answer: Answer| match answer.status {
        Ok(status) => settle_result(answer.lease, status),
        Err(text) => invalid_item_text(answer.lease, text),
    };
    answers.into_iter().map(result).collect()
}

fn cancel(leases: Vec<Lease>, reason: CancelReason) -> v1::Cancel {
    let reason = match reason {
        CancelReason::Cancelled => v1::CancelReason::Cancelled,
        CancelReason::Timeout => v1::CancelReason::Timeout,
        CancelReason::LeaseLost => v1::CancelReason::LeaseLost,
    };
    let job = |l: Lease| v1::CancelledJob { id: l.id, token: l.token, reason: reason as i32 };
    v1::Cancel { jobs: leases.into_iter().map(job).collect() }
}

fn drain(shutdown: bool, reconnect_after: Option<Duration>) -> v1::Drain {
    let reason = if shutdown { v1::DrainReason::Shutdown } else { v1::DrainReason::Requested };
    v1::Drain { reason: reason as i32, reconnect_after: reconnect_after.map(duration) }
}
