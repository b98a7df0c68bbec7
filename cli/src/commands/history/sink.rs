//! Output formats: table, JSON, CSV and Parquet. Each holds at most one page of jobs in memory.

use std::{io::BufWriter, ops::ControlFlow, path::PathBuf};

use howdah_archive::{Export, Job};
use howdah_client::proto;
use howdah_core::logging::escaped;
use howdah_engine::archive::Take;
use howdah_server::api::finished_job;
use jiff::Timestamp;
use tempfile::NamedTempFile;

use super::{Args, csv};
use crate::commands::{
    failure::Failure,
    jobs::remark,
    output::Output,
    table::{Align, Table},
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
                output.line(csv::heading(args.payload))?;
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
            let table = table(&rows, self.payload, self.now);
            self.output.line(if std::mem::take(is_first) { table } else { table.without_heading() })?;
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
            Form::Csv => self.output.line(csv::line(job, self.payload))?,
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

fn table(jobs: &[proto::Job], payload: bool, now: Timestamp) -> Table<7> {
    let mut table = Table::new([
        ("ID", Align::Right),
        ("TYPE", Align::Left),
        ("STATE", Align::Left),
        ("ATTEMPTS", Align::Right),
        ("CREATED", Align::Right),
        ("FINISHED", Align::Right),
        (if payload { "PAYLOAD" } else { "KEY, LAST ERROR" }, Align::Left),
    ]);
    for job in jobs {
        let ago =
            |time: &Option<_>| text::timestamp(time.as_ref()).map(|time| text::relative(time, now)).unwrap_or_default();
        table.row([
            job.id.to_string(),
            escaped(&job.task_type).into_owned(),
            text::state(job.state).to_owned(),
            format!("{}/{}", job.attempt, job.max_attempts),
            ago(&job.create_time),
            ago(&job.finish_time),
            if payload { text::payload_summary(&job.payload) } else { remark(job) },
        ]);
    }
    table
}
