//! A worker for `howdah bench client --client CMD`. Its handler does nothing, so that the benchmark measures the client.

use std::env;

use howdah_client::{Client, Job, JobError};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let concurrency = env::var("HOWDAH_BENCH_CONCURRENCY")?.parse()?;
    let client = Client::connect(env::var("HOWDAH_SERVER")?).await?;
    let nothing = |_: Job| async { Ok::<_, JobError>(()) };
    let worker = client.worker().handle(env::var("HOWDAH_BENCH_TYPE")?, nothing).concurrency(concurrency).build();
    let mut term = signal(SignalKind::terminate())?;
    let stop = async move {
        term.recv().await;
    };
    worker.run_until(stop).await?;
    Ok(())
}
