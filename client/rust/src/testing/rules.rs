//! The bounds on the fields of jobs, as a broker with default settings checks them. Rules that depend on the clock or on other
//! jobs are left out: times, dependencies and held keys.

use std::time::Duration;

use howdah_proto::v1::{KeyPolicy, NewJob, RequestError, new_job};
use tonic::Code;

use crate::{Error, Result, time};

const DAY: Duration = Duration::from_hours(24);
const NAME: &str = "1 to 200 bytes of A-Z a-z 0-9 . _ : / -";
const TEXT: &str = "at most 200 bytes without control characters";

/// Fails like a broker that refuses a field of one of the jobs.
pub(super) fn check(jobs: &[NewJob]) -> Result<()> {
    for (index, job) in jobs.iter().enumerate() {
        if let Some((field, _, bounds)) = rules(job).into_iter().find(|(_, holds, _)| !holds) {
            let field = format!("jobs[{index}].{field}");
            let message = format!("{field} must be {bounds}");
            let (code, reason) = (Code::InvalidArgument as i32, "INVALID_FIELD".to_owned());
            return Err(Error::from_request(RequestError { code, message, field, reason, retry_after: None }));
        }
    }
    Ok(())
}

/// Returns the fields, whether they are valid, and their bounds.
fn rules(job: &NewJob) -> Vec<(String, bool, &'static str)> {
    let header_bytes: usize = job.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let within = |time: Option<_>, least: Duration, most: Duration| {
        time.is_none() || time::from_proto(time).is_some_and(|time| (least..=most).contains(&time))
    };
    let delay = job.start.and_then(|start| match start {
        new_job::Start::Delay(delay) => Some(delay),
        new_job::Start::RunAt(_) => None,
    });
    let expiry = job.expiry.and_then(|expiry| match expiry {
        new_job::Expiry::ExpireAfter(after) => Some(after),
        new_job::Expiry::ExpireAt(_) => None,
    });
    let ms = Duration::from_millis(1);
    let after_delay = time::from_proto(delay).unwrap_or_default() + ms;
    let has_policy = !matches!(job.key_policy(), KeyPolicy::Unspecified | KeyPolicy::Keep);
    let fallback = &job.fallback;
    let mut rules = vec![
        ("task_type", is_name(&job.task_type), NAME),
        ("payload", job.payload.len() <= 1 << 20, "at most 1 MiB"),
        ("headers", job.headers.len() <= 64 && header_bytes <= 8 << 10, "at most 64, with 8 KiB together"),
        ("priority", (-1000..=1000).contains(&job.priority), "-1,000 to 1,000"),
        ("max_attempts", job.max_attempts <= 1000, "at most 1,000"),
        ("delay", within(delay, Duration::ZERO, DAY * 3650), "0 s to 10 years"),
        ("timeout", within(job.timeout, ms, DAY * 30), "1 ms to 30 days"),
        ("expire_after", within(expiry, after_delay, DAY * 3650), "1 ms to 10 years, and longer than the delay"),
        ("key", is_text(&job.key, 200), TEXT),
        ("key_policy", !has_policy || !job.key.is_empty(), "unset without a key"),
        ("limit_key", is_text(&job.limit_key, 200), TEXT),
        (
            "limit_max",
            job.limit_max <= if job.limit_key.is_empty() { 0 } else { 1_000_000 },
            "at most 1,000,000, with a limit_key",
        ),
        ("fair_key", is_text(&job.fair_key, 200), TEXT),
        ("tags", job.tags.len() <= 16, "at most 16"),
        ("next_stages", job.next_stages.len() <= 100, "at most 100"),
        ("fallback", fallback.is_empty() || *fallback != job.task_type && is_name(fallback), "another task type"),
    ]
    .into_iter()
    .map(|(field, holds, bounds)| (field.to_owned(), holds, bounds))
    .collect::<Vec<_>>();
    rules.extend(job.tags.iter().enumerate().map(|(index, tag)| {
        let holds = !tag.is_empty() && is_text(tag, 64);
        (format!("tags[{index}]"), holds, "1 to 64 bytes without control characters")
    }));
    let stages = job.next_stages.iter().enumerate();
    rules.extend(stages.map(|(index, stage)| (format!("next_stages[{index}]"), is_name(stage), NAME)));
    rules
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
    use super::*;
    use crate::{NewJob as Job, testing::recording_client};

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
