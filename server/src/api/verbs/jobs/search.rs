//! `SearchJobs`: finds jobs by id, key, tag, header or payload.

use howdah_proto::{
    Rpc,
    v1::{self, search_jobs_request::Query},
};

use super::list::{MAX_PAGE, PAGE};
use crate::{
    access::{Caller, Operation, Rule},
    api::{
        answer,
        check::{job_filter::state, numbers, task_type, text, time},
        page_token, permit, render,
        verbs::{Answer, Call, Merge, Verb, paged},
    },
    error::Error,
    job::{ClusterSettings, Having, JobState, Limits, SearchPage, SearchQuery, SearchRange},
};

/// Maximum length of a search text, in bytes. Postgres compares the text at each byte of a payload, so its length costs time.
pub(crate) const TEXT: usize = 256;
/// Maximum length of a JSON path, in bytes.
pub(crate) const PATH: usize = 1_024;

/// The call `SearchJobs`.
pub(crate) struct SearchJobs;

impl Verb for SearchJobs {
    const RPC: Rpc = Rpc::SearchJobs;
    const RULE: Rule = Rule::Types(Operation::Read);

    type Request = v1::SearchJobsRequest;
    type Response = v1::SearchJobsResponse;
    type Args = SearchQuery;

    paged!(jobs, page_size);

    fn check(mut request: v1::SearchJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<SearchQuery, Error> {
        let query = request.query.take().ok_or_else(|| {
            Error::invalid("query", "is not set; set id, key, tag, header, payload_text or payload_path")
        })?;
        let having = match query {
            Query::Id(id) => return by_id(id, &request),
            Query::Key(key) => return by_key(key, &request, cluster),
            Query::Tag(tag) => return by_tag(tag, &request),
            Query::Header(header) => by_header(header, cluster)?,
            Query::PayloadText(wanted) => {
                not_empty("payload_text", &wanted)?;
                text::short("payload_text", &wanted, TEXT)?;
                Having::Text(wanted)
            }
            Query::PayloadPath(path) => {
                not_empty("payload_path", &path)?;
                text::short("payload_path", &path, PATH)?;
                no_nul("payload_path", &path)?;
                Having::Path(path)
            }
        };
        let range = range(&request)?;
        let page = page(&request, Some(range.state))?;
        Ok(SearchQuery::Look { having, range, page })
    }

    fn permit(caller: &Caller, query: &SearchQuery) -> Result<(), Error> {
        match query {
            // For a search by id, `run` checks the permission when the job and its task type are known.
            SearchQuery::Id(_) => Ok(()),
            SearchQuery::Key { task_type, .. } | SearchQuery::Tag { task_type, .. } => {
                caller.check(Operation::Read, task_type)
            }
            SearchQuery::Look { having, range, .. } => {
                caller.check(Operation::Read, &range.task_type)?;
                let of_header = matches!(having, Having::Header { .. });
                if of_header { Ok(()) } else { caller.check(Operation::Payload, &range.task_type) }
            }
        }
    }

    fn answer_bytes(query: &SearchQuery, cluster: &ClusterSettings) -> usize {
        let jobs = match query {
            SearchQuery::Id(_) => 1,
            SearchQuery::Key { page, .. } | SearchQuery::Tag { page, .. } | SearchQuery::Look { page, .. } => page.size,
        };
        answer::page_bytes(jobs, cluster, false)
    }

    async fn run(call: &mut Call, query: SearchQuery) -> Result<v1::SearchJobsResponse, Error> {
        let mut found = call.broker.operator.search_jobs(&query).await?;
        // The permission is checked again for each job. A job found by id may have any type, and other jobs may have moved to a
        // type that the caller may not read.
        found.jobs.retain(|job| permit::may(&call.caller, Operation::Read, &job.task_type));
        Ok(v1::SearchJobsResponse {
            jobs: found.jobs.into_iter().map(render::job).collect(),
            next_page_token: found.next.map(page_token::encode_search).unwrap_or_default(),
            scanned_count: found.scanned_count,
            estimated_count: found.estimated,
            skipped_ids: found.skipped,
        })
    }

    async fn route(call: &Call, request: v1::SearchJobsRequest) -> Answer<Self> {
        if let Some(Query::Id(id)) = request.query {
            return call.in_store::<Self>(call.of_id(id)?, request).await;
        }
        let stores = call.concerned(&request.task_type).await?;
        call.pages::<Self>(stores, request).await
    }
}

impl Merge for SearchJobs {
    fn merge(all: &mut v1::SearchJobsResponse, part: v1::SearchJobsResponse, _: &str) {
        all.jobs.extend(part.jobs);
        all.skipped_ids.extend(part.skipped_ids);
        all.scanned_count += part.scanned_count;
        all.estimated_count += part.estimated_count;
    }
}

fn by_id(id: i64, request: &v1::SearchJobsRequest) -> Result<SearchQuery, Error> {
    for (field, set) in [
        ("task_type", !request.task_type.is_empty()),
        ("state", request.state != 0),
        ("since", request.since.is_some()),
        ("until", request.until.is_some()),
        ("page_token", !request.page_token.is_empty()),
    ] {
        if set {
            return Err(Error::invalid(field, "is set together with id; an id needs no other field"));
        }
    }
    numbers::page_size(request.page_size, PAGE, MAX_PAGE)?;
    Ok(SearchQuery::Id(id))
}

fn by_key(key: String, request: &v1::SearchJobsRequest, limits: &ClusterSettings) -> Result<SearchQuery, Error> {
    not_empty("key", &key)?;
    text::plain("key", &key, limits.key_bytes)?;
    of_any_time("key", request)?;
    Ok(SearchQuery::Key {
        task_type: task_type("task_type", &request.task_type)?,
        key,
        state: state(request.state)?,
        page: page(request, None)?,
    })
}

fn by_tag(tag: String, request: &v1::SearchJobsRequest) -> Result<SearchQuery, Error> {
    text::tag("tag", &tag)?;
    of_any_time("tag", request)?;
    Ok(SearchQuery::Tag {
        task_type: task_type("task_type", &request.task_type)?,
        tag,
        state: state(request.state)?,
        page: page(request, None)?,
    })
}

fn by_header(header: v1::JobHeader, cluster: &ClusterSettings) -> Result<Having, Error> {
    let v1::JobHeader { name, value } = header;
    for (field, text) in [("header.name", &name), ("header.value", &value)] {
        text::short(field, text, cluster.header_bytes)?;
        no_nul(field, text)?;
    }
    not_empty("header.name", &name)?;
    Ok(Having::Header { name, value })
}

fn of_any_time(what: &str, request: &v1::SearchJobsRequest) -> Result<(), Error> {
    for (field, set) in [("since", request.since.is_some()), ("until", request.until.is_some())] {
        if set {
            return Err(Error::invalid(
                field,
                format!("is set together with {what}, but a search by {what} covers all times; leave it out"),
            ));
        }
    }
    Ok(())
}

fn range(request: &v1::SearchJobsRequest) -> Result<SearchRange, Error> {
    let task_type = task_type("task_type", &request.task_type)?;
    let only = "a search by header or payload looks at jobs of one state";
    let state = state(request.state)?.ok_or_else(|| Error::invalid("state", format!("is not set; {only}")))?;
    let since = time::optional_at("since", request.since)?.ok_or_else(|| {
        Error::invalid("since", "is not set; a search by header or payload looks at jobs of a time range")
    })?;
    let until = time::optional_at("until", request.until)?;
    if until.is_some_and(|until| since >= until) {
        return Err(Error::invalid("until", "is not later than since"));
    }
    Ok(SearchRange { task_type, state, since, until })
}

fn page(request: &v1::SearchJobsRequest, state: Option<JobState>) -> Result<SearchPage, Error> {
    let from = page_token::search(&request.page_token)?;
    if from.is_some_and(|from| state.is_some_and(|state| from.at.state != state)) {
        return Err(page_token::bad());
    }
    Ok(SearchPage { size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?, from })
}

fn not_empty(field: &str, value: &str) -> Result<(), Error> {
    if value.is_empty() { Err(Error::invalid(field, "is empty")) } else { Ok(()) }
}

fn no_nul(field: &str, value: &str) -> Result<(), Error> {
    if value.contains('\0') {
        return Err(Error::invalid(field, format!("{} has a NUL character; none are allowed", text::shown(value))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    fn request(query: Query) -> v1::SearchJobsRequest {
        v1::SearchJobsRequest {
            query: Some(query),
            task_type: "a".into(),
            state: 5,
            since: Some(Timestamp { seconds: 10, nanos: 0 }),
            ..Default::default()
        }
    }

    fn check(request: v1::SearchJobsRequest) -> Result<SearchQuery, Error> {
        SearchJobs::check(request, &ClusterSettings::DEFAULT, &Limits::default())
    }

    fn text() -> v1::SearchJobsRequest {
        request(Query::PayloadText("x".into()))
    }

    fn header(name: &str, value: &str) -> v1::SearchJobsRequest {
        request(Query::Header(v1::JobHeader { name: name.into(), value: value.into() }))
    }

    #[test]
    fn complete_search_requests_are_accepted() {
        assert!(matches!(check(text()), Ok(SearchQuery::Look { having: Having::Text(_), .. })));
        assert!(check(header("a", "")).is_ok());
        assert!(check(request(Query::PayloadText("\0\n%_".into()))).is_ok());
        assert!(check(request(Query::PayloadPath("$.a".into()))).is_ok());
        let by_key =
            v1::SearchJobsRequest { query: Some(Query::Key("k".into())), task_type: "a".into(), ..Default::default() };
        assert!(matches!(check(by_key), Ok(SearchQuery::Key { state: None, .. })));
        let by_tag = v1::SearchJobsRequest {
            query: Some(Query::Tag("é".into())),
            task_type: "a".into(),
            state: 5,
            ..Default::default()
        };
        assert!(matches!(check(by_tag), Ok(SearchQuery::Tag { state: Some(JobState::Dead), .. })));
        let by_id = v1::SearchJobsRequest { query: Some(Query::Id(-1)), ..Default::default() };
        assert!(matches!(check(by_id), Ok(SearchQuery::Id(-1))));
    }

    #[test]
    fn the_error_names_the_missing_or_invalid_field_of_a_search() {
        let second = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let cases = [
            ("query", v1::SearchJobsRequest { query: None, ..text() }),
            ("task_type", request(Query::Id(1))),
            ("since", request(Query::Key("k".into()))),
            ("key", request(Query::Key(String::new()))),
            ("key", request(Query::Key("k\n".into()))),
            ("key", request(Query::Key("k".repeat(201)))),
            ("tag", request(Query::Tag(String::new()))),
            ("tag", request(Query::Tag("t".repeat(65)))),
            ("tag", request(Query::Tag("t\0".into()))),
            ("since", request(Query::Tag("t".into()))),
            ("header.name", header("", "b")),
            ("header.name", header("\0", "b")),
            ("header.value", header("a", "\0")),
            ("header.value", header("a", &"b".repeat(8_193))),
            ("payload_text", request(Query::PayloadText(String::new()))),
            ("payload_text", request(Query::PayloadText("x".repeat(1 << 20)))),
            ("payload_path", request(Query::PayloadPath(String::new()))),
            ("payload_path", request(Query::PayloadPath("$\0".into()))),
            ("payload_path", request(Query::PayloadPath("$".repeat(1_025)))),
            ("task_type", v1::SearchJobsRequest { task_type: String::new(), ..text() }),
            ("state", v1::SearchJobsRequest { state: 0, ..text() }),
            ("state", v1::SearchJobsRequest { state: 10, ..text() }),
            ("since", v1::SearchJobsRequest { since: None, ..text() }),
            ("since", v1::SearchJobsRequest { since: second(-1), ..text() }),
            ("until", v1::SearchJobsRequest { until: second(10), ..text() }),
            ("page_size", v1::SearchJobsRequest { page_size: -1, ..text() }),
            ("page_token", v1::SearchJobsRequest { page_token: "00".into(), ..text() }),
        ];
        for (field, request) in cases {
            assert_eq!(check(request).expect_err(field).field(), Some(field));
        }
    }
}
