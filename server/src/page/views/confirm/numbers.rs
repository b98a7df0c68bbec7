//! Descriptions of job counts for confirmation pages.

use howdah_proto::v1::{self, JobState};

use super::super::parts::counts;
use crate::{
    api::verbs::ListErrorGroups,
    page::{
        PageError, PageRequest,
        words::{State, counted, number, span},
    },
};

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
    let (view, age) = req.calls().counted_type(&req.by, task_type).await?;
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
