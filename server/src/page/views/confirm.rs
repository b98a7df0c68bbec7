//! Asks before anything is done: how many, three examples, what follows.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, JobState};
use tonic::Code;

use super::{bulks, parts::JobRow};
use crate::page::{
    Trouble, Visit,
    action::{Action, Target},
    layout::{Layout, answer, shown},
    visit::within,
    words::{State, counted, number, span, wire_span},
};

/// Jobs that are shown.
const EXAMPLES: usize = 3;

#[derive(Template)]
#[template(path = "confirm.html")]
struct View {
    layout: Layout,
    title: String,
    effect: &'static str,
    /// How long it takes, if that is known.
    takes: String,
    call: &'static str,
    button: &'static str,
    is_final: bool,
    examples: Vec<JobRow>,
    /// Names and values of the form.
    hidden: Vec<(&'static str, String)>,
    back: String,
}

/// The question.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let action = Action::of(&visit.params)?;
    let about = About::of(&visit, &action).await?;
    let words = action.what.words();
    let title = match &about.count {
        Some(count) => format!("{} {count}?", words.button),
        None => format!("{} {}?", words.button, about.name),
    };
    let back = within(visit.params.get("back")).to_owned();
    let view = View {
        layout: visit.layout(""),
        title,
        effect: words.effect,
        call: words.call,
        button: words.button,
        is_final: words.is_final,
        takes: about.takes,
        examples: about.examples,
        hidden: hidden(&action, &back, ""),
        back,
    };
    shown(&view)
}

/// The names and values of the form that goes on with an action.
fn hidden(action: &Action, back: &str, page: &str) -> Vec<(&'static str, String)> {
    let mut hidden = action.pairs();
    hidden.extend([("back", back.to_owned()), ("page", page.to_owned()), ("sure", "yes".to_owned())]);
    if action.what.is_once() {
        hidden.push(("once", format!("page:{:032x}", rand::random::<u128>())));
    }
    hidden.retain(|(_, value)| !value.is_empty());
    hidden
}

/// The page that asks whether to go on: one call does a part of many jobs.
pub(super) fn go_on(visit: &Visit, action: &Action, done: usize, page: &str) -> Response {
    let words = action.what.words();
    let back = within(visit.params.get("back")).to_owned();
    let view = View {
        layout: visit.layout(""),
        title: format!("{} jobs were {}. There are more: go on?", number(done as i64), words.done),
        effect: words.effect,
        call: words.call,
        button: "Go on",
        takes: String::new(),
        is_final: words.is_final,
        examples: Vec::new(),
        hidden: hidden(action, &back, page),
        back,
    };
    answer(axum::http::StatusCode::OK, &view)
}

/// What an action is about.
#[derive(Default)]
struct About {
    /// How many jobs, in words; `None`: it is not about jobs.
    count: Option<String>,
    name: String,
    takes: String,
    examples: Vec<JobRow>,
}

impl About {
    async fn of(visit: &Visit, action: &Action) -> Result<Self, Trouble> {
        match &action.target {
            Target::Jobs(ids) => Self::of_jobs(visit, ids).await,
            Target::OfType { .. } | Target::Bulk(_) if action.what.starts().is_some() => {
                Self::of_bulk(visit, action).await
            }
            Target::OfType { task_type, state, group } => Self::of_type(visit, task_type, *state, group).await,
            Target::Type(name) => Ok(Self { name: name.clone(), ..Self::default() }),
            Target::Key { task_type, key } => {
                Ok(Self { name: format!("the limit key {key:?} of {task_type}"), ..Self::default() })
            }
            Target::Bulk(id) => Ok(Self { name: format!("the bulk operation {id}"), ..Self::default() }),
            Target::Schedule(name) => Ok(Self { name: format!("the schedule {name}"), ..Self::default() }),
        }
    }

    async fn of_bulk(visit: &Visit, action: &Action) -> Result<Self, Trouble> {
        let spec = bulks::spec(action);
        let name = match &action.target {
            Target::Bulk(id) => format!("bulk operation {id}"),
            _ => spec.as_ref().map(|spec| spec.task_type.clone()).unwrap_or_default(),
        };
        let answer = visit.calls().preview_bulk(&visit.by, v1::PreviewBulkRequest { spec }).await?.into_inner();
        let selected = number(answer.selected_count);
        let count = match (answer.has_more, answer.states_count) {
            (true, Some(all)) => {
                format!("more than {selected} jobs of {name} (it has about {} in these states)", number(all))
            }
            (true, None) => format!("more than {selected} jobs of {name}"),
            (false, _) => format!("{} of {name}", counted(answer.selected_count, "job")),
        };
        let takes = answer.expected_duration.filter(|time| time.seconds > 0).map(wire_span).unwrap_or_default();
        let examples = answer.examples.into_iter().map(JobRow::of).collect();
        Ok(Self { count: Some(count), takes, examples, ..Self::default() })
    }

    async fn of_jobs(visit: &Visit, ids: &[i64]) -> Result<Self, Trouble> {
        let mut examples = Vec::new();
        for id in ids.iter().take(EXAMPLES) {
            match visit.calls().get_job(&visit.by, v1::GetJobRequest { id: *id }).await {
                Ok(answer) => examples.extend(answer.into_inner().job.map(JobRow::of)),
                // The others may be there.
                Err(status) if status.code() == Code::NotFound && ids.len() > 1 => {}
                Err(status) => return Err(status.into()),
            }
        }
        Ok(Self { count: Some(counted(ids.len() as i64, "job")), examples, ..Self::default() })
    }

    async fn of_type(visit: &Visit, task_type: &str, state: Option<JobState>, group: &str) -> Result<Self, Trouble> {
        let request = v1::ListJobsRequest {
            task_type: task_type.to_owned(),
            state: state.unwrap_or_default() as i32,
            page_size: EXAMPLES as i32,
            error_group: if state == Some(JobState::Dead) { group.to_owned() } else { String::new() },
            ..Default::default()
        };
        let examples = visit.calls().list_jobs(&visit.by, request).await?.into_inner().jobs;
        let count = if group.is_empty() {
            of_state(visit, task_type, state).await?
        } else {
            in_group(visit, task_type, group).await?
        };
        Ok(Self { count: Some(count), examples: examples.into_iter().map(JobRow::of).collect(), ..Self::default() })
    }
}

/// The jobs of a type, as they were counted last.
async fn of_state(visit: &Visit, task_type: &str, state: Option<JobState>) -> Result<String, Trouble> {
    let word = state.map(|state| State::of(state).word);
    let (view, age) = visit.calls().counted_type(&visit.by, task_type).await?;
    let counts = super::parts::counts(view.counts.unwrap_or_default());
    let count: i64 = counts.iter().filter(|(known, _)| word.is_none_or(|word| word == *known)).map(|(_, n)| n).sum();
    let kind = word.map_or("job".into(), |word| format!("{word} job"));
    Ok(match age {
        Some(age) => format!("about {} of {task_type} (counted {} ago)", counted(count, &kind), span(age)),
        None => format!("all {kind}s of {task_type}"),
    })
}

/// The jobs of an error group.
async fn in_group(visit: &Visit, task_type: &str, group: &str) -> Result<String, Trouble> {
    let request = v1::ListErrorGroupsRequest { task_type: task_type.to_owned(), page_size: 1_000 };
    let groups = visit.calls().list_error_groups(&visit.by, request).await?.into_inner().groups;
    let count = groups.iter().find(|known| known.error_group == group).map(|known| known.dead_count);
    let count = count.map_or("all dead jobs".into(), |count| counted(count, "dead job"));
    Ok(format!("{count} of {task_type} with this error"))
}
