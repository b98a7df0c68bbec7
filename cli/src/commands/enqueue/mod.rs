//! `howdah enqueue`: one job, or a job a line.

mod lines;

use std::{path::PathBuf, time::Duration};

use howdah_client::{Enqueued, NewJob};
use jiff::Timestamp;
use serde::Serialize;

use super::{
    broker_args::key_value,
    context::Global,
    failure::Failure,
    input::{self, Input},
    output::Output,
    retry_args::RetryArgs,
    special_args::SpecialArgs,
};

/// Enqueue a job, or a job for each line of input
///
/// Prints the id of each job, one a line, in the order of the input; the job is stored when its id
/// is printed. Its payload is the argument, a file, or standard input; opaque bytes, as they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah enqueue email.send 'ann@example.com'
  howdah enqueue report.make --file report.json --delay 5m --max-attempts 3
  pg_dump app | howdah enqueue dump.store -                    # - is standard input
  seq 1000000 | howdah enqueue number.square --lines > ids     # a job a line
  howdah enqueue cleanup --at 2027-01-01T03:00:00Z --key nightly

With --lines, reading stops at the first line that the broker refuses (exit status 65); the ids of
all that is stored have been printed, and the message names the line.")]
pub(super) struct Args {
    /// The name workers subscribe by: letters, digits and . _ : / -
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// The payload; - reads standard input; none is an empty payload
    #[arg(value_name = "PAYLOAD", conflicts_with_all = ["file", "lines"])]
    payload: Option<String>,
    /// Read the payload (or with --lines, the lines) from a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Enqueue a job for each line of standard input or --file, without its line break
    #[arg(long, conflicts_with = "key")]
    lines: bool,
    #[command(flatten)]
    options: Options,
    /// Print one JSON object a line: id, is_new, and with --lines the line's number
    #[arg(long)]
    json: bool,
}

/// What all jobs of a call, or of a schedule, have in common.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Lower goes first: -1000 to 1000 [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Not before this long from now, such as 90s, 5m, 2h 30m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    delay: Option<Duration>,
    /// Not before this time, such as 2027-01-01T03:00:00Z or 2027-01-01T03:00+01:00
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<Timestamp>,
    /// Deliveries at most, 1 to 1000 [default: the task type's setting, else 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_attempts: Option<u32>,
    /// At most one unfinished job of the type has this key; if there is one, print its id
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// A header for the worker; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = key_value)]
    headers: Vec<(String, String)>,
    /// An attempt that takes longer is over and counts as failed, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// The task type that takes the job when its attempts are used up or it fails for good
    #[arg(long, value_name = "TYPE")]
    fallback: Option<String>,
    #[command(flatten)]
    retry: RetryArgs,
    #[command(flatten)]
    special: SpecialArgs,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let template = args.options.job(&args.task_type);
        let mut printer = Printer { output: Output::new(), json: args.json };
        if args.lines {
            let input = match &args.file {
                Some(path) => Input::open(path).await?,
                None => Input::stdin(),
            };
            return lines::enqueue(&client, template, input, printer).await;
        }
        let payload = input::payload(args.file.as_deref(), args.payload).await?;
        let enqueued = client.enqueue(template.payload(payload)).await?;
        printer.print(enqueued, None)?;
        printer.output.flush()
    })
}

impl Options {
    /// A job of this type with these options.
    pub(super) fn job(&self, task_type: &str) -> NewJob {
        let mut job = NewJob::new(task_type).priority(self.priority.unwrap_or_default());
        if let Some(delay) = self.delay {
            job = job.delay(delay);
        }
        if let Some(at) = self.at {
            job = job.run_at(at.into());
        }
        if let Some(attempts) = self.max_attempts {
            job = job.max_attempts(attempts);
        }
        if let Some(key) = &self.key {
            job = job.key(key);
        }
        if let Some(timeout) = self.timeout {
            job = job.timeout(timeout);
        }
        if let Some(fallback) = &self.fallback {
            job = job.fallback(fallback);
        }
        if let Some(policy) = self.retry.changed(None) {
            job = job.retry_policy(policy.into());
        }
        let job = self.special.apply(job);
        self.headers.iter().fold(job, |job, (name, value)| job.header(name, value))
    }
}

/// Tells the ids.
struct Printer {
    output: Output,
    json: bool,
}

#[derive(Serialize)]
struct EnqueuedJson {
    id: i64,
    is_new: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

impl Printer {
    fn print(&mut self, job: Enqueued, line: Option<u64>) -> Result<(), Failure> {
        if self.json {
            self.output.json(&EnqueuedJson { id: job.id, is_new: job.is_new, line })
        } else {
            self.output.line(job.id)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use howdah_client::proto::new_job::Start;

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
    fn every_flag_gets_into_the_job() {
        let flags = ["--priority", "-7", "--delay", "2m 30s", "--max-attempts", "3", "--key", "k", "--timeout", "1s"];
        let headers = ["--header", "x=1", "--header", "y=a=b", "--fallback", "b", "--retry-delays", "1s,2s"];
        let args = parsed(&[flags.as_slice(), headers.as_slice()].concat()).unwrap();
        let job = args.options.job("a").into_proto();
        assert_eq!((job.priority, job.max_attempts, job.key.as_str()), (-7, 3, "k"));
        assert_eq!(job.start, Some(Start::Delay(prost_types::Duration { seconds: 150, nanos: 0 })));
        assert_eq!(job.timeout, Some(prost_types::Duration { seconds: 1, nanos: 0 }));
        assert_eq!((job.fallback.as_str(), job.retry_policy.unwrap().delays.len()), ("b", 2));
        assert_eq!(job.headers["x"], "1");
        assert_eq!(job.headers["y"], "a=b");
    }

    #[test]
    fn a_time_is_taken_with_its_offset() {
        let job = parsed(&["--at", "2027-01-01T03:00:00+01:00"]).unwrap().options.job("a").into_proto();
        let start = prost_types::Timestamp { seconds: 1_798_768_800, nanos: 0 };
        assert_eq!(job.start, Some(Start::RunAt(start)));
        assert!(parsed(&["--at", "2027-01-01T03:00:00"]).is_err());
    }

    #[test]
    fn without_flags_a_job_has_only_its_type() {
        let job = parsed(&[]).unwrap().options.job("a");
        assert_eq!(job, NewJob::new("a"));
    }

    #[test]
    fn contradictions_are_refused() {
        let cases: [&[&str]; 5] = [
            &["payload", "--file", "f"],
            &["payload", "--lines"],
            &["--lines", "--key", "k"],
            &["--delay", "1s", "--at", "2027-01-01T03:00:00Z"],
            &["--header", "x"],
        ];
        for flags in cases {
            assert!(parsed(flags).is_err(), "{flags:?}");
        }
    }
}
