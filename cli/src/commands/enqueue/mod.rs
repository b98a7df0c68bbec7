//! `howdah enqueue`: enqueues one job, one job per line, or the jobs of a request file.

mod lines; // one job per line
mod resume; // positions and errors of lines

use std::path::{Path, PathBuf};

use howdah_client::{Client, Enqueued, Error, NewJob, proto};
use howdah_proto::json;

use self::{lines::OnError, resume::Position};
use super::{
    context::Global,
    failure::Failure,
    input::{self, Input},
    job_flags::JobFlags,
    output::Output,
};

/// Enqueue one job, one job per line of input, or the jobs of a request file
///
/// Prints the id of each stored job, one per line, in the order of the input. The payload is the argument, a file, or stdin. It
/// may contain any bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah enqueue email.send 'ann@example.com'
  howdah enqueue report.make --file report.json --delay 5m --max-attempts 3
  pg_dump app | howdah enqueue dump.store -                    # - is stdin
  seq 1000000 | howdah enqueue number.square --lines > ids     # one job per line
  howdah enqueue cleanup --run-at 2027-01-01T03:00:00Z --key nightly
  howdah enqueue --request import.json                         # several jobs in one transaction

A request file is JSON with the names of the protocol, as for POST /v1/jobs. Its jobs can depend on each other:
  {\"jobs\": [{\"task_type\": \"load\", \"payload\": \"YQ==\", \"local_name\": \"a\"},
            {\"task_type\": \"report\", \"after_local\": [\"a\"]}]}

With --lines, the command stops at the first line that the broker refuses (exit status 65). The message
names the line. All lines before it are stored, and no line from it on. After a correction, --resume
continues there. With --on-error continue, the command reports refused lines with their numbers on
stderr (with --json on stdout), and stores all other lines; the exit status is 65, too. If the broker
did not answer, the message contains the position for --resume, so that no line is stored twice.")]
pub(super) struct Args {
    /// Task type, which workers subscribe to: letters, digits and . _ : / -
    #[arg(value_name = "TYPE", required_unless_present = "request")]
    task_type: Option<String>,
    /// Payload; - reads stdin [default: empty]
    #[arg(value_name = "PAYLOAD", conflicts_with_all = ["file", "lines"])]
    payload: Option<String>,
    /// Read the payload from this file; with --lines, read the lines from it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Enqueue one job per line of stdin or --file, without the line break
    #[arg(long, conflicts_with = "key")]
    lines: bool,
    /// With --lines: behaviour if the broker refuses a line
    #[arg(long, value_name = "WHAT", default_value = "stop", requires = "lines", conflicts_with = "payload")]
    on_error: OnError,
    /// With --lines: continue at this line, or at the position that an earlier run printed; use the same input and options as
    /// then
    #[arg(long, value_name = "POSITION", requires = "lines", conflicts_with = "payload")]
    resume: Option<Position>,
    /// Enqueue all jobs of this JSON file, or none of them; - reads stdin. Payloads in the file are base64
    #[arg(long, value_name = "FILE", conflicts_with_all = ["task_type", "payload", "file", "lines"])]
    request: Option<PathBuf>,
    /// Make the command idempotent: within 24 hours, the same key with the same jobs returns the same ids
    #[arg(long, value_name = "KEY", conflicts_with = "lines")]
    request_key: Option<String>,
    #[command(flatten)]
    options: JobFlags,
    /// Print one JSON object per job: the message EnqueuedJob; with --lines also line, the number of the line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    if args.request.is_some() && !args.options.is_empty() {
        return Err(Failure::usage("--request cannot be combined with job options: set the options in the file"));
    }
    let template = args.options.job(args.task_type.as_deref().unwrap_or_default())?;
    global.with_client(async |client| {
        let printer = Printer { output: Output::new(), json: args.json };
        if let Some(path) = &args.request {
            return enqueue_request(&client, path, args.request_key, printer).await;
        }
        if args.lines {
            let input = match &args.file {
                Some(path) => Input::open(path).await?,
                None => Input::stdin(),
            };
            return lines::enqueue(&client, template, input, (args.on_error, args.resume), printer).await;
        }
        let payload = input::payload(args.file.as_deref(), args.payload).await?;
        let job = template.payload(payload);
        let enqueued = match args.request_key {
            Some(key) => client.enqueue_all_with_key([job], key).await?,
            None => vec![client.enqueue(job).await?],
        };
        printer.print_all(enqueued)
    })
}

/// Reads an `EnqueueJobsRequest` and enqueues it. A request key of the command line takes precedence over the file's.
async fn enqueue_request(
    client: &Client,
    path: &Path,
    request_key: Option<String>,
    printer: Printer,
) -> Result<(), Failure> {
    let request = read_request(path).await?;
    let jobs = request.jobs.into_iter().map(NewJob::from);
    let key = request_key.unwrap_or(request.request_key);
    let enqueued =
        if key.is_empty() { client.enqueue_all(jobs).await? } else { client.enqueue_all_with_key(jobs, key).await? };
    printer.print_all(enqueued)
}

async fn read_request(path: &Path) -> Result<proto::EnqueueJobsRequest, Failure> {
    json::read("EnqueueJobsRequest", &Input::open(path).await?.all().await?).map_err(|error| {
        Failure::usage(format!("{} is not a JSON object with a list \"jobs\": {error}", path.display()))
    })
}

/// Prints the results of enqueues.
struct Printer {
    output: Output,
    json: bool,
}

impl Printer {
    fn refused(&mut self, line: u64, error: &Error) -> Result<(), Failure> {
        self.output.json(&serde_json::json!({"line": line, "error": error.to_string()}))
    }

    fn print_all(mut self, jobs: Vec<Enqueued>) -> Result<(), Failure> {
        jobs.into_iter().try_for_each(|job| self.print(job, None))?;
        self.output.flush()
    }

    fn print(&mut self, job: Enqueued, line: Option<u64>) -> Result<(), Failure> {
        if self.json { self.output.enqueued(&job, line) } else { self.output.line(job.id) }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(flags: &[&str]) -> Result<Args, clap::Error> {
        Command::try_parse_from(["enqueue", "a"].iter().chain(flags)).map(|command| command.args)
    }

    #[test]
    fn contradictions_are_refused() {
        let cases: [&[&str]; 8] = [
            &["payload", "--file", "f"],
            &["payload", "--lines"],
            &["--lines", "--key", "k"],
            &["--request", "f"],
            &["--lines", "--request-key", "k"],
            &["payload", "--on-error", "continue"],
            &["payload", "--resume", "3"],
            &["--lines", "--resume", "3-1:k"],
        ];
        for flags in cases {
            assert!(parsed(flags).is_err(), "{flags:?}");
        }
    }
}
