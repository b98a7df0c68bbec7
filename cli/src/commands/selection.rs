//! The jobs that a command selects, by id or by type, and the calls for all of them.

use std::{collections::HashSet, ops::AsyncFn};

use howdah_client::{Client, proto::JobFilter};
use serde_json::json;

use super::{
    failure::Failure,
    output::{Output, note},
    task_type, text, values,
};

/// The most ids in a call: as many as every cluster accepts, whatever its `batch` is.
const BATCH: usize = 1_000;

/// Jobs by id, or by type.
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// Ids of the jobs
    #[arg(value_name = "ID", required_unless_present = "of_type", conflicts_with = "of_type", value_parser = values::id)]
    ids: Vec<i64>,
    /// Select jobs of this task type, instead of ids
    #[arg(id = "of_type", long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// With --type: select only jobs whose last error belongs to this group, as `howdah errors` shows it; or give one
    /// of the errors
    #[arg(long = "error", value_name = "GROUP", requires = "of_type", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    error_group: Option<String>,
}

/// The operation of a command on jobs, in words.
pub(super) struct Operation {
    /// As in "was not retried"; also the name in JSON.
    pub(super) done: &'static str,
    /// Why the broker left out a job.
    pub(super) otherwise: &'static str,
}

/// The answer to one call.
pub(super) struct Answer {
    /// The jobs that were changed.
    pub(super) done: Vec<i64>,
    /// The jobs that stay dead because another job holds their key.
    pub(super) key_held: Vec<i64>,
    /// The token of the next call.
    pub(super) next: String,
}

impl Selection {
    /// Calls until all jobs are done, and prints their ids. The command fails if an id was left out.
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
                missed += answer.key_held.len() + left_out(&filter, &answer, json, operation, &mut output)?;
                output.flush()?;
                // Otherwise a broker that repeats a token would keep us here forever.
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
                "no job that can be {} has an error of the group {group:?}; `howdah errors` lists the groups",
                operation.done
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
                ..JobFilter::default()
            }],
            None => self.ids.chunks(BATCH).map(|ids| JobFilter { ids: ids.to_vec(), ..JobFilter::default() }).collect(),
        }
    }
}

/// Prints the ids that were left out, and returns their number.
fn left_out(
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
