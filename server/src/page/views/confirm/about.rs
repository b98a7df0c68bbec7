//! What a question is about: so many jobs and three of them, or something else that has a name.

use howdah_proto::v1::{self, BulkOperation, JobState};
use tonic::Code;

use super::{
    super::{parts::JobRow, spec},
    numbers::{in_group, of_state, runs, selected},
};
use crate::{
    error::Error,
    page::{
        Trouble, Visit,
        action::{Action, Target},
        what::What,
        words::{State, counted, plain, wire_span},
    },
};

/// Jobs that are shown.
const EXAMPLES: usize = 3;
/// The most jobs by id that are looked at to find these.
const LOOKED_AT: usize = 10;

/// What an action is about.
#[derive(Default)]
pub(super) struct About {
    /// So many jobs, or what else it is done to.
    pub(super) name: String,
    /// Why there is nothing to do it to; `None`: there is something.
    pub(super) nothing: Option<String>,
    /// All that was asked for.
    pub(super) facts: Vec<(&'static str, String)>,
    /// What else one should know, in sentences.
    pub(super) notes: Vec<String>,
    pub(super) examples: Vec<JobRow>,
}

/// All that an action on jobs asks for, besides what the question says.
pub(super) fn facts(action: &Action) -> Vec<(&'static str, String)> {
    match (spec::of(action), &action.target) {
        (Some(spec), _) => spec::facts(&spec),
        (None, Target::OfType { group, .. }) if !group.is_empty() => vec![("Last error", plain(group))],
        _ => Vec::new(),
    }
}

impl About {
    pub(super) async fn of(visit: &Visit, action: &Action) -> Result<Self, Trouble> {
        let about = match &action.target {
            Target::Jobs(ids) => Self::of_jobs(visit, ids).await?,
            Target::OfType { .. } | Target::Bulk(_) if action.what.starts().is_some() => {
                Self::of_bulk(visit, action).await?
            }
            Target::OfType { task_type, state, group } => {
                known(visit, task_type).await?;
                Self::of_type(visit, action.what, task_type, *state, group).await?
            }
            Target::Type(name) => {
                known(visit, name).await?;
                Self::named(name.clone())
            }
            Target::Key { task_type, key } => {
                known(visit, task_type).await?;
                Self::named(format!("the limit key {key:?} of {task_type}"))
            }
            Target::Bulk(id) => Self {
                facts: bulk(visit, *id).await?.into_iter().collect(),
                ..Self::named(format!("the bulk operation {id}"))
            },
            Target::Schedule(name) => Self::named(format!("the schedule {name}")),
        };
        let mut all = facts(action);
        all.extend(about.facts);
        Ok(Self { facts: all, ..about })
    }

    fn named(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    async fn of_bulk(visit: &Visit, action: &Action) -> Result<Self, Trouble> {
        let wanted = spec::of(action).unwrap_or_default();
        let (name, facts) = match &action.target {
            Target::Bulk(id) => (format!("bulk operation {id}"), bulk(visit, *id).await?),
            _ => (wanted.task_type.clone(), None),
        };
        let preview = async |spec| visit.calls().preview_bulk(&visit.by, v1::PreviewBulkRequest { spec }).await;
        let answer = preview(Some(wanted.clone())).await?.into_inner();
        if !wanted.task_type.is_empty() {
            known(visit, &wanted.task_type).await?;
        }
        let nothing = answer.selected_count == 0 && !answer.has_more;
        let mut notes = Vec::new();
        // What was cancelled while it ran has a worker to be told; an error group has only jobs that have failed.
        let may_run = wanted.operation() == BulkOperation::Cancel && wanted.state == 0 && wanted.error_group.is_empty();
        if may_run && !nothing {
            let running = v1::BulkSpec { state: JobState::Leased.into(), ..wanted.clone() };
            let running = preview(Some(running)).await?.into_inner();
            let more = if running.has_more { "more than " } else { "" };
            notes.push(match running.selected_count {
                0 => "None of them runs now.".into(),
                n => format!("Of them, {more}{} now.", runs(n)),
            });
        }
        if !wanted.to_task_type.is_empty() && visit.is_unknown(&wanted.to_task_type).await {
            notes.push(format!("There is no task type {} yet: it is made.", wanted.to_task_type));
        }
        notes.extend(answer.expected_duration.map(|time| match time.seconds {
            0 => "It takes less than a second.".into(),
            _ => format!("It takes about {}.", wire_span(time)),
        }));
        Ok(Self {
            name: selected(&answer, &name),
            nothing: nothing.then(|| match action.what {
                What::UndoBulk => format!("{name} has no job to put back"),
                _ => format!("{name} has no such job"),
            }),
            facts: facts.into_iter().collect(),
            notes,
            examples: answer.examples.into_iter().map(JobRow::of).collect(),
        })
    }

    async fn of_jobs(visit: &Visit, ids: &[i64]) -> Result<Self, Trouble> {
        let (mut examples, mut missing) = (Vec::new(), Vec::new());
        for id in ids.iter().take(LOOKED_AT) {
            if examples.len() == EXAMPLES {
                break;
            }
            match visit.calls().get_job(&visit.by, v1::GetJobRequest { id: *id }).await {
                Ok(answer) => examples.extend(answer.into_inner().job.map(JobRow::of)),
                // The others may be there.
                Err(status) if status.code() == Code::NotFound && ids.len() > 1 => missing.push(*id),
                Err(status) => return Err(status.into()),
            }
        }
        if missing.len() == ids.len() {
            return Err(Error::NotFound("none of these jobs exists".into()).into());
        }
        let notes = missing.iter().map(|id| format!("There is no job {id}.")).collect();
        let name = counted((ids.len() - missing.len()) as i64, "job");
        Ok(Self { notes, examples, ..Self::named(name) })
    }

    async fn of_type(
        visit: &Visit,
        what: What,
        task_type: &str,
        state: Option<JobState>,
        group: &str,
    ) -> Result<Self, Trouble> {
        let request = v1::ListJobsRequest {
            task_type: task_type.to_owned(),
            state: state.unwrap_or_default() as i32,
            page_size: EXAMPLES as i32,
            error_group: if state == Some(JobState::Dead) { group.to_owned() } else { String::new() },
            ..Default::default()
        };
        let answer = visit.calls().list_jobs(&visit.by, request).await?.into_inner();
        let examples: Vec<JobRow> = answer.jobs.into_iter().map(JobRow::of).collect();
        if examples.is_empty() && answer.next_page_token.is_empty() {
            let kind = state.map_or(String::new(), |state| format!("{} ", State::of(state).word));
            let with = if group.is_empty() { "" } else { " with this error" };
            let nothing = Some(format!("{task_type} has no {kind}job{with}"));
            return Ok(Self { nothing, ..Self::default() });
        }
        let (name, running) = if group.is_empty() {
            of_state(visit, task_type, state, examples.len() as i64).await?
        } else {
            (in_group(visit, task_type, group).await?, 0)
        };
        let is_told = what == What::Cancel && state.is_none() && running > 0;
        let notes = if is_told { vec![format!("Of them, about {} now.", runs(running))] } else { Vec::new() };
        Ok(Self { notes, examples, ..Self::named(name) })
    }
}

/// Fails if there is no such task type, as far as the person who looks may know.
async fn known(visit: &Visit, task_type: &str) -> Result<(), Trouble> {
    if visit.is_unknown(task_type).await {
        return Err(Error::NotFound(format!("there is no task type {task_type}")).into());
    }
    Ok(())
}

/// What a bulk operation does, if the person who looks may know.
async fn bulk(visit: &Visit, id: i64) -> Result<Option<(&'static str, String)>, Trouble> {
    match visit.calls().get_bulk(&visit.by, v1::GetBulkRequest { id }).await {
        Ok(answer) => {
            let spec = answer.into_inner().bulk.and_then(|bulk| bulk.spec).unwrap_or_default();
            Ok(Some(("What it does", format!("{}: {}", spec.task_type, spec::told(&spec)))))
        }
        Err(status) if status.code() == Code::PermissionDenied => Ok(None),
        Err(status) => Err(status.into()),
    }
}
