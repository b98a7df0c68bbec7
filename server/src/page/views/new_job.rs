//! Form that creates a job, and the call that enqueues it.

use std::collections::HashMap;

use askama::Template;
use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Redirect, Response},
};
use howdah_core::{
    error::Error,
    job::options::{JobOption, OPTIONS, OptionGroup, OptionKind},
};
use howdah_engine::access::Operation;
use howdah_proto::v1::{self, EnqueueOutcome};

use crate::{
    api::{verbs::EnqueueJobs, words::job_of_words},
    page::{
        PageError, PageRequest, SharedPage,
        layout::{Layout, render},
        params::Params,
    },
};

#[derive(Template)]
#[template(path = "new_job.html")]
struct View {
    layout: Layout,
    task_type: String,
    /// Task types that the form offers.
    types: Vec<String>,
    /// Fields of common options.
    shown: Vec<Input>,
    /// Fields of other options, by the heading of their group.
    folded: Vec<(&'static str, Vec<Input>)>,
    /// Whether the user may enqueue jobs of the type.
    enqueues: bool,
    /// Request key of the form: a form that is sent twice enqueues one job.
    once: String,
}

/// Field for an option.
struct Input {
    name: &'static str,
    label: String,
    about: &'static str,
    bounds: String,
    example: &'static str,
    /// Words to choose from; empty for an option with other values.
    words: &'static [&'static str],
}

/// Options with a field. Headers have a field of several lines, and options that refer to other jobs of the request have none.
fn options() -> impl Iterator<Item = &'static JobOption> {
    OPTIONS.iter().filter(|option| !option.is_of_request() && option.kind != OptionKind::Headers)
}

fn inputs(group: OptionGroup) -> Vec<Input> {
    let input = |option: &'static JobOption| Input {
        name: option.name,
        label: option.label(),
        about: option.about,
        bounds: option.kind.to_string(),
        example: match option.kind {
            OptionKind::Duration(..) => "5m",
            OptionKind::Durations(..) => "1s, 5m",
            OptionKind::Time => "2027-01-01T03:00:00Z",
            kind if kind.is_repeated() => "a, b",
            _ => "",
        },
        words: if let OptionKind::Word(words) = option.kind { words } else { &[] },
    };
    options().filter(|option| option.group == group).map(input).collect()
}

/// Renders the form.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let task_type = req.params.get("type").to_owned();
    let types = req.calls().counted_types(&req.by).await?.types.into_iter().map(|view| view.name);
    let types: Vec<String> = types.filter(|name| req.by.may(Operation::Enqueue, name)).take(200).collect();
    let enqueues = if task_type.is_empty() {
        req.by.may_everywhere(Operation::Enqueue) || !types.is_empty()
    } else {
        req.by.may(Operation::Enqueue, &task_type)
    };
    let once = format!("page:{:032x}", rand::random::<u128>());
    let shown = inputs(OptionGroup::Job);
    let folded = OptionGroup::ALL.into_iter().skip(1).map(|group| (group.heading(), inputs(group))).collect();
    render(&View { layout: req.layout("jobs"), task_type, types, shown, folded, enqueues, once })
}

/// Enqueues the job of a submitted form, and shows the job.
pub(in crate::page) async fn enqueue(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    let req = match PageRequest::of_change(page, request).await {
        Ok(req) => req,
        Err(trouble) => return trouble.into_response(),
    };
    match store(&req).await {
        Ok(id) => Redirect::to(&req.link("/job", &format!("id={id}"))).into_response(),
        Err(trouble) => trouble.within(req.layout("")),
    }
}

async fn store(req: &PageRequest) -> Result<i64, PageError> {
    let request =
        v1::EnqueueJobsRequest { jobs: vec![job(&req.params)?], request_key: req.params.get("once").to_owned() };
    let answer = req.calls().call::<EnqueueJobs>(&req.by, request).await?.into_inner();
    let job = answer.jobs.first().ok_or_else(|| Error::Internal("bug: no result of an enqueue".into()))?;
    if job.outcome() == EnqueueOutcome::Kept {
        return Err(Error::Precondition(format!("no job was created, because job {} holds the key", job.id)).into());
    }
    Ok(job.id)
}

/// Reads the job from the form. The call checks it.
fn job(params: &Params) -> Result<v1::NewJob, Error> {
    let mut given = Vec::new();
    for option in options() {
        let text = params.get(option.name);
        let values = if option.kind.is_repeated() { text.split(',').collect() } else { vec![text] };
        let values = values.into_iter().map(str::trim).filter(|value| !value.is_empty());
        given.extend(values.map(|value| (option.name.to_owned(), value.to_owned())));
    }
    let payload = params.get("payload").to_owned().into_bytes().into();
    let job = job_of_words(&given, params.get("type").to_owned(), payload)?;
    Ok(v1::NewJob { headers: headers(params.get("headers"))?, ..job })
}

/// Reads headers, one a line, as `name: value`.
fn headers(text: &str) -> Result<HashMap<String, String>, Error> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    lines
        .map(|line| pair(line).ok_or_else(|| Error::invalid("headers", "must have lines of the form name: value")))
        .collect()
}

#[cfg(test)]
mod tests {
    use howdah_proto::v1::new_job::{Expiry, Start};

    use super::*;

    fn read(form: &str) -> Result<v1::NewJob, Error> {
        job(&Params::parse(form).unwrap())
    }

    #[test]
    fn each_field_of_the_form_becomes_an_option_of_the_job() {
        let form = "type=t&payload=%7B%7D&headers=lang:+en%0D%0Atenant:a:b&priority=-5&delay=90s&max_attempts=3&timeout=5m&key=k\
                    &tags=a,+b&limit_key=l&limit_max=2&fair_key=f&expire_after=2h&retry_policy.jitter=0.5&history=none";
        let wire = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let expected = v1::NewJob {
            task_type: "t".into(),
            payload: "{}".into(),
            headers: [("lang", "en"), ("tenant", "a:b")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            priority: -5,
            start: wire(90).map(Start::Delay),
            max_attempts: 3,
            timeout: wire(300),
            expiry: wire(7_200).map(Expiry::ExpireAfter),
            key: "k".into(),
            tags: vec!["a".into(), "b".into()],
            limit_key: "l".into(),
            limit_max: 2,
            fair_key: "f".into(),
            retry_policy: Some(v1::RetryPolicy { jitter: Some(0.5), ..v1::RetryPolicy::default() }),
            history: v1::HistoryMode::None as i32,
            ..v1::NewJob::default()
        };
        assert_eq!(read(form).unwrap(), expected);
        assert_eq!(read("type=t").unwrap(), v1::NewJob { task_type: "t".into(), ..v1::NewJob::default() });
    }

    #[test]
    fn the_form_has_a_field_for_every_option_of_one_job() {
        let fields = OptionGroup::ALL.into_iter().flat_map(inputs).map(|input| input.name);
        assert_eq!(fields.collect::<Vec<_>>(), options().map(|option| option.name).collect::<Vec<_>>());
    }

    #[test]
    fn a_malformed_field_is_refused_by_its_name() {
        for (form, field) in [
            ("priority=high", "priority"),
            ("delay=soon", "delay"),
            ("run_at=soon", "run_at"),
            ("delay=1h&run_at=2027-01-01T03:00:00Z", "options"),
            ("headers=lang", "headers"),
        ] {
            assert_eq!(read(form).expect_err(form).field(), Some(field));
        }
    }
}
