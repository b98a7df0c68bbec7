//! `howdah workers`: lists the workers of all brokers.

use std::time::Duration;

use howdah_client::proto::{ListWorkersRequest, Worker, WorkerState};
use howdah_core::logging::escaped;

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    table::{Align, Table},
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
    let stuck_after = args.stuck_after.map(prost_types::Duration::try_from).transpose();
    let request = ListWorkersRequest {
        task_type: args.task_type.clone().unwrap_or_default(),
        stuck_after: stuck_after.map_err(|error| Failure::usage(format!("--stuck-after: {error}")))?,
        ..ListWorkersRequest::default()
    };
    global.with_client(async |client| {
        let workers = client.list_workers(request).await?;
        if workers.is_empty() {
            task_type::must_exist(&client, args.task_type.as_deref()).await?;
        }
        let mut output = Output::new();
        if args.json {
            output.messages("Worker", &workers)?;
        } else if workers.is_empty() {
            let (none, name) = match &args.task_type {
                Some(name) => (format!("no connected worker takes jobs of type {}", escaped(name)), name.as_str()),
                None => ("no workers are connected".into(), "TYPE"),
            };
            note(format_args!("{none}: start one with `howdah work {name} --exec COMMAND`"));
        } else {
            output.line(table(&workers))?;
        }
        output.flush()
    })
}

fn table(workers: &[Worker]) -> Table<9> {
    let mut table = Table::new([
        ("WORKER", Align::Left),
        ("STATE", Align::Left),
        ("JOBS", Align::Left),
        ("LAST MINUTE", Align::Right),
        ("QUIET", Align::Right),
        ("CONNECTED", Align::Right),
        ("BROKER", Align::Left),
        ("PEER", Align::Left),
        ("CLIENT", Align::Left),
    ]);
    for worker in workers {
        let jobs = worker
            .windows
            .iter()
            .map(|window| format!("{} {}/{}", escaped(&window.task_type), window.held_count, window.window_jobs));
        let time = |time: &Option<_>| text::duration(time.as_ref()).map_or_else(|| "-".into(), text::short);
        table.row_of_store(
            [
                escaped(&worker.worker_id).into_owned(),
                state_name(worker),
                jobs.collect::<Vec<_>>().join(", "),
                worker.settled_count.to_string(),
                time(&worker.quiet_for),
                time(&worker.connected_for),
                escaped(&worker.broker).into_owned(),
                escaped(&worker.peer).into_owned(),
                client(worker),
            ],
            &worker.store,
        );
    }
    table
}

/// Formats the principal, the labels and the client library of a worker.
fn client(worker: &Worker) -> String {
    // Omits the label `client` if the user agent contains its value, as with the client libraries of this project.
    let is_in_user_agent = |value: &str| worker.user_agent.split(' ').any(|word| word == value);
    let labels = worker.labels.iter().filter(|(name, value)| !(*name == "client" && is_in_user_agent(value)));
    let mut labels: Vec<_> = labels.map(|(name, value)| format!("{name}={value}")).collect();
    labels.sort_unstable();
    let words = std::iter::once(worker.principal.clone()).chain(labels).chain([worker.user_agent.clone()]);
    escaped(&words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")).into_owned()
}

pub(super) fn state_name(worker: &Worker) -> String {
    match worker.state() {
        // A broker of a later release may send a state that this program does not know.
        WorkerState::Unspecified => "?".into(),
        state => state.as_str_name().trim_start_matches("WORKER_STATE_").to_lowercase(),
    }
}
