//! `SearchJobs`: finds jobs by id, key, conditions, header or payload.

use howdah_core::job::{
    Having, JobConditions, JobState, SearchIndex, SearchPage, SearchPosition, SearchQuery, SearchRange,
};
use howdah_proto::v1::search_jobs_request::Query;

use crate::api::{
    check::{
        job_filter::job_conditions,
        job_filter::{of_worker, state},
    },
    verbs::{
        jobs::list::{MAX_PAGE, PAGE},
        prelude::*,
    },
};

/// Maximum length of a search text, in bytes. Postgres compares the text at each byte of a payload, so its length costs time.
pub(crate) const TEXT: usize = 256;
/// Maximum length of a JSON path, in bytes.
pub(crate) const PATH: usize = 1_024;

impl Verb for SearchJobs {
    const RULE: Rule = Rule::Types(Operation::Read);

    type Args = SearchQuery;

    paged!(jobs, page_size);

    fn check(mut request: v1::SearchJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<SearchQuery, Error> {
        let having = match request.query.take() {
            Some(Query::Id(id)) => return by_id(id, &request),
            Some(Query::Key(key)) => {
                not_empty("key", &key)?;
                text::plain("key", &key, cluster.key_bytes)?;
                return by_index(SearchIndex::Key(key), "key", conditions(&request, cluster)?, &request);
            }
            Some(Query::Header(header)) => Some(by_header(header, cluster)?),
            Some(Query::PayloadText(wanted)) => {
                not_empty("payload_text", &wanted)?;
                text::short("payload_text", &wanted, TEXT)?;
                Some(Having::Text(wanted))
            }
            Some(Query::PayloadPath(path)) => {
                not_empty("payload_path", &path)?;
                text::short("payload_path", &path, PATH)?;
                no_nul("payload_path", &path)?;
                Some(Having::Path(path))
            }
            None => None,
        };
        let mut conditions = conditions(&request, cluster)?;
        if having.is_none() {
            if conditions.is_empty() {
                let problem = "is not set; set id, key, header, payload_text or payload_path, or conditions";
                return Err(Error::invalid("query", problem));
            }
            if let Some(worker_id) = conditions.worker_id.take() {
                request.state = v1::JobState::Leased as i32;
                return by_index(SearchIndex::Worker(worker_id), "conditions.worker_id", conditions, &request);
            }
            if let Some(tag) = conditions.tag.take() {
                return by_index(SearchIndex::Tag(tag), "conditions.tag", conditions, &request);
            }
        }
        let range = range(&request)?;
        let page = page(&request, Some(range.state))?;
        Ok(SearchQuery::Look { having, conditions, range, page })
    }

    fn permit(caller: &Caller, query: &SearchQuery) -> Result<(), Error> {
        match query {
            // For a search by id, `run` checks the permission when the job and its task type are known.
            SearchQuery::Id(_) => Ok(()),
            SearchQuery::Index { task_type, .. } => caller.check(Operation::Read, task_type),
            SearchQuery::Look { having, range, .. } => {
                caller.check(Operation::Read, &range.task_type)?;
                let of_payload = matches!(having, Some(Having::Text(_) | Having::Path(_)));
                if of_payload { caller.check(Operation::Payload, &range.task_type) } else { Ok(()) }
            }
        }
    }

    fn answer_bytes(query: &SearchQuery, cluster: &ClusterSettings) -> usize {
        let jobs = match query {
            SearchQuery::Id(_) => 1,
            SearchQuery::Index { page, .. } | SearchQuery::Look { page, .. } => page.size,
        };
        answer::page_bytes(jobs, cluster, false)
    }

    async fn run(call: &mut Call, query: SearchQuery) -> Result<v1::SearchJobsResponse, Error> {
        let mut found = call.broker.operator.search_jobs(&query).await?;
        // The permission is checked again for each job. A job found by id may have any type, and other jobs may have moved to a
        // type that the caller may not read.
        found.jobs.retain(|job| permit::may(&call.caller, Operation::Read, &job.task_type));
        // A scan without an index by type counts jobs of other types, so callers who may not read every type get no counts.
        if let SearchQuery::Look { range, .. } = &query
            && !matches!(range.state, JobState::Ready | JobState::Dead)
            && !call.caller.may_everywhere(Operation::Read)
        {
            found.forget_counts();
        }
        Ok(v1::SearchJobsResponse {
            jobs: found.jobs.into_iter().map(render::job).collect(),
            next_page_token: found.next.map(encode).unwrap_or_default(),
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
        ("conditions", request.conditions.is_some()),
        ("page_token", !request.page_token.is_empty()),
    ] {
        if set {
            return Err(Error::invalid(field, "is set together with id; an id needs no other field"));
        }
    }
    numbers::page_size(request.page_size, PAGE, MAX_PAGE)?;
    Ok(SearchQuery::Id(id))
}

/// Checks the conditions, and that the state is LEASED or unset if they name a worker.
fn conditions(request: &v1::SearchJobsRequest, cluster: &ClusterSettings) -> Result<JobConditions, Error> {
    let conditions = job_conditions("conditions", request.conditions.clone(), cluster)?;
    of_worker("conditions", &conditions, state(request.state)?, &JobState::ALL)?;
    Ok(conditions)
}

/// Builds a search by an index, which has no time range. `field` names the field with the value to look up.
fn by_index(
    index: SearchIndex,
    field: &str,
    conditions: JobConditions,
    request: &v1::SearchJobsRequest,
) -> Result<SearchQuery, Error> {
    for (other, set) in [("since", request.since.is_some()), ("until", request.until.is_some())] {
        if set {
            return Err(Error::invalid(
                other,
                format!("is set together with {field}, but a search by {field} covers all times; leave it out"),
            ));
        }
    }
    Ok(SearchQuery::Index {
        task_type: task_type("task_type", &request.task_type)?,
        index,
        state: state(request.state)?,
        conditions,
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

fn range(request: &v1::SearchJobsRequest) -> Result<SearchRange, Error> {
    let task_type = task_type("task_type", &request.task_type)?;
    let only = "a search without id, key, tag or worker scans jobs of one state";
    let state = state(request.state)?.ok_or_else(|| Error::invalid("state", format!("is not set; {only}")))?;
    let since = time::optional_at("since", request.since)?.ok_or_else(|| {
        Error::invalid("since", "is not set; a search without id, key, tag or worker scans jobs of a time range")
    })?;
    let until = time::optional_at("until", request.until)?;
    if until.is_some_and(|until| since >= until) {
        return Err(Error::invalid("until", "is not later than since"));
    }
    Ok(SearchRange { task_type, state, since, until })
}

fn page(request: &v1::SearchJobsRequest, state: Option<JobState>) -> Result<SearchPage, Error> {
    let from = position(&request.page_token)?;
    if from.is_some_and(|from| state.is_some_and(|state| from.at.state != state)) {
        return Err(page_token::bad());
    }
    Ok(SearchPage { size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?, from })
}

fn encode(position: SearchPosition) -> String {
    let [state, rank, id] = page_token::job_numbers(position.at);
    page_token::encode([state, rank, id, position.scanned_count, position.estimated])
}

fn position(token: &str) -> Result<Option<SearchPosition>, Error> {
    let Some([state, rank, id, scanned_count, estimated]) = page_token::numbers(token)? else { return Ok(None) };
    Ok(Some(SearchPosition { at: page_token::job_of_numbers([state, rank, id])?, scanned_count, estimated }))
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

    fn with(conditions: v1::JobConditions) -> v1::SearchJobsRequest {
        v1::SearchJobsRequest { conditions: Some(conditions), task_type: "a".into(), ..Default::default() }
    }

    /// Jobs that have never started.
    fn fresh() -> v1::JobConditions {
        v1::JobConditions { attempts_at_most: Some(0), ..Default::default() }
    }

    fn tagged(tag: &str) -> v1::JobConditions {
        v1::JobConditions { tag: tag.into(), ..Default::default() }
    }

    fn text() -> v1::SearchJobsRequest {
        request(Query::PayloadText("x".into()))
    }

    fn header(name: &str, value: &str) -> v1::SearchJobsRequest {
        request(Query::Header(v1::JobHeader { name: name.into(), value: value.into() }))
    }

    #[test]
    fn complete_search_requests_are_accepted() {
        assert!(matches!(check(text()), Ok(SearchQuery::Look { having: Some(Having::Text(_)), .. })));
        assert!(check(header("a", "")).is_ok());
        assert!(check(request(Query::PayloadText("\0\n%_".into()))).is_ok());
        assert!(check(request(Query::PayloadPath("$.a".into()))).is_ok());
        let by_key =
            v1::SearchJobsRequest { query: Some(Query::Key("k".into())), task_type: "a".into(), ..Default::default() };
        assert!(matches!(check(by_key), Ok(SearchQuery::Index { index: SearchIndex::Key(_), state: None, .. })));
        let by_tag = check(v1::SearchJobsRequest { state: 5, ..with(tagged("é")) });
        assert!(matches!(
            by_tag,
            Ok(SearchQuery::Index { index: SearchIndex::Tag(_), state: Some(JobState::Dead), conditions, .. })
                if conditions.is_empty()
        ));
        let of_worker = || v1::JobConditions { worker_id: "0123456789abcdef".into(), ..tagged("t") };
        assert!(matches!(
            check(with(of_worker())),
            Ok(SearchQuery::Index { index: SearchIndex::Worker(_), state: Some(JobState::Leased), conditions, .. })
                if conditions.tag.is_some()
        ));
        let scan = v1::SearchJobsRequest { query: None, conditions: Some(fresh()), ..text() };
        assert!(matches!(check(scan), Ok(SearchQuery::Look { having: None, .. })));
        assert!(check(v1::SearchJobsRequest { conditions: Some(tagged("t")), ..text() }).is_ok());
        let by_id = v1::SearchJobsRequest { query: Some(Query::Id(-1)), ..Default::default() };
        assert!(matches!(check(by_id), Ok(SearchQuery::Id(-1))));
    }

    #[test]
    fn the_error_names_the_missing_or_invalid_field_of_a_search() {
        let second = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let of_worker = v1::JobConditions { worker_id: "0123456789abcdef".into(), ..Default::default() };
        let cases = [
            ("query", v1::SearchJobsRequest { query: None, ..text() }),
            ("task_type", request(Query::Id(1))),
            ("since", request(Query::Key("k".into()))),
            ("key", request(Query::Key(String::new()))),
            ("key", request(Query::Key("k\n".into()))),
            ("key", request(Query::Key("k".repeat(201)))),
            ("conditions.tag", with(tagged("t\0"))),
            ("since", v1::SearchJobsRequest { since: second(10), ..with(tagged("t")) }),
            ("until", v1::SearchJobsRequest { until: second(10), ..with(tagged("t")) }),
            ("query", with(v1::JobConditions::default())),
            ("state", with(fresh())),
            ("since", v1::SearchJobsRequest { state: 5, ..with(fresh()) }),
            ("conditions.worker_id", v1::SearchJobsRequest { conditions: Some(of_worker), ..text() }),
            (
                "conditions",
                v1::SearchJobsRequest { query: Some(Query::Id(1)), task_type: String::new(), ..with(fresh()) },
            ),
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
