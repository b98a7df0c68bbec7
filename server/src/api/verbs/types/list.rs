//! `ListTaskTypes`: task types with their settings and job counts, and the health of the storage.

use std::time::Duration;

use howdah_core::job::{TaskTypeName, TypeView};

use crate::api::verbs::prelude::*;

pub(crate) const MAX_PAGE: usize = 1000;

/// A query for task types.
#[derive(Clone, Debug)]
pub(crate) struct TypesQuery {
    /// Last task type name of the previous page.
    pub(crate) after: String,
    pub(crate) page_size: usize,
    /// If set, lists only the task type with this name.
    pub(crate) only: Option<TaskTypeName>,
    /// If true, returns the last job counts instead of counting now.
    pub(crate) last_count: bool,
}

impl Verb for ListTaskTypes {
    const RULE: Rule = Rule::Types(Operation::Read);
    const ANSWER_BYTES: usize = answer::MEDIUM;

    type Args = TypesQuery;

    paged!(task_types, page_size);

    fn check(request: v1::ListTaskTypesRequest, _: &ClusterSettings, _: &Limits) -> Result<TypesQuery, Error> {
        Ok(TypesQuery {
            after: page_token::name(&request.page_token)?,
            page_size: numbers::page_size(request.page_size, MAX_PAGE, MAX_PAGE)?,
            only: optional_task_type("task_type", &request.task_type)?,
            last_count: request.last_count,
        })
    }

    fn permit(caller: &Caller, query: &TypesQuery) -> Result<(), Error> {
        query.only.as_ref().map_or(Ok(()), |only| caller.check(Operation::Read, only))
    }

    async fn run(call: &mut Call, query: TypesQuery) -> Result<v1::ListTaskTypesResponse, Error> {
        let one = query.only.is_some();
        let everything = query.after.is_empty() && !one && !query.last_count;
        let everything = everything && call.caller.may_everywhere(Operation::Read);
        let storage = if everything { call.broker.operator.storage_health().await } else { None };
        let (types, next, age) = visible(call, query).await?;
        Ok(v1::ListTaskTypesResponse {
            task_types: types.into_iter().map(render::task_type).collect(),
            next_page_token: next.filter(|_| !one).unwrap_or_default(),
            storage: storage.map(|(health, examination)| {
                let examination = examination.filter(|_| call.caller.may_everywhere(Operation::Admin));
                render::storage_health(health, examination.as_deref())
            }),
            count_age: age.map(render::duration),
        })
    }

    async fn route(call: &Call, request: v1::ListTaskTypesRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        let mut answer = call.pages::<Self>(stores, request).await?;
        if call.named_store()?.is_none() {
            // Each store has a separate storage health, so only a call that names a store returns it.
            answer.get_mut().storage = None;
        }
        Ok(answer)
    }
}

impl Merge for ListTaskTypes {
    fn merge(all: &mut v1::ListTaskTypesResponse, part: v1::ListTaskTypesResponse, store: &str) {
        let of_store = |task_type| v1::TaskType { store: store.to_owned(), ..task_type };
        all.task_types.extend(part.task_types.into_iter().map(of_store));
        // The merged response has the age of the oldest count.
        let ages = [all.count_age.take(), part.count_age].into_iter().flatten();
        all.count_age = ages.max_by_key(|age| (age.seconds, age.nanos));
        all.storage = all.storage.take().or(part.storage);
    }
}

/// Returns a page of the task types that the caller may read, the position of the next page, and the age of the counts. The
/// page token contains the last name of the page, so it reveals no other type.
async fn visible(call: &Call, query: TypesQuery) -> Result<(Vec<TypeView>, Option<String>, Option<Duration>), Error> {
    let TypesQuery { mut after, page_size, only, last_count } = query;
    let all = call.caller.may_everywhere(Operation::Read);
    let read = if all { page_size } else { MAX_PAGE };
    loop {
        let operator = &call.broker.operator;
        let (mut types, age) = if last_count {
            operator.list_counted_types(after, read, only.clone()).await?
        } else {
            (operator.list_task_types(after, read, only.clone()).await?, None)
        };
        // If the read returned its maximum number of types, there may be more.
        let last = types.last().filter(|_| types.len() >= read).map(|view| view.name.clone());
        types.retain(|view| permit::may(&call.caller, Operation::Read, &view.name));
        let more = last.is_some() || types.len() > page_size;
        types.truncate(page_size);
        match (last, types.last()) {
            (Some(last), None) => after = last,
            (_, end) => {
                let next = end.filter(|_| more).map(|view| page_token::encode_name(&view.name));
                return Ok((types, next, age));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_task_types(request: &v1::ListTaskTypesRequest) -> Result<TypesQuery, Error> {
        ListTaskTypes::check(request.clone(), &ClusterSettings::DEFAULT, &Limits::default())
    }

    #[test]
    fn an_empty_request_lists_a_thousand_types_from_the_first() {
        let query = list_task_types(&v1::ListTaskTypesRequest::default()).unwrap();
        assert_eq!((query.after.as_str(), query.page_size, query.only), ("", 1000, None));
    }

    #[test]
    fn the_error_names_the_invalid_field_of_list_task_types() {
        let cases = [
            ("page_size", v1::ListTaskTypesRequest { page_size: -5, ..Default::default() }),
            ("page_token", v1::ListTaskTypesRequest { page_token: "zz".into(), ..Default::default() }),
            ("task_type", v1::ListTaskTypesRequest { task_type: "a b".into(), ..Default::default() }),
        ];
        for (field, request) in cases {
            assert_eq!(list_task_types(&request).expect_err(field).field(), Some(field));
        }
    }
}
