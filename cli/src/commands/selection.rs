//! Selection of jobs by id or by type, and the calls that process all selected jobs.

use std::{collections::HashSet, ops::AsyncFn};

use howdah_client::{Client, proto::JobFilter};
use serde_json::json;

use super::{
    conditions::Conditions,
    failure::Failure,
    output::{Output, note},
    task_type, text, values,
};

/// Maximum number of ids per call. Every cluster accepts this many, because it is the minimum of the setting `batch`.
const BATCH: usize = 1_000;

/// Flags that select jobs by id or by type.
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// Ids of the jobs
    #[arg(value_name = "ID", required_unless_present = "of_type", conflicts_with_all = ["of_type", "Conditions"], value_parser = values::id)]
    ids: Vec<i64>,
    /// Select jobs of this task type, instead of ids
    #[arg(id = "of_type", long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// With --type: select only jobs whose last error belongs to this group, as shown by `howdah errors`; also accepts one of the
    /// errors, unless the worker reported its place
    #[arg(long = "error", value_name = "GROUP", requires = "of_type", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    error_group: Option<String>,
    #[command(flatten)]
    conditions: Conditions,
}

/// Words for a command's operation on jobs, used in messages and JSON.
pub(super) struct Operation {
    /// Past participle of the operation, as in "was not retried". Also the field name in JSON.
    pub(super) done: &'static str,
    /// Reason why the broker did not change a job.
    pub(super) otherwise: &'static str,
}

/// Answer to one call that changes selected jobs.
pub(super) struct Answer {
    /// Ids of changed jobs.
    pub(super) done: Vec<i64>,
    /// Ids of jobs that stay dead because another job holds their key.
    pub(super) key_held: Vec<i64>,
    /// Page token of the next call.
    pub(super) next: String,
}

impl Selection {
    /// Repeats `call` until all selected jobs are processed, and prints the ids of changed jobs. Fails if a job was not
    /// changed.
    pub(super) async fn apply(
        &self,
        client: &Client,
        state: i32,
        json: bool,
        operation: &Operation,
        call: impl AsyncFn(JobFilter, String) -> Result<Answer, Failure>,
    ) -> Result<(), Failure> {
        let mut output = Output::new();
        let (mut done, mut missed) = (0, 0);
        for filter in self.filters(state) {
            let mut token = String::new();
            loop {
                let answer = call(filter.clone(), token.clone()).await?;
                done += answer.done.len();
                for id in &answer.done {
                    if json { output.json(&json!({"id": id, operation.done: true}))? } else { output.line(id)? }
                }
                for id in &answer.key_held {
                    if json {
                        output.json(&json!({"id": id, operation.done: false, "key_held": true}))?;
                    } else {
                        note(format_args!("job {id} was not {}: another job holds its key", operation.done));
                    }
                }
                missed += answer.key_held.len() + print_unchanged(&filter, &answer, json, operation, &mut output)?;
                output.flush()?;
                // The loop also ends if a broker repeats a page token, because it would otherwise be endless.
                if answer.next.is_empty() || answer.next == token {
                    break;
                }
                token = answer.next;
            }
        }
        if let (Some(task_type), 0) = (&self.task_type, done + missed) {
            task_type::must_exist(client, &**task_type).await?;
        }
        if let Some(task_type) = &self.task_type {
            note(format_args!("{} of type {task_type:?} {}", text::jobs(done as i64), operation.done));
        }
        if let (Some(group), 0) = (&self.error_group, done + missed) {
            return Err(Failure::failed(format!(
                "no job that can be {} has an error of the group {group:?}; `howdah errors` lists the groups, with their places",
                operation.done
            )));
        }
        if let (Some(worker), 0) = (self.conditions.worker(), done + missed) {
            return Err(Failure::failed(format!(
                "no such job is known to be at the worker {worker:?}; `howdah workers` lists the workers"
            )));
        }
        match missed {
            0 => Ok(()),
            missed => Err(Failure::failed(format!("{} not {}", text::jobs_were(missed), operation.done))),
        }
    }

    fn filters(&self, state: i32) -> Vec<JobFilter> {
        match &self.task_type {
            Some(task_type) => vec![JobFilter {
                task_type: task_type.clone(),
                state,
                error_group: self.error_group.clone().unwrap_or_default(),
                conditions: self.conditions.message(),
                ..JobFilter::default()
            }],
            None => self.ids.chunks(BATCH).map(|ids| JobFilter { ids: ids.to_vec(), ..JobFilter::default() }).collect(),
        }
    }
}

/// Prints the ids of jobs that were not changed, and returns their number.
fn print_unchanged(
    filter: &JobFilter,
    answer: &Answer,
    json: bool,
    operation: &Operation,
    output: &mut Output,
) -> Result<usize, Failure> {
    let answered: HashSet<i64> = answer.done.iter().chain(&answer.key_held).copied().collect();
    let mut missed = 0;
    for id in filter.ids.iter().filter(|id| !answered.contains(id)) {
        missed += 1;
        if json {
            output.json(&json!({"id": id, operation.done: false}))?;
        } else {
            note(format_args!("job {id} was not {}: {}", operation.done, operation.otherwise));
        }
    }
    Ok(missed)
}
