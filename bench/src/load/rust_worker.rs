//! The worker of the Rust client, with one handler call per job, as in a user's program.

use std::sync::Arc;

use howdah_client::{Client, Job, JobError};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{plan::Plan, tally::Tally};
use crate::error::{Error, Result};

/// Runs the worker until cancelled. The client does not report confirmed outcomes, so a job counts as settled when its handler
/// ends. Fails if not all received jobs have been acked at the end.
pub(super) async fn work(
    tally: Arc<Tally>,
    client: Client,
    plan: Plan,
    worker: usize,
    connected: oneshot::Sender<()>,
    stop: CancellationToken,
) -> Result<()> {
    let time = plan.handler;
    let handler = move |job: Job| {
        tally.entered_each([(job.id, job.payload.as_ref())].into_iter());
        let tally = tally.clone();
        async move {
            if !time.is_zero() {
                tokio::time::sleep(time).await;
            }
            tally.settled_ids([job.id].into_iter());
            Ok::<_, JobError>(())
        }
    };
    let handle = client.worker().handle(plan.task_type(worker), handler).concurrency(plan.window).build().start();
    handle.connected().await;
    let _ = connected.send(());
    let report = tokio::select! {
        ended = handle.joined() => ended?,
        () = stop.cancelled() => handle.stop().await?,
    };
    if report.acked != report.received {
        return Err(Error::Process(format!("a worker received {} jobs but acked {}", report.received, report.acked)));
    }
    Ok(())
}
