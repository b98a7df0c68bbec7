//! `howdah workers`: lists the workers of all brokers.

use std::time::Duration;

use howdah_client::proto::{ListWorkersRequest, Worker, WorkerState};
use howdah_core::logging::escaped;

use super::{
    context::Global,
    failure::Failure,
    output::{self, note},
    table::Table,
    task_type, text, values,
};

/// List the workers of all brokers with their jobs, throughput and state
///
/// JOBS shows the held jobs and the window of the worker for each task type. LAST MINUTE is the number of settled jobs. QUIET is
/// the time for which the worker has held jobs without an outcome, extension or progress report.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah workers
  howdah workers video.encode --stuck-after 1h
  howdah workers --json | jq 'select(.state == \"WORKER_STATE_STUCK\") | .windows[].oldest_job_ids'")]
pub(super) struct Args {
    /// List only workers of this task type
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// Time without an outcome, extension or progress report after which a worker with jobs counts as stuck [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    stuck_after: Option<Duration>,
    /// Print one JSON object per worker: the message Worker
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let stuck_after = args.stuck_after.map(|time| values::wire_duration("--stuck-after", time)).transpose()?;
    let task_type = args.task_type.clone().unwrap_or_default();
    let request = ListWorkersRequest { task_type, stuck_after, ..ListWorkersRequest::default() };
    global.with_client(async |client| {
        let workers = client.list_workers(request).await?;
        if workers.is_empty() {
            task_type::must_exist(&client, args.task_type.as_deref()).await?;
        }
        if workers.is_empty() && !args.json {
            let (none, name) = match &args.task_type {
                Some(name) => (format!("no connected worker takes jobs of type {name}"), name.as_str()),
                None => ("no workers are connected".into(), "TYPE"),
            };
            note(format_args!("{none}: start one with `howdah work {name} --exec COMMAND`"));
            return Ok(());
        }
        output::list(args.json, "Worker", &workers, || table(&workers))
    })
}

fn table(workers: &[Worker]) -> Table<'_, Worker> {
    let time = |time: &Option<_>| text::duration(time.as_ref()).map_or_else(|| "-".into(), text::short);
    Table::new(workers)
        .store(|worker| &worker.store)
        .left("WORKER", |worker| &worker.worker_id)
        .left("STATE", state_name)
        .left("JOBS", windows)
        .right("LAST MINUTE", |worker| worker.settled_count)
        .right("QUIET", |worker| time(&worker.quiet_for))
        .right("CONNECTED", |worker| time(&worker.connected_for))
        .left("BROKER", |worker| &worker.broker)
        .left("PEER", |worker| &worker.peer)
        .left("CLIENT", client)
}

/// Formats the held jobs and the window of each task type, such as `email.send 3/10`.
pub(super) fn windows(worker: &Worker) -> String {
    let windows = worker
        .windows
        .iter()
        .map(|window| format!("{} {}/{}", escaped(&window.task_type), window.held_count, window.window_jobs));
    windows.collect::<Vec<_>>().join(", ")
}

/// Returns the labels of a worker as sorted pairs `name=value`.
pub(super) fn labels(worker: &Worker) -> Vec<String> {
    let mut labels: Vec<_> = worker.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.sort_unstable();
    labels
}

/// Formats the principal, the labels and the client library of a worker.
fn client(worker: &Worker) -> String {
    // Omits the label `client` if the user agent contains its value, as with the client libraries of this project.
    let is_in_user_agent = |label: &String| worker.user_agent.split(' ').any(|word| *label == format!("client={word}"));
    let labels = labels(worker).into_iter().filter(|label| !is_in_user_agent(label));
    let words = std::iter::once(worker.principal.clone()).chain(labels).chain([worker.user_agent.clone()]);
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

pub(super) fn state_name(worker: &Worker) -> String {
    match worker.state() {
        // A broker of a later release may send a state that this program does not know.
        WorkerState::Unspecified => "?".into(),
        state => text::enum_word(state.as_str_name(), "WORKER_STATE_"),
    }
}
