//! Jobs as HTTP says them: options in a query or in headers, or a JSON batch. The names are those of the
//! protocol; whether the values are good is checked where those of gRPC are.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::HeaderMap;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use howdah_proto::v1::{self, new_job::Start};
use percent_encoding::percent_decode_str;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};

use crate::error::Error;

/// Before the name of an option in a header.
const OPTION: &str = "howdah-";
/// Before the name of a job's header in one of the request's.
const HEADER: &str = "howdah-header-";

/// What may be said of a job besides its type and payload.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Options {
    headers: HashMap<String, String>,
    priority: i32,
    /// A duration: `30s`, `5m`.
    delay: Option<String>,
    /// A time: `2030-01-01T00:00:00Z`.
    run_at: Option<String>,
    key: String,
    max_attempts: u32,
    timeout: Option<String>,
    traceparent: String,
    tracestate: String,
    /// Of a batch it is beside the jobs.
    pub(super) request_key: Option<String>,
}

/// Jobs that are stored together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    #[serde(default)]
    request_key: String,
    #[serde(deserialize_with = "bounded")]
    jobs: Vec<BatchJob>,
}

/// More than any `limits.batch`: a small body must not become a large one in memory.
const MOST_JOBS: usize = 100_000;

/// A list that is no longer than that.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<BatchJob>, D::Error> {
    struct Jobs;
    impl<'de> Visitor<'de> for Jobs {
        type Value = Vec<BatchJob>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of jobs")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut jobs = Vec::new();
            while let Some(job) = list.next_element()? {
                if jobs.len() == MOST_JOBS {
                    return Err(A::Error::custom(format_args!("it has more than {MOST_JOBS} jobs")));
                }
                jobs.push(job);
            }
            Ok(jobs)
        }
    }
    deserializer.deserialize_seq(Jobs)
}

#[derive(Debug, Deserialize)]
struct BatchJob {
    task_type: String,
    #[serde(default)]
    payload: Option<String>,
    #[serde(default)]
    payload_base64: Option<String>,
    #[serde(flatten)]
    options: HashMap<String, serde_json::Value>,
}

impl Options {
    /// Of a query, and of headers that begin with `Howdah-`. The query wins.
    pub(super) fn of(query: &str, headers: &HeaderMap) -> Result<Self, Error> {
        let mut options = Self::default();
        for (name, value) in headers {
            let name = name.as_str();
            let text = || match value.to_str() {
                Ok(text) => Ok(text),
                Err(_) => Err(Error::invalid(name, "has characters that are not ASCII; use a query for them")),
            };
            if let Some(name) = name.strip_prefix(HEADER) {
                options.headers.insert(name.to_owned(), text()?.to_owned());
            } else if let Some(option) = name.strip_prefix(OPTION) {
                options.set(&option.replace('-', "_"), text()?)?;
            } else if matches!(name, "traceparent" | "tracestate") {
                options.set(name, text()?)?;
            }
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            match name.strip_prefix("header.") {
                Some(name) => drop(options.headers.insert(name.to_owned(), value.into_owned())),
                None => options.set(&name, &value)?,
            }
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let text = || Some(value.to_owned());
        match name {
            "priority" => self.priority = number(name, value)?,
            "max_attempts" => self.max_attempts = number(name, value)?,
            "delay" => self.delay = text(),
            "run_at" => self.run_at = text(),
            "timeout" => self.timeout = text(),
            "key" => value.clone_into(&mut self.key),
            "request_key" => self.request_key = text(),
            "traceparent" => value.clone_into(&mut self.traceparent),
            "tracestate" => value.clone_into(&mut self.tracestate),
            _ => {
                return Err(Error::invalid(
                    name.chars().take(40).filter(|c| !c.is_control()).collect::<String>(),
                    "is no option; priority, delay, run_at, key, max_attempts, timeout, request_key, traceparent, \
                     tracestate and header.NAME are",
                ));
            }
        }
        Ok(())
    }

    /// The job, as gRPC would have said it.
    pub(super) fn job(self, task_type: String, payload: Bytes) -> Result<v1::NewJob, Error> {
        let start = match (self.run_at, self.delay) {
            (Some(_), Some(_)) => return Err(Error::invalid("delay", "is set, and so is run_at; one of them may be")),
            (Some(at), None) => Some(Start::RunAt(time("run_at", &at)?)),
            (None, Some(delay)) => Some(Start::Delay(duration("delay", &delay)?)),
            (None, None) => None,
        };
        let trace_context = v1::TraceContext { traceparent: self.traceparent, tracestate: self.tracestate };
        Ok(v1::NewJob {
            task_type,
            payload,
            headers: self.headers,
            priority: self.priority,
            start,
            max_attempts: self.max_attempts,
            key: self.key,
            timeout: self.timeout.map(|timeout| duration("timeout", &timeout)).transpose()?,
            trace_context: Some(trace_context).filter(|trace| *trace != v1::TraceContext::default()),
            ..v1::NewJob::default()
        })
    }
}

impl Batch {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(body).map_err(|error| Error::invalid("body", format!("is not a batch of jobs: {error}")))
    }

    /// The jobs and the request key.
    pub(super) fn jobs(self) -> Result<(Vec<v1::NewJob>, String), Error> {
        let jobs = self.jobs.into_iter().enumerate();
        let jobs = jobs.map(|(i, job)| job.job().map_err(|error| error.within(&format!("jobs[{i}]"))));
        Ok((jobs.collect::<Result<_, _>>()?, self.request_key))
    }
}

impl BatchJob {
    fn job(self) -> Result<v1::NewJob, Error> {
        let payload: Bytes = match (self.payload, self.payload_base64) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("payload", "is set, and so is payload_base64; one of them may be"));
            }
            (Some(text), None) => text.into(),
            (None, Some(text)) => match STANDARD.decode(text) {
                Ok(bytes) => bytes.into(),
                Err(error) => return Err(Error::invalid("payload_base64", format!("is not base64: {error}"))),
            },
            (None, None) => Bytes::new(),
        };
        let options = serde_json::Value::Object(self.options.into_iter().collect());
        let options: Options = serde_json::from_value(options)
            .map_err(|error| Error::invalid("options", format!("make no sense: {error}")))?;
        if options.request_key.is_some() {
            return Err(Error::invalid("request_key", "is of the whole batch, beside jobs"));
        }
        options.job(self.task_type, payload)
    }
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Error> {
    let text: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    match percent_decode_str(&text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned().into()),
        Err(_) => Err(Error::invalid("query", "is not UTF-8 once it is decoded")),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Error> {
    let shown = || value.chars().take(40).collect::<String>();
    value
        .parse()
        .map_err(|_| Error::invalid(name, format!("{:?} is not a whole number, or far out of its bounds", shown())))
}

fn duration(name: &str, value: &str) -> Result<prost_types::Duration, Error> {
    let bad = || {
        Error::invalid(
            name,
            format!("{:?} is not a duration, such as 30s or 5m", value.chars().take(40).collect::<String>()),
        )
    };
    let duration: Duration = humantime::parse_duration(value).map_err(|_| bad())?;
    prost_types::Duration::try_from(duration).map_err(|_| bad())
}

fn time(name: &str, value: &str) -> Result<prost_types::Timestamp, Error> {
    let bad = || {
        let shown = value.chars().take(40).collect::<String>();
        Error::invalid(name, format!("{shown:?} is not a time, such as 2030-01-01T00:00:00Z"))
    };
    let time: jiff::Timestamp = value.parse().map_err(|_| bad())?;
    let time = SystemTime::from(time);
    // Any time before 1970 is as good as any other: it is over.
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(prost_types::Timestamp { seconds: since_1970.as_secs() as i64, nanos: since_1970.subsec_nanos() as i32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(query: &str, headers: &[(&'static str, &'static str)]) -> Result<Options, Error> {
        let headers = headers.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        Options::of(query, &headers.collect())
    }

    fn job(query: &str) -> v1::NewJob {
        options(query, &[]).unwrap().job("a".into(), Bytes::new()).unwrap()
    }

    #[test]
    fn options_are_in_the_query_or_in_headers_and_the_query_wins() {
        let query = "priority=-5&key=a%20b+c&header.tenant=%C3%A9&delay=1m30s";
        let headers =
            [("howdah-priority", "7"), ("howdah-max-attempts", "3"), ("howdah-header-lang", "en"), ("accept", "*/*")];
        let job = options(query, &headers).unwrap().job("t".into(), "p".into()).unwrap();
        assert_eq!((job.priority, job.max_attempts, job.key.as_str()), (-5, 3, "a b c"));
        assert_eq!((job.headers["tenant"].as_str(), job.headers["lang"].as_str()), ("é", "en"));
        assert_eq!(job.start, Some(Start::Delay(prost_types::Duration { seconds: 90, nanos: 0 })));
        let at = self::job("run_at=1970-01-01T00:00:01.5%2B00:00");
        assert_eq!(at.start, Some(Start::RunAt(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 })));
    }

    #[test]
    fn what_cannot_be_read_names_the_option() {
        for (query, field) in [
            ("priority=high", "priority"),
            ("priority=99999999999", "priority"),
            ("delay=soon", "delay"),
            ("delay=1s&run_at=2030-01-01T00:00:00Z", "delay"),
            ("run_at=tomorrow", "run_at"),
            ("timeout=-1s", "timeout"),
            ("prioritty=1", "prioritty"),
            ("key=%FF", "query"),
        ] {
            let error = options(query, &[]).and_then(|options| options.job("a".into(), Bytes::new())).unwrap_err();
            assert_eq!(error.field(), Some(field), "{query}: {error}");
        }
        assert_eq!(options("", &[("howdah-nothing", "1")]).unwrap_err().field(), Some("nothing"));
    }

    #[test]
    fn a_batch_has_jobs_with_options_and_one_request_key() {
        let body = br#"{"request_key": "k", "jobs": [{"task_type": "a", "payload": "text", "delay": "1s", "headers": {"x": "y"}},
                       {"task_type": "b", "payload_base64": "/w=="}, {"task_type": "c"}]}"#;
        let (jobs, key) = Batch::parse(body).unwrap().jobs().unwrap();
        assert_eq!((jobs.len(), key.as_str()), (3, "k"));
        assert_eq!((&jobs[0].payload[..], &jobs[1].payload[..]), (&b"text"[..], &b"\xff"[..]));
        assert_eq!(jobs[0].headers["x"], "y");
    }

    #[test]
    fn what_is_wrong_in_a_batch_is_named_with_its_place() {
        let field = |body: &str| {
            let error = Batch::parse(body.as_bytes()).and_then(Batch::jobs).unwrap_err();
            error.field().unwrap_or_default().to_owned()
        };
        assert_eq!(field("[]"), "body");
        let many = vec![r#"{"task_type":"a"}"#; MOST_JOBS + 1].join(",");
        assert_eq!(field(&format!(r#"{{"jobs":[{many}]}}"#)), "body");
        assert_eq!(field(r#"{"jobs": [], "more": 1}"#), "body");
        assert_eq!(field(r#"{"jobs": [{"task_type": "a"}, {"task_type": "b", "delay": "x"}]}"#), "jobs[1].delay");
        assert_eq!(field(r#"{"jobs": [{"task_type": "a", "prio": 1}]}"#), "jobs[0].options");
        assert_eq!(field(r#"{"jobs": [{"task_type": "a", "payload": "", "payload_base64": ""}]}"#), "jobs[0].payload");
        assert_eq!(field(r#"{"jobs": [{"task_type": "a", "payload_base64": "?"}]}"#), "jobs[0].payload_base64");
    }
}
