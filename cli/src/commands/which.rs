//! Which jobs a command is about: ids, or those of a type; and the way through them.

use std::{collections::HashSet, ops::AsyncFn};

use howdah_client::proto::JobFilter;
use serde_json::json;

use super::{
    failure::Failure,
    output::{Output, note},
};

/// Ids in a call: as many as every cluster accepts, whatever its `batch` is.
const BATCH: usize = 1_000;

/// Jobs by id, or by type.
#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// Ids of jobs
    #[arg(value_name = "ID", required_unless_present = "of_type", conflicts_with = "of_type")]
    ids: Vec<i64>,
    /// Instead of ids, the jobs of a task type
    #[arg(id = "of_type", long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Of the type, only jobs whose last error is of this group: as howdah errors shows it, or one of the errors
    #[arg(long = "error", value_name = "GROUP", requires = "of_type", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    error_group: Option<String>,
}

/// What a command does to jobs.
pub(super) struct Verb {
    /// As in "was not retried", and the name in JSON.
    pub(super) done: &'static str,
    /// Why a job was left out.
    pub(super) otherwise: &'static str,
}

/// What one call did.
pub(super) struct Answer {
    /// To these it was done.
    pub(super) done: Vec<i64>,
    /// These stay dead: another job has their key.
    pub(super) key_held: Vec<i64>,
    /// The token of the next call.
    pub(super) next: String,
}

impl Which {
    /// Calls until all are worked off, and prints the ids. An id that was left out makes the command fail.
    pub(super) async fn work_off(
        &self,
        state: i32,
        json: bool,
        verb: &Verb,
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
                    if json { output.json(&json!({"id": id, verb.done: true}))? } else { output.line(id)? }
                }
                for id in &answer.key_held {
                    if json {
                        output.json(&json!({"id": id, verb.done: false, "key_held": true}))?;
                    } else {
                        note(format_args!("job {id} was not {}: another job has its key", verb.done));
                    }
                }
                missed += answer.key_held.len() + left_out(&filter, &answer, json, verb, &mut output)?;
                output.flush()?;
                // A broker that repeats a token would keep us here for ever.
                if answer.next.is_empty() || answer.next == token {
                    break;
                }
                token = answer.next;
            }
        }
        if let Some(task_type) = &self.task_type {
            note(format_args!("{done} jobs of type {task_type:?} {}", verb.done));
        }
        if missed > 0 { Err(Failure::failed(format!("{missed} jobs were not {}", verb.done))) } else { Ok(()) }
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

/// Says which of the ids were left out, and how many.
fn left_out(
    filter: &JobFilter,
    answer: &Answer,
    json: bool,
    verb: &Verb,
    output: &mut Output,
) -> Result<usize, Failure> {
    let told: HashSet<i64> = answer.done.iter().chain(&answer.key_held).copied().collect();
    let mut missed = 0;
    for id in filter.ids.iter().filter(|id| !told.contains(id)) {
        missed += 1;
        if json {
            output.json(&json!({"id": id, verb.done: false}))?;
        } else {
            note(format_args!("job {id} was not {}: {}", verb.done, verb.otherwise));
        }
    }
    Ok(missed)
}
