//! Description of an action's target for the confirmation page: a number of jobs with three examples, or another named
//! object.

use howdah_core::error::Error;
use howdah_proto::v1::{self, BulkOperation, JobState};
use tonic::Code;

use crate::{
    api::{
        local::CountedType,
        verbs::{GetBulk, GetJob, ListErrorGroups, ListJobs, PreviewBulk, UpdateTaskType},
    },
    page::{
        PageError, PageRequest,
        action::{Action, ActionKind, Target},
        type_settings::{Given, changes},
        views::{
            parts::{JobRow, counts},
            spec,
        },
        words::{State, counted, number, span, wire_span},
    },
};

/// Number of example jobs on a confirmation page.
const EXAMPLES: usize = 3;
/// Maximum number of jobs to look up for the examples. It exceeds `EXAMPLES`, because some of the selected jobs may not
/// exist.
const LOOKED_AT: usize = 10;

/// Description of an action's target.
#[derive(Default)]
pub(super) struct About {
    /// Name of the target, or the number of jobs.
    pub(super) name: String,
    /// Message that there is nothing to change; `None` if the action has a target.
    pub(super) nothing: Option<String>,
    /// Names and values of the action's parameters.
    pub(super) facts: Vec<(&'static str, String)>,
    /// Further notes on the effect, in sentences.
    pub(super) notes: Vec<String>,
    pub(super) examples: Vec<JobRow>,
    /// Settings of a task type that the action changes.
    pub(super) given: Given,
}

/// Returns those parameters of an action on jobs that are not part of the question.
pub(super) fn facts(action: &Action) -> Vec<(&'static str, String)> {
    match (spec::from_action(action), &action.target) {
        (Some(spec), _) => spec::facts(&spec),
        (None, Target::OfType { group, .. }) if !group.is_empty() => vec![("Last error", group.clone())],
        _ => Vec::new(),
    }
}

impl About {
    pub(super) async fn load(req: &PageRequest, action: &Action) -> Result<Self, PageError> {
        let about = match &action.target {
            Target::Jobs(ids) => Self::of_jobs(req, ids).await?,
            Target::OfType { .. } | Target::Bulk(_) if action.kind.starts().is_some() => {
                Self::of_bulk(req, action).await?
            }
            Target::OfType { task_type, state, group } => {
                known(req, task_type).await?;
                Self::of_type(req, action.kind, task_type, *state, group).await?
            }
            Target::Type(name) if action.kind == ActionKind::SetType => {
                Self::of_settings(req, name, &action.given).await?
            }
            Target::Type(name) => {
                known(req, name).await?;
                Self::named(name.clone())
            }
            Target::Key { task_type, key } => {
                known(req, task_type).await?;
                Self::named(format!("the limit key {key:?} of {task_type}"))
            }
            Target::Bulk(id) => Self {
                facts: bulk(req, *id).await?.into_iter().collect(),
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

    /// Describes a change of a type's settings, with the old and the new value of each. The form has the values of the first
    /// store. A setting whose value was changed in the form changes in all stores.
    async fn of_settings(req: &PageRequest, name: &str, given: &Given) -> Result<Self, PageError> {
        let known = req.calls().counted_type(&req.by, name).await?;
        let first = known.view.settings.unwrap_or_default();
        let given = given.clone().without_unchanged(&first, &given.applied_to(&first)?);
        let mut all: Vec<(&str, Vec<(&'static str, String)>)> = Vec::new();
        for (store, old) in &known.settings {
            let new = given.applied_to(old)?;
            let settings = Some(new.clone());
            let update = v1::UpdateTaskTypeRequest { task_type: name.to_owned(), settings, update_mask: None };
            req.calls().check::<UpdateTaskType>(update)?;
            all.push((store.as_str(), changes(old, &new, &req.type_defaults())));
        }
        let is_same = all.iter().all(|(_, facts)| all.first().is_some_and(|(_, first)| first == facts));
        if is_same {
            all.truncate(1);
        }
        let of_store = |(store, facts): (&str, Vec<(&'static str, String)>)| {
            let named = |text| if is_same { text } else { format!("{text} (store {store})") };
            facts.into_iter().map(|(label, text)| (label, named(text))).collect::<Vec<_>>()
        };
        let facts: Vec<_> = all.into_iter().flat_map(of_store).collect();
        Ok(Self {
            nothing: facts.is_empty().then(|| format!("{name} has these settings")),
            facts,
            given,
            ..Self::named(name.to_owned())
        })
    }

    async fn of_bulk(req: &PageRequest, action: &Action) -> Result<Self, PageError> {
        let wanted = spec::from_action(action).unwrap_or_default();
        let (name, facts) = match &action.target {
            Target::Bulk(id) => (format!("bulk operation {id}"), bulk(req, *id).await?),
            _ => (wanted.task_type.clone(), None),
        };
        let preview = async |spec| req.calls().call::<PreviewBulk>(&req.by, v1::PreviewBulkRequest { spec }).await;
        let answer = preview(Some(wanted.clone())).await?.into_inner();
        if !wanted.task_type.is_empty() {
            known(req, &wanted.task_type).await?;
        }
        let nothing = answer.selected_count == 0 && !answer.has_more;
        let mut notes = Vec::new();
        // The confirmation of a cancel states the number of running jobs, because a cancel interrupts them. In an error
        // group no job runs, because all have failed.
        let may_run = wanted.operation() == BulkOperation::Cancel && wanted.state == 0 && wanted.error_group.is_empty();
        if may_run && !nothing {
            let running = v1::BulkSpec { state: JobState::Leased.into(), ..wanted.clone() };
            let running = preview(Some(running)).await?.into_inner();
            let more = if running.has_more { "more than " } else { "" };
            notes.push(match running.selected_count {
                0 => "None of the selected jobs is running.".into(),
                n => format!("Of the selected jobs, {more}{} now.", runs(n)),
            });
        }
        if !wanted.to_task_type.is_empty() && req.is_unknown(&wanted.to_task_type).await {
            notes.push(format!("There is no task type {} yet: it will be created.", wanted.to_task_type));
        }
        notes.extend(answer.expected_duration.map(|time| match time.seconds {
            0 => "Expected duration: less than a second.".into(),
            _ => format!("Expected duration: about {}.", wire_span(time)),
        }));
        Ok(Self {
            name: selected(&answer, &name),
            nothing: nothing.then(|| match action.kind {
                ActionKind::UndoBulk => format!("{name} has no job to put back"),
                _ => format!("{name} has no such job"),
            }),
            facts: facts.into_iter().collect(),
            notes,
            examples: answer.examples.into_iter().map(JobRow::new).collect(),
            given: Given::default(),
        })
    }

    async fn of_jobs(req: &PageRequest, ids: &[i64]) -> Result<Self, PageError> {
        let (mut examples, mut missing) = (Vec::new(), Vec::new());
        for id in ids.iter().take(LOOKED_AT) {
            if examples.len() == EXAMPLES {
                break;
            }
            match req.calls().call::<GetJob>(&req.by, v1::GetJobRequest { id: *id }).await {
                Ok(answer) => examples.extend(answer.into_inner().job.map(JobRow::new)),
                // Skips a missing job, because other selected jobs may exist.
                Err(status) if status.code() == Code::NotFound && ids.len() > 1 => missing.push(*id),
                Err(status) => return Err(status.into()),
            }
        }
        if missing.len() == ids.len() {
            return Err(Error::NotFound("none of these jobs exist".into()).into());
        }
        let notes = missing.iter().map(|id| format!("There is no job {id}.")).collect();
        let name = counted((ids.len() - missing.len()) as i64, "job");
        Ok(Self { notes, examples, ..Self::named(name) })
    }

    async fn of_type(
        req: &PageRequest,
        kind: ActionKind,
        task_type: &str,
        state: Option<JobState>,
        group: &str,
    ) -> Result<Self, PageError> {
        let request = v1::ListJobsRequest {
            task_type: task_type.to_owned(),
            state: state.unwrap_or_default() as i32,
            page_size: EXAMPLES as i32,
            error_group: if state == Some(JobState::Dead) { group.to_owned() } else { String::new() },
            ..Default::default()
        };
        let answer = req.calls().call::<ListJobs>(&req.by, request).await?.into_inner();
        let examples: Vec<JobRow> = answer.jobs.into_iter().map(JobRow::new).collect();
        if examples.is_empty() && answer.next_page_token.is_empty() {
            let kind = state.map_or(String::new(), |state| format!("{} ", State::new(state).word));
            let with = if group.is_empty() { "" } else { " with this error" };
            let nothing = Some(format!("{task_type} has no {kind}job{with}"));
            return Ok(Self { nothing, ..Self::default() });
        }
        let (name, running) = if group.is_empty() {
            of_state(req, task_type, state, examples.len() as i64).await?
        } else {
            (in_group(req, task_type, group).await?, 0)
        };
        let counts_running = kind == ActionKind::Cancel && state.is_none() && running > 0;
        let notes = if counts_running {
            vec![format!("Of the selected jobs, about {} now.", runs(running))]
        } else {
            Vec::new()
        };
        Ok(Self { notes, examples, ..Self::named(name) })
    }
}

/// Fails if the task type does not exist, or if the user may not read the type.
async fn known(req: &PageRequest, task_type: &str) -> Result<(), PageError> {
    if req.is_unknown(task_type).await {
        return Err(Error::NotFound(format!("there is no task type {task_type}")).into());
    }
    Ok(())
}

/// Returns a description of the bulk operation, if the user may read it.
async fn bulk(req: &PageRequest, id: i64) -> Result<Option<(&'static str, String)>, PageError> {
    match req.calls().call::<GetBulk>(&req.by, v1::GetBulkRequest { id }).await {
        Ok(answer) => {
            let spec = answer.into_inner().bulk.and_then(|bulk| bulk.spec).unwrap_or_default();
            Ok(Some(("What it does", format!("{}: {}", spec.task_type, spec::describe(&spec)))))
        }
        Err(status) if status.code() == Code::PermissionDenied => Ok(None),
        Err(status) => Err(status.into()),
    }
}

/// Describes how many jobs a bulk operation would change, from the count of a preview.
pub(super) fn selected(answer: &v1::PreviewBulkResponse, name: &str) -> String {
    let selected = number(answer.selected_count);
    match (answer.has_more, answer.states_count) {
        (true, Some(all)) => {
            format!("more than {selected} jobs of {name} (it has about {} in these states)", number(all))
        }
        (true, None) => format!("more than {selected} jobs of {name}"),
        (false, _) => format!("{} of {name}", counted(answer.selected_count, "job")),
    }
}

/// Describes the last count of jobs of a type and state. Says "all" if there is no count, or if the count is lower than
/// `seen`. Also returns the number of running jobs of the type.
pub(super) async fn of_state(
    req: &PageRequest,
    task_type: &str,
    state: Option<JobState>,
    seen: i64,
) -> Result<(String, i64), PageError> {
    let word = state.map(|state| State::new(state).word);
    let CountedType { view, age, .. } = req.calls().counted_type(&req.by, task_type).await?;
    let running = view.counts.unwrap_or_default().leased;
    let counts = counts(view.counts.unwrap_or_default());
    let count: i64 = counts.iter().filter(|(known, _)| word.is_none_or(|word| word == *known)).map(|(_, n)| n).sum();
    let kind = word.map_or("job".into(), |word| format!("{word} job"));
    let name = match age {
        Some(age) if count >= seen => {
            format!("about {} of {task_type} (counted {} ago)", counted(count, &kind), span(age))
        }
        _ => format!("all {kind}s of {task_type}"),
    };
    Ok((name, running))
}

/// Describes the number of jobs in an error group.
pub(super) async fn in_group(req: &PageRequest, task_type: &str, group: &str) -> Result<String, PageError> {
    let request = v1::ListErrorGroupsRequest { task_type: task_type.to_owned(), page_size: 1_000 };
    let groups = req.calls().call::<ListErrorGroups>(&req.by, request).await?.into_inner().groups;
    let count = groups.iter().find(|known| known.error_group == group).map(|known| known.dead_count);
    let count = count.map_or("all dead jobs".into(), |count| counted(count, "dead job"));
    Ok(format!("{count} of {task_type} with this error"))
}

/// Formats `1 job runs`, `2 jobs run`.
pub(super) fn runs(jobs: i64) -> String {
    format!("{} {}", counted(jobs, "job"), if jobs == 1 { "runs" } else { "run" })
}
