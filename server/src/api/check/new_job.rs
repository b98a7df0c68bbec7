//! Checks of one job to enqueue.

use std::{collections::HashMap, time::Duration, time::SystemTime};

use bytes::Bytes;
use howdah_core::{
    error::Error,
    job::{ClusterSettings, JobOptions, Limits, NewJob, Start},
};
use howdah_proto::v1::{self, new_job::Start as WireStart};

use super::{coordination, fallback, history, numbers, plain, retry, task_type, text, time};

/// Maximum length of `traceparent`, in bytes.
const TRACEPARENT: usize = 200;
/// Maximum length of `tracestate`, in bytes.
const TRACESTATE: usize = 512;

/// Checks a job; `now` is the broker's clock.
pub(in crate::api) fn new_job(mut job: v1::NewJob, limits: &ClusterSettings, now: SystemTime) -> Result<NewJob, Error> {
    let task_type = task_type("task_type", &job.task_type)?;
    text::short("payload", &job.payload, limits.payload_bytes)?;
    headers(&job.headers, limits)?;
    let timeout = time::MILLISECOND..=limits.max_timeout;
    let start = start(job.start, limits, now)?;
    plain::needs(&job)?;
    let fallback = fallback("fallback", &job.fallback, &task_type)?;
    let next_stages = coordination::next_stages(&job)?;
    let options = JobOptions {
        retry_policy: retry::retry_policy(job.retry_policy.as_ref())?,
        traceparent: text::optional("traceparent", std::mem::take(&mut job.traceparent), TRACEPARENT)?,
        tracestate: text::optional("tracestate", std::mem::take(&mut job.tracestate), TRACESTATE)?,
        tags: tags("tags", std::mem::take(&mut job.tags))?,
        history: history(job.history)?,
        ..plain::options(&mut job, limits)?
    };
    let options = coordination::coordinate(&mut job, options, start, limits, now)?;
    Ok(NewJob {
        task_type,
        // The payload is copied, because a slice would keep the whole message in memory until the job is stored.
        payload: Bytes::copy_from_slice(&job.payload),
        headers: job.headers,
        priority: self::priority(job.priority)?,
        start,
        max_attempts: retry::max_attempts(job.max_attempts)?,
        key: text::optional("key", job.key, limits.key_bytes)?,
        timeout: time::optional("timeout", job.timeout, &timeout)?,
        fallback,
        next_stages,
        options: options.boxed(),
    })
}

/// Checks tags and removes duplicates, which occur when a client derives tags from several sources. Keeps their order.
pub(in crate::api) fn tags(field: &str, tags: Vec<String>) -> Result<Vec<String>, Error> {
    numbers::entries(field, tags.len(), 0..=Limits::TAGS)?;
    let mut each = Vec::with_capacity(tags.len());
    for (i, tag) in tags.into_iter().enumerate() {
        text::tag(&format!("{field}[{i}]"), &tag)?;
        if !each.contains(&tag) {
            each.push(tag);
        }
    }
    Ok(each)
}

/// Checks a priority. Jobs with a lower number run first.
pub(in crate::api) fn priority(value: i32) -> Result<i16, Error> {
    let range = i64::from(*Limits::PRIORITY.start())..=i64::from(*Limits::PRIORITY.end());
    Ok(numbers::within("priority", i64::from(value), range)? as i16)
}

/// Checks the number and size of headers. Rejects NUL, the only character that Postgres cannot store.
fn headers(headers: &HashMap<String, String>, limits: &ClusterSettings) -> Result<(), Error> {
    numbers::entries("headers", headers.len(), 0..=limits.headers)?;
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits.header_bytes {
        let problem = format!("have {bytes} bytes together; at most {} are allowed", limits.header_bytes);
        return Err(Error::invalid("headers", problem));
    }
    match headers.iter().find(|(name, value)| name.contains('\0') || value.contains('\0')) {
        Some((name, _)) => {
            let problem = format!("have a NUL character in {}; none are allowed", text::shown(name));
            Err(Error::invalid("headers", problem))
        }
        None => Ok(()),
    }
}

fn start(start: Option<WireStart>, limits: &ClusterSettings, now: SystemTime) -> Result<Start, Error> {
    match start {
        None => Ok(Start::Now),
        Some(WireStart::RunAt(at)) => time::run_at("run_at", at, now, limits.max_delay).map(Start::At),
        Some(WireStart::Delay(delay)) => {
            let delay = time::duration("delay", delay, &(Duration::ZERO..=limits.max_delay))?;
            Ok(if delay.is_zero() { Start::Now } else { Start::After(delay) })
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{Duration as WireDuration, Timestamp};

    use super::*;

    fn check(job: v1::NewJob) -> Result<NewJob, Error> {
        new_job(job, &ClusterSettings::DEFAULT, SystemTime::now())
    }

    fn job() -> v1::NewJob {
        v1::NewJob { task_type: "email.send".into(), ..Default::default() }
    }

    fn with_headers(headers: impl IntoIterator<Item = (String, String)>) -> v1::NewJob {
        v1::NewJob { headers: headers.into_iter().collect(), ..job() }
    }

    fn at(seconds: i64) -> Option<WireStart> {
        Some(WireStart::RunAt(Timestamp { seconds, nanos: 0 }))
    }

    fn after(seconds: i64, nanos: i32) -> Option<WireStart> {
        Some(WireStart::Delay(WireDuration { seconds, nanos }))
    }

    #[test]
    fn a_task_type_is_all_that_a_job_needs() {
        let job = check(job()).unwrap();
        assert!(job.is_plain());
        assert_eq!((job.priority, job.max_attempts, job.timeout), (0, None, None));
        assert!(job.options.is_none());
    }

    #[test]
    fn a_past_run_at_is_accepted_and_a_zero_delay_starts_the_job_now() {
        assert_eq!(check(v1::NewJob { start: at(1), ..job() }).unwrap().start, Start::At(1_000_000));
        assert_eq!(check(v1::NewJob { start: after(0, 0), ..job() }).unwrap().start, Start::Now);
        let later = check(v1::NewJob { start: after(0, 1), ..job() }).unwrap();
        assert_eq!(later.start, Start::After(Duration::from_millis(1)));
    }

    #[test]
    fn quotes_and_paths_and_percent_signs_are_only_text() {
        let nasty = "'; DROP TABLE ready; -- \" % %s ../../etc/passwd $1 \\";
        let job = check(v1::NewJob { key: nasty.into(), ..with_headers([(nasty.into(), nasty.into())]) }).unwrap();
        assert_eq!(job.key.as_deref(), Some(nasty));
        assert_eq!(job.headers[nasty], nasty);
    }

    #[test]
    fn the_largest_of_everything_is_allowed() {
        let job = v1::NewJob {
            task_type: "t".repeat(200),
            payload: vec![0; 1 << 20].into(),
            priority: 1000,
            start: after(3650 * 24 * 3600, 0),
            max_attempts: 1000,
            key: "k".repeat(200),
            timeout: Some(WireDuration { seconds: 30 * 24 * 3600, nanos: 0 }),
            traceparent: "p".repeat(200),
            tracestate: "s".repeat(512),
            tags: (0..16).map(|i| format!("{i:064}")).collect(),
            ..with_headers((0..64).map(|i| (format!("{i:02}"), "v".repeat(126))))
        };
        assert!(check(job).is_ok());
    }

    #[test]
    fn a_tag_that_comes_twice_counts_once_and_the_order_stays() {
        let tags = ["b", "a", "b", "Ü", "a"].map(str::to_owned).to_vec();
        let job = check(v1::NewJob { tags, ..job() }).unwrap();
        assert_eq!(job.options.unwrap().tags, ["b", "a", "Ü"]);
    }

    #[test]
    fn the_error_names_the_invalid_field_of_a_new_job() {
        let timeout = |seconds, nanos| v1::NewJob { timeout: Some(WireDuration { seconds, nanos }), ..job() };
        let cases = vec![
            ("task_type", v1::NewJob::default()),
            ("task_type", v1::NewJob { task_type: "a b".into(), ..job() }),
            ("task_type", v1::NewJob { task_type: "t".repeat(201), ..job() }),
            ("payload", v1::NewJob { payload: vec![0; (1 << 20) + 1].into(), ..job() }),
            ("headers", with_headers((0..65).map(|i| (i.to_string(), String::new())))),
            ("headers", with_headers([("a".into(), "v".repeat(8192))])),
            ("headers", with_headers([("a".into(), "nul\0".into())])),
            ("headers", with_headers([("nul\0".into(), "a".into())])),
            ("priority", v1::NewJob { priority: 1001, ..job() }),
            ("priority", v1::NewJob { priority: i32::MIN, ..job() }),
            ("run_at", v1::NewJob { start: at(253_402_300_799), ..job() }),
            ("run_at", v1::NewJob { start: at(i64::MAX), ..job() }),
            ("run_at", v1::NewJob { start: at(-1), ..job() }),
            ("delay", v1::NewJob { start: after(-1, 0), ..job() }),
            ("delay", v1::NewJob { start: after(0, -1), ..job() }),
            ("delay", v1::NewJob { start: after(3650 * 24 * 3600, 1), ..job() }),
            ("delay", v1::NewJob { start: after(i64::MAX, 0), ..job() }),
            ("max_attempts", v1::NewJob { max_attempts: (1 << 31) - 1, ..job() }),
            ("key", v1::NewJob { key: "k".repeat(201), ..job() }),
            ("key", v1::NewJob { key: "a\0".into(), ..job() }),
            ("key", v1::NewJob { key: "a\n".into(), ..job() }),
            ("timeout", timeout(0, 0)),
            ("fallback", v1::NewJob { fallback: "a b".into(), ..job() }),
            ("fallback", v1::NewJob { fallback: "t".repeat(201), ..job() }),
            ("fallback", v1::NewJob { fallback: "email.send".into(), ..job() }),
            ("tags", v1::NewJob { tags: (0..17).map(|i| i.to_string()).collect(), ..job() }),
            ("tags[1]", v1::NewJob { tags: vec!["a".into(), String::new()], ..job() }),
            ("tags[0]", v1::NewJob { tags: vec!["é".repeat(33)], ..job() }),
            ("tags[2]", v1::NewJob { tags: vec!["a".into(), "b".into(), "c\u{85}".into()], ..job() }),
            ("history", v1::NewJob { history: 5, ..job() }),
            ("timeout", timeout(0, 999_999)),
            ("timeout", timeout(30 * 24 * 3600 + 1, 0)),
            ("timeout", timeout(-1, 0)),
            ("traceparent", v1::NewJob { traceparent: "p".repeat(201), ..job() }),
            ("traceparent", v1::NewJob { traceparent: "\0".into(), ..job() }),
            ("tracestate", v1::NewJob { tracestate: "s".repeat(513), ..job() }),
        ];
        for (field, job) in cases {
            let error = check(job.clone()).expect_err(field);
            assert_eq!(error.field(), Some(field), "{error}");
            assert_eq!(error.code().0, tonic::Code::InvalidArgument);
            assert!(error.to_string().len() < 500, "{error}");
        }
    }
}
