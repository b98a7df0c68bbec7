//! Enqueues the jobs of a request file in one transaction. The jobs may refer to each other.

use std::path::Path;

use howdah_client::{Client, NewJob, proto};
use howdah_proto::json;

use super::Printer;
use crate::commands::{failure::Failure, input::Input};

/// Reads an `EnqueueJobsRequest` and enqueues it. A request key of the command line takes precedence over the file's.
pub(super) async fn enqueue(
    client: &Client,
    path: &Path,
    request_key: Option<String>,
    mut printer: Printer,
) -> Result<(), Failure> {
    let request = read(path).await?;
    let jobs = request.jobs.into_iter().map(NewJob::from);
    let key = request_key.unwrap_or(request.request_key);
    let enqueued =
        if key.is_empty() { client.enqueue_all(jobs).await? } else { client.enqueue_all_with_key(jobs, key).await? };
    for job in enqueued {
        printer.print(job, None)?;
    }
    printer.output.flush()
}

async fn read(path: &Path) -> Result<proto::EnqueueJobsRequest, Failure> {
    let input = if path.as_os_str() == "-" { Input::stdin() } else { Input::open(path).await? };
    json::read("EnqueueJobsRequest", &input.all().await?).map_err(|error| {
        Failure::usage(format!("{} is not a JSON object with a list \"jobs\": {error}", path.display()))
    })
}
