//! Works on the jobs of the producer example until Ctrl-C.
//!
//! `HOWDAH_SERVER=http://127.0.0.1:7432 cargo run -p howdah-client --example worker`

#![allow(clippy::print_stdout, reason = "the example prints for its user")]

use std::{env, time::Duration};

use howdah_client::{Client, Job, JobError, Outcome, Result};

/// Handler of `email.send`. Fails for some recipients, to show retries.
async fn send_email(job: Job) -> Result<String, JobError> {
    let to = std::str::from_utf8(&job.payload).map_err(JobError::fatal)?;
    if to.starts_with("user13") && job.attempt == 1 {
        return Err(JobError::retry_after("mailbox busy", Duration::from_secs(1)));
    }
    Ok(format!("sent to {to}"))
}

/// Handler of `report.build`. Takes 5 s, and stops when the job is cancelled.
async fn build_report(job: Job) -> Outcome {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(5)) => Outcome::ack("a report"),
        () = job.cancelled() => Outcome::retry("stopped half way"),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = env::var("HOWDAH_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7432".into());
    // With a lazy connection, the worker may start before the broker.
    let client = Client::builder().endpoint(server).connect_lazy()?;
    let worker = client
        .worker()
        .handle("email.send", send_email)
        .handle_with("report.build", 2, build_report)
        .concurrency(64)
        .label("example", "worker")
        .build();
    println!("working; Ctrl-C stops");
    let report = worker.run_until(async { drop(tokio::signal::ctrl_c().await) }).await?;
    println!("{} done, {} failed, {} lost", report.acked, report.failed, report.lost);
    Ok(())
}
