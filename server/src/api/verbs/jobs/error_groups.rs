//! `ListErrorGroups`: the error groups of dead jobs and of jobs that wait for a retry, the most frequent group first.

use std::cmp::Reverse;

use howdah_core::job::{ErrorGroup, TaskTypeName};

use crate::api::{
    render::time,
    verbs::{
        jobs::list::{MAX_PAGE, PAGE},
        prelude::*,
    },
};

impl Verb for ListErrorGroups {
    const RULE: Rule = Rule::Types(Operation::Read);
    const ANSWER_BYTES: usize = answer::MEDIUM;

    /// Checked request: the task type (`None` for all), and the maximum number of groups.
    type Args = (Option<TaskTypeName>, usize);

    fn check(request: v1::ListErrorGroupsRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok((
            optional_task_type("task_type", &request.task_type)?,
            numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
        ))
    }

    fn permit(caller: &Caller, (task_type, _): &Self::Args) -> Result<(), Error> {
        permit::one_or_all(caller, Operation::Read, task_type.as_ref())
    }

    async fn run(call: &mut Call, (task_type, at_most): Self::Args) -> Result<v1::ListErrorGroupsResponse, Error> {
        let (groups, partial) = call.broker.operator.error_groups(task_type, at_most).await?;
        Ok(v1::ListErrorGroupsResponse { groups: groups.into_iter().map(error_group).collect(), partial })
    }

    async fn route(call: &Call, request: v1::ListErrorGroupsRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        let most = usize::try_from(request.page_size).unwrap_or_default();
        let mut answer = call.each::<Self>(stores, request).await?;
        let all = answer.get_mut();
        // The groups are sorted again, because they are only sorted within each store.
        all.groups.sort_by_key(|group| Reverse(group.dead_count + group.backing_off_count));
        if most > 0 {
            all.groups.truncate(most);
        }
        Ok(answer)
    }

    fn entries(response: &v1::ListErrorGroupsResponse) -> usize {
        response.groups.len()
    }
}

impl Merge for ListErrorGroups {
    fn merge(all: &mut v1::ListErrorGroupsResponse, part: v1::ListErrorGroupsResponse, store: &str) {
        all.groups.extend(part.groups.into_iter().map(|group| v1::ErrorGroup { store: store.to_owned(), ..group }));
        all.partial |= part.partial;
    }
}

fn error_group(group: ErrorGroup) -> v1::ErrorGroup {
    v1::ErrorGroup {
        task_type: group.task_type,
        error_group: group.error_group,
        dead_count: group.dead,
        backing_off_count: group.backing_off,
        first_failure_time: group.first.map(time),
        last_failure_time: group.last.map(time),
        example_job_id: group.example_id,
        example_error: group.example_error,
        store: String::new(),
    }
}
