//! `howdah search`: finds jobs.

use howdah_client::proto::{Job, JobHeader, JobState as ProtoState, SearchJobsRequest, search_jobs_request::Query};
use jiff::Timestamp;

use super::{
    conditions::Conditions,
    context::Global,
    failure::Failure,
    jobs::{attempts, next_or_end, state, with_remark},
    output::{Output, note},
    table::Table,
    task_type, text, values,
};

/// Flags of which a search needs one.
const CRITERIA: [&str; 13] = [
    "id",
    "key",
    "header",
    "text",
    "path",
    "older_than",
    "newer_than",
    "tag",
    "fair_key",
    "limit_key",
    "worker",
    "attempts_at_least",
    "attempts_at_most",
];

/// Find jobs by id, key, conditions, header or payload
///
/// A search by --id, --key, --tag or --worker uses an index and finds jobs of any age, unless --header, --text or --path is
/// given too. Any other search scans the jobs of one type, in the state of --state and in a time range (without --since the
/// last 24 hours). It reports its progress, and ends when it has found --limit jobs or scanned all jobs. Only searches by --id
/// and --key cover the archive, whose jobs come last; `howdah history` reads it too.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what"))]
#[command(group = clap::ArgGroup::new("any").args(CRITERIA).required(true).multiple(true))]
#[command(after_help = "\
Examples:
  howdah search --id 17
  howdah search order.ship --key order-4711
  howdah search order.ship --tag batch-17 --state dead
  howdah search order.ship --worker 0123456789abcdef
  howdah search order.ship --fair-key acme --attempts-at-least 3 --state scheduled --since 7d
  howdah search order.ship --header tenant=acme --state dead
  howdah search order.ship --text ann@example.com --state succeeded --since 7d
  howdah search order.ship --path '$.order.total > 100' --state ready
  howdah search order.ship --path '$.items[*] ? (@.sku == \"A-1\")' --state dead --all --json | jq -r .id

--text matches anywhere in the payload and is case-sensitive. --path is an SQL/JSON path of Postgres
(https://www.postgresql.org/docs/current/functions-json.html); it matches if it yields a value other than
false and null. A search by payload needs a token with the operation payload. The time range applies to
the end of finished and dead jobs, and to the enqueue of other jobs. The total of scanned jobs is an
estimate. An interrupt ends the search; results so far are already printed.")]
pub(super) struct Args {
    /// Task type of the jobs
    #[arg(value_name = "TYPE", required_unless_present = "id")]
    task_type: Option<String>,
    /// Find the job with this id
    #[arg(long, value_name = "ID", group = "what", conflicts_with_all = ["task_type", "state", "since", "until", "Conditions"], value_parser = values::id)]
    id: Option<i64>,
    /// Find the jobs with this key: the holder of the key, the job that waits for it, and dead and finished jobs
    #[arg(long, value_name = "KEY", group = "what", conflicts_with_all = ["since", "until"])]
    key: Option<String>,
    /// Find the jobs with this header; needs --state
    #[arg(long, value_name = "NAME=VALUE", group = "what", requires = "state", value_parser = header)]
    header: Option<JobHeader>,
    /// Find the jobs whose payload contains this text; needs --state
    #[arg(long, value_name = "TEXT", group = "what", requires = "state")]
    text: Option<String>,
    /// Find the jobs whose payload is JSON with something at this path; needs --state
    #[arg(long, value_name = "PATH", group = "what", requires = "state")]
    path: Option<String>,
    /// Search only jobs in this state: ready, leased, scheduled, waiting, dead; or finished: succeeded, cancelled, expired,
    /// discarded
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Option<ProtoState>,
    /// Without --id, --key, --tag and --worker: search only jobs of this time or later, such as 2027-01-01T03:00:00Z, or at most this old,
    /// such as 90m or 7d [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    since: Option<Timestamp>,
    /// Without --id, --key, --tag and --worker: search only jobs before this time, or older than this [default: now]
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    until: Option<Timestamp>,
    #[command(flatten)]
    conditions: Conditions,
    /// Find at most this many jobs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Find all jobs
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Print one JSON object per job, as `howdah job`
    #[arg(long)]
    json: bool,
}

fn header(text: &str) -> Result<JobHeader, String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok(JobHeader { name: name.to_owned(), value: value.to_owned() })
}

impl Args {
    /// Message if no job was found.
    fn nothing(&self, scanned: &str) -> String {
        match self.id {
            Some(id) => text::no_job(id),
            None if self.key.is_some() => "no such jobs in the database and the archive".into(),
            None if !self.scans() => "no such jobs in the database".into(),
            None => format!("no such jobs: {scanned}, all jobs in this state and time range"),
        }
    }

    /// Whether the search scans jobs, because no index finds them.
    fn scans(&self) -> bool {
        let has_content = self.header.is_some() || self.text.is_some() || self.path.is_some();
        has_content || (self.id.is_none() && self.key.is_none() && !self.conditions.are_indexed())
    }

    fn request(&self, now: Timestamp) -> SearchJobsRequest {
        let query = None
            .or(self.id.map(Query::Id))
            .or(self.key.clone().map(Query::Key))
            .or(self.header.clone().map(Query::Header))
            .or(self.text.clone().map(Query::PayloadText))
            .or(self.path.clone().map(Query::PayloadPath));
        let day_ago = || now.checked_sub(jiff::SignedDuration::from_hours(24)).unwrap_or(now);
        // All pages use the time range of the first page. With a range up to now, new jobs could make the search endless.
        SearchJobsRequest {
            query,
            task_type: self.task_type.clone().unwrap_or_default(),
            state: self.state.unwrap_or_default() as i32,
            since: self.since.or_else(|| self.scans().then(day_ago)).map(values::wire),
            until: self.until.or_else(|| self.scans().then_some(now)).map(values::wire),
            conditions: self.conditions.message(),
            ..SearchJobsRequest::default()
        }
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut output = Output::new();
        let mut left = if args.all { u64::MAX } else { args.limit };
        let mut request = args.request(Timestamp::now());
        let mut found = 0_u64;
        while left > 0 {
            request.page_size = left.min(1_000) as i32;
            let page = client.search_jobs(request.clone()).await?;
            output.jobs(args.json, &page.jobs, || table(&page.jobs, Timestamp::now()).with_heading(found == 0))?;
            found += page.jobs.len() as u64;
            left = left.saturating_sub(page.jobs.len() as u64);
            for id in &page.skipped_ids {
                note(format_args!("job {id} was skipped: the search of its payload takes too long"));
            }
            let scanned = format!("scanned {}", text::grouped(page.scanned_count));
            if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
                if found == 0 {
                    task_type::must_exist(&client, args.task_type.as_deref()).await?;
                }
                if found == 0 && !args.json {
                    note(args.nothing(&scanned));
                }
                break;
            }
            let scanned = format!("{scanned} of about {}", rounded(page.estimated_count));
            if left == 0 {
                note(format_args!(
                    "found only {}: {scanned}; use --limit or --all to find more",
                    text::first_jobs(found)
                ));
            } else {
                note(scanned);
            }
            request.page_token = page.next_page_token;
        }
        Ok(())
    })
}

fn table(jobs: &[Job], now: Timestamp) -> Table<'_, Job> {
    let table = Table::new(jobs)
        .right("ID", |job| job.id)
        .left("TYPE", |job| &job.task_type)
        .left("STATE", |job| text::state(job.state))
        .right("ATTEMPTS", attempts)
        .right("CREATED", |job| text::ago(job.create_time.as_ref(), now))
        .right("NEXT OR END", |job| text::ago(next_or_end(job), now));
    with_remark(table, false)
}

/// Formats an estimated number of jobs. Numbers from one million on are in millions, such as `4.2 M`.
fn rounded(number: i64) -> String {
    let millions = number as f64 / 1e6;
    match number {
        10_000_000.. => format!("{millions:.0} M"),
        1_000_000.. => format!("{} M", format!("{millions:.1}").trim_end_matches(".0")),
        _ => text::grouped(number),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn request(words: &[&str]) -> Result<SearchJobsRequest, String> {
        let line = Line::try_parse_from([&["search"], words].concat());
        line.map(|line| line.args.request(Timestamp::from_second(86_500).unwrap())).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        assert_eq!(
            [0, 999, 1_000, 100_000, 1_234_567].map(text::grouped),
            ["0", "999", "1,000", "100,000", "1,234,567"]
        );
        let shown = [999_999, 4_000_000, 4_240_000, 41_900_000].map(rounded);
        assert_eq!(shown, ["999,999", "4 M", "4.2 M", "42 M"]);
    }

    #[test]
    fn a_text_search_covers_the_last_day_and_a_search_by_key_or_tag_any_time() {
        let sent = request(&["t", "--text", "x", "--state", "dead"]).unwrap();
        let seconds = |time: Option<prost_types::Timestamp>| time.map(|time| time.seconds);
        assert_eq!((seconds(sent.since), seconds(sent.until)), (Some(100), Some(86_500)));
        let sent = request(&["t", "--key", "k"]).unwrap();
        assert_eq!((sent.since, sent.until, sent.state), (None, None, 0));
        let sent = request(&["t", "--tag", "a b", "--state", "dead"]).unwrap();
        assert_eq!((sent.since, sent.state()), (None, ProtoState::Dead));
        assert_eq!((sent.query, sent.conditions.unwrap().tag), (None, "a b".to_owned()));
        let sent = request(&["t", "--fair-key", "f", "--state", "ready"]).unwrap();
        assert_eq!((seconds(sent.since), seconds(sent.until)), (Some(100), Some(86_500)));
        let sent = request(&["t", "--header", "a=b=c", "--state", "ready"]).unwrap();
        assert_eq!(sent.query, Some(Query::Header(JobHeader { name: "a".into(), value: "b=c".into() })));
    }

    #[test]
    fn missing_or_contradictory_search_arguments_are_refused() {
        for words in [
            &["t"][..],
            &["--text", "x", "--state", "dead"],
            &["t", "--text", "x"],
            &["t", "--id", "1"],
            &["t", "--key", "k", "--text", "x", "--state", "dead"],
            &["t", "--key", "k", "--since", "1h"],
            &["--tag", "a"],
            &["--id", "1", "--tag", "a"],
            &["t", "--header", "a", "--state", "dead"],
        ] {
            assert!(request(words).is_err(), "{words:?}");
        }
    }
}
