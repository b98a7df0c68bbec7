//! Output formats: table, JSON, CSV and Parquet. Each holds at most one page of jobs in memory.

use std::{borrow::Cow, io::BufWriter, ops::ControlFlow, path::PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use howdah_archive::{Export, Job};
use howdah_client::proto;
use howdah_engine::archive::Take;
use howdah_server::api::finished_job;
use jiff::Timestamp;
use tempfile::NamedTempFile;

use super::Args;
use crate::commands::{
    failure::Failure,
    jobs::{attempts, with_remark},
    output::Output,
    table::Table,
    text,
};

/// Rows that are printed as one aligned table. Each further group of rows is aligned separately, so that memory stays bounded.
const ROWS: usize = 100;

/// Output format.
enum Form {
    Table { rows: Vec<proto::Job>, is_first: bool },
    Json,
    Csv,
    Parquet { export: Box<Export<BufWriter<NamedTempFile>>>, path: PathBuf },
}

/// Writes the listed jobs in one output format, and counts them.
pub(super) struct Listing {
    form: Form,
    output: Output,
    payload: bool,
    now: Timestamp,
    listed: u64,
    most: u64,
}

impl Listing {
    pub(super) fn new(args: &Args, most: u64) -> Result<Self, Failure> {
        let mut output = Output::new();
        let form = match &args.parquet {
            Some(path) => Form::Parquet { export: begin(path)?, path: path.clone() },
            None if args.csv => {
                output.line(csv_heading(args.payload))?;
                Form::Csv
            }
            None if args.json => Form::Json,
            None => Form::Table { rows: Vec::new(), is_first: true },
        };
        Ok(Self { form, output, payload: args.payload, now: Timestamp::now(), listed: 0, most })
    }

    /// Prints the remaining rows, and returns the number of jobs listed. After a read error, still prints the jobs read so far,
    /// but creates no Parquet file.
    pub(super) fn finish(mut self, read: Result<(), Failure>) -> Result<u64, Failure> {
        self.print_rows()?;
        self.output.flush()?;
        read?;
        if let Form::Parquet { export, path } = self.form {
            let cannot = |problem: &dyn std::fmt::Display| {
                Failure::failed(format!("cannot write {}: {problem}", path.display()))
            };
            let file = export.finish().map_err(|error| cannot(&error))?;
            let file = file.into_inner().map_err(|error| cannot(&error.into_error()))?;
            file.persist(&path).map_err(|error| cannot(&error.error))?;
        }
        Ok(self.listed)
    }

    fn print_rows(&mut self) -> Result<(), Failure> {
        let Form::Table { rows, is_first } = &mut self.form else { return Ok(()) };
        let rows = std::mem::take(rows);
        if !rows.is_empty() {
            self.output.line(table(&rows, self.payload, self.now).with_heading(std::mem::take(is_first)))?;
            self.output.flush()?;
        }
        Ok(())
    }
}

impl Take for Listing {
    type Error = Failure;

    fn take(&mut self, job: &Job<'_>) -> Result<ControlFlow<()>, Failure> {
        self.listed += 1;
        match &mut self.form {
            Form::Json => self.output.job(&finished_job(job))?,
            Form::Csv => self.output.line(csv_line(job, self.payload))?,
            Form::Parquet { export, .. } => export.push(job)?,
            Form::Table { rows, .. } => {
                rows.push(finished_job(job));
                if rows.len() == ROWS {
                    self.print_rows()?;
                }
            }
        }
        Ok(if self.listed == self.most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// Starts a Parquet export to a temporary file beside `path`, which replaces `path` when it is complete.
fn begin(path: &std::path::Path) -> Result<Box<Export<BufWriter<NamedTempFile>>>, Failure> {
    let cannot =
        |problem: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {problem}", path.display()));
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(std::path::Path::new("."));
    let file = NamedTempFile::new_in(directory).map_err(|error| cannot(&error))?;
    Ok(Box::new(Export::new(BufWriter::new(file)).map_err(|error| cannot(&error))?))
}

fn table(jobs: &[proto::Job], payload: bool, now: Timestamp) -> Table<'_, proto::Job> {
    let table = Table::new(jobs)
        .right("ID", |job| job.id)
        .left("TYPE", |job| &job.task_type)
        .left("STATE", |job| text::state(job.state))
        .right("ATTEMPTS", attempts)
        .right("CREATED", |job| text::ago(job.create_time.as_ref(), now))
        .right("FINISHED", |job| text::ago(job.finish_time.as_ref(), now));
    with_remark(table, payload)
}

/// Columns of CSV (RFC 4180), equal to the columns of the archive's files.
const CSV_COLUMNS: &str = "id,task_type,created,leased_at,finished,outcome,attempt,max_attempts,priority,key,limit_key,fair_key,\
                       headers,options,failures,payload_bytes";

/// Returns the heading line with the column names.
fn csv_heading(payload: bool) -> String {
    let more = if payload { ",payload,payload_text,payload_sha256,result,result_text" } else { "" };
    format!("{CSV_COLUMNS}{more}")
}

/// Formats a job as a CSV line.
fn csv_line(job: &Job<'_>, payload: bool) -> String {
    let text = |text: Option<&str>| text.map(|text| quoted(text).into_owned()).unwrap_or_default();
    let mut cells = vec![
        job.id.to_string(),
        text(Some(job.task_type)),
        time(job.created),
        job.leased_at.map(time).unwrap_or_default(),
        time(job.finished),
        text(Some(job.outcome)),
        job.attempt.to_string(),
        job.max_attempts.to_string(),
        job.priority.to_string(),
        text(job.key),
        text(job.limit_key),
        text(job.fair_key),
        text(job.headers),
        text(job.options),
        text(job.failures),
        job.payload_bytes.to_string(),
    ];
    if payload {
        let base64 = |bytes: Option<&[u8]>| bytes.map(|bytes| STANDARD.encode(bytes)).unwrap_or_default();
        let shown = |bytes: Option<&[u8]>| text(bytes.and_then(text::as_text));
        cells.extend([
            base64(job.payload),
            shown(job.payload),
            job.payload_sha256.map(hex::encode).unwrap_or_default(),
            base64(job.result),
            shown(job.result),
        ]);
    }
    cells.join(",")
}

/// Formats a time as RFC 3339 in UTC.
fn time(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map(|time| time.to_string()).unwrap_or_default()
}

/// Quotes text with commas, quotes or line breaks, and empty text, to distinguish it from a missing value.
fn quoted(text: &str) -> Cow<'_, str> {
    if !text.is_empty() && !text.contains([',', '"', '\n', '\r']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_cell_for_each_column_whatever_is_in_it() {
        let job = Job {
            id: 7,
            task_type: "a,b",
            finished: 1_000_000,
            outcome: "succeeded",
            key: Some("say \"no\"\n"),
            limit_key: Some(""),
            payload: Some(b"\xff"),
            result: Some(b"done"),
            ..Job::default()
        };
        let expected =
            "7,\"a,b\",1970-01-01T00:00:00Z,,1970-01-01T00:00:01Z,succeeded,0,0,0,\"say \"\"no\"\"\n\",\"\",,,,,0";
        assert_eq!(csv_line(&job, false), expected);
        assert_eq!(csv_line(&job, true), format!("{expected},/w==,,,ZG9uZQ==,done"));
        assert_eq!(csv_heading(true).split(',').count(), 21);
    }
}
