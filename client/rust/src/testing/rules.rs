//! The bounds on the fields of jobs, as a broker with default settings checks them. Rules that depend on the clock or on other
//! jobs are left out: times, dependencies and held keys.

use std::{collections::HashMap, ops::RangeInclusive};

use howdah_proto::v1::{KeyPolicy, NewJob, RequestError, new_job};
use prost_types::Duration;
use tonic::Code;

use crate::{Error, Result, options};

const NAME: &str = "1 to 200 bytes of A-Z a-z 0-9 . _ : / -";

/// Rule of an option (`options.rs`).
pub(crate) struct Rule<'a> {
    field: &'static str,
    is_set: bool,
    value: Value<'a>,
    bounds: RangeInclusive<i64>,
    needs: &'static [&'static str],
}

/// Value of an option, by the meaning of its bounds.
pub(crate) enum Value<'a> {
    Any,
    Number(i64),
    Ms(Option<Duration>),
    List(usize),
    Text(&'a str),
    Name(&'a str),
    Names(&'a [String]),
    Tags(&'a [String]),
    Headers(&'a HashMap<String, String>),
}

/// Creates the rule of an option.
pub(crate) fn rule<'a>(
    field: &'static str,
    is_set: bool,
    value: Value<'a>,
    bounds: RangeInclusive<i64>,
    needs: &'static [&'static str],
) -> Rule<'a> {
    Rule { field, is_set, value, bounds, needs }
}

/// Fails like a broker that refuses a field of one of the jobs.
pub(super) fn check(jobs: &[NewJob]) -> Result<()> {
    for (index, job) in jobs.iter().enumerate() {
        if let Some((field, bounds)) = problem(job) {
            let field = format!("jobs[{index}].{field}");
            let message = format!("{field} must be {bounds}");
            let (code, reason) = (Code::InvalidArgument as i32, "INVALID_FIELD".to_owned());
            return Err(Error::from_request(RequestError { code, message, field, reason, retry_after: None }));
        }
    }
    Ok(())
}

/// Returns the first invalid field, and its bounds.
fn problem(job: &NewJob) -> Option<(String, String)> {
    let named = |field: &str, bounds: &str| Some((field.to_owned(), bounds.to_owned()));
    if !is_name(&job.task_type) {
        return named("task_type", NAME);
    } else if job.payload.len() > 1 << 20 {
        return named("payload", "at most 1 MiB");
    }
    let rules = options::rules(job);
    // `keep` is the policy of every job.
    let keeps = matches!(job.key_policy(), KeyPolicy::Unspecified | KeyPolicy::Keep);
    let is_set = |rule: &Rule<'_>| rule.is_set && (rule.field != "key_policy" || !keeps);
    for rule in &rules {
        if let Some((field, bounds)) = out_of_bounds(rule) {
            return Some((field, bounds));
        }
        let lacks = |name: &&str| !rules.iter().any(|rule| rule.field == *name && rule.is_set);
        if is_set(rule) && !rule.needs.is_empty() && rule.needs.iter().all(lacks) {
            return named(rule.field, &format!("unset without {}", rule.needs.join(" or ")));
        }
    }
    let delay = if let Some(new_job::Start::Delay(delay)) = job.start { ms(delay) } else { 0 };
    match job.expiry {
        Some(new_job::Expiry::ExpireAfter(after)) if ms(after) <= delay => {
            named("expire_after", "longer than the delay")
        }
        _ if !job.fallback.is_empty() && job.fallback == job.task_type => named("fallback", "another task type"),
        _ => None,
    }
}

/// Returns the invalid field of an option, and its bounds.
fn out_of_bounds(Rule { field, value, bounds, .. }: &Rule<'_>) -> Option<(String, String)> {
    let (least, most) = (bounds.start(), bounds.end());
    let within = |value: i64, unit: &str| (!bounds.contains(&value)).then(|| format!("{least} to {most}{unit}"));
    let count = |count: usize| within(count as i64, " entries");
    let each = |texts: &[String], bounds: &str, is_valid: fn(&str) -> bool| {
        let at = texts.iter().position(|text| !is_valid(text))?;
        Some((format!("{field}[{at}]"), bounds.to_owned()))
    };
    let problem = match value {
        Value::Any | Value::Ms(None) | Value::Name("") => None,
        Value::Number(number) => within(*number, ""),
        Value::Ms(Some(time)) => within(ms(*time), " ms"),
        Value::Text(text) => {
            (!is_text(text, *most as usize)).then(|| format!("at most {most} bytes without control characters"))
        }
        Value::Name(name) => (!is_name(name)).then(|| NAME.to_owned()),
        Value::List(entries) => count(*entries),
        Value::Names(texts) | Value::Tags(texts) => count(texts.len()),
        Value::Headers(headers) => {
            let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
            (count(headers.len()).is_some() || bytes > 8 << 10).then(|| format!("at most {most}, with 8 KiB together"))
        }
    };
    problem.map(|bounds| ((*field).to_owned(), bounds)).or_else(|| match value {
        Value::Names(names) => each(names, NAME, is_name),
        Value::Tags(tags) => {
            each(tags, "1 to 64 bytes without control characters", |tag| !tag.is_empty() && is_text(tag, 64))
        }
        _ => None,
    })
}

fn ms(time: Duration) -> i64 {
    time.seconds.saturating_mul(1_000).saturating_add(i64::from(time.nanos / 1_000_000))
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    (1..=200).contains(&text.len()) && text.bytes().all(allowed)
}

fn is_text(text: &str, most: usize) -> bool {
    text.len() <= most && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use howdah_proto::v1::{DependencyFailure, KeyPolicy};
    use tonic::Code;

    use crate::{NewJob as Job, testing::recording_client};

    const DAY: Duration = Duration::from_hours(24);

    #[tokio::test]
    async fn a_recording_client_refuses_the_first_invalid_field_and_records_nothing() {
        let (client, recorder) = recording_client();
        let long = "x".repeat(201);
        for (field, bad) in [
            ("task_type", Job::new("no spaces")),
            ("payload", Job::new("a").payload(vec![0; (1 << 20) + 1])),
            ("headers", Job::new("a").header("name", "x".repeat(8 << 10))),
            ("priority", Job::new("a").priority(1001)),
            ("max_attempts", Job::new("a").max_attempts(1001)),
            ("delay", Job::new("a").delay(DAY * 3651)),
            ("timeout", Job::new("a").timeout(DAY * 31)),
            ("expire_after", Job::new("a").expire_after(Duration::ZERO)),
            ("key", Job::new("a").key(&long)),
            ("key_policy", Job::new("a").key_policy(KeyPolicy::Replace)),
            ("key_version", Job::new("a").key_version(1)),
            ("on_dependency_failure", Job::new("a").on_dependency_failure(DependencyFailure::Run)),
            ("limit_key", Job::new("a").limit_key(&long)),
            ("limit_max", Job::new("a").limit_max(1)),
            ("fair_key", Job::new("a").fair_key("line\n")),
            ("tags", Job::new("a").tags(["x"; 17])),
            ("tags[1]", Job::new("a").tags(["x", ""])),
            ("fallback", Job::new("a").fallback("a")),
            ("next_stages[1]", Job::new("a").next_stages(["b", "no spaces"])),
        ] {
            let field = format!("jobs[1].{field}");
            let error = client.enqueue_all([Job::new("a"), bad.clone()]).await.unwrap_err();
            assert_eq!((error.field(), error.reason()), (Some(field.as_str()), Some("INVALID_FIELD")));
            assert_eq!(error.code(), Code::InvalidArgument);
            client.producer().enqueue(bad).await.unwrap_err();
        }
        assert_eq!(recorder.jobs(), []);
    }
}
