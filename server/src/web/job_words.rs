//! Options of one job as text in a query or in headers. The options have the same names as in the protocol, and their values
//! get the same checks.

use std::{borrow::Cow, collections::HashSet};

use axum::http::HeaderMap;
use bytes::Bytes;
use howdah_core::{error::Error, job::options::OPTIONS};
use howdah_proto::v1;
use percent_encoding::percent_decode_str;

use crate::api::words::job_of_words;

/// Prefix of request headers that set an option of the job, such as `Howdah-Max-Attempts` for `max_attempts`.
const OPTION: &str = "howdah-";
/// Prefix of request headers that become headers of the job.
const HEADER: &str = "howdah-header-";

/// A job's options, and the request key.
pub(super) struct JobWords {
    given: Vec<(String, String)>,
    pub(super) request_key: String,
}

impl JobWords {
    /// Reads the options from a query, and from headers with the prefix `Howdah-`. The query takes precedence.
    pub(super) fn parse(query: &str, headers: &HeaderMap) -> Result<Self, Error> {
        let mut given: Vec<(String, String)> = Vec::new();
        for (name, value) in headers {
            let name = name.as_str();
            let option = match (name.strip_prefix(HEADER), name.strip_prefix(OPTION)) {
                (Some(header), _) => format!("headers.{header}"),
                (None, Some(option)) => option.replace('-', "_"),
                (None, None) if matches!(name, "traceparent" | "tracestate") => name.to_owned(),
                (None, None) => continue,
            };
            let text = value.to_str();
            let problem = "has characters that are not ASCII; use a query parameter instead of the header";
            given.push((option, text.map_err(|_| Error::invalid(name, problem))?.to_owned()));
        }
        once(&given)?;
        let mut from_query: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            from_query.push((decoded(name)?.into_owned(), decoded(value)?.into_owned()));
        }
        once(&from_query)?;
        given.retain(|(name, _)| !from_query.iter().any(|(other, _)| other == name));
        given.extend(from_query);
        let mut request_key = String::new();
        given.retain_mut(|(name, value)| {
            let is_key = name == "request_key";
            if is_key {
                request_key = std::mem::take(value);
            }
            !is_key
        });
        Ok(Self { given, request_key })
    }

    /// Builds the protocol message of a job from the options.
    pub(super) fn job(self, task_type: String, payload: Bytes) -> Result<v1::NewJob, Error> {
        // Here `task_type` and `payload` are no options: the path contains the task type, and the body is the payload.
        let taken = self.given.iter().find(|(name, _)| matches!(name.as_str(), "task_type" | "payload"));
        if let Some((name, _)) = taken {
            return Err(Error::invalid(name, "is not an option: the type is in the path, and the payload is the body"));
        }
        job_of_words(&self.given, task_type, payload)
    }
}

/// Rejects an option that is given twice and has a single value, because the request is ambiguous.
fn once(given: &[(String, String)]) -> Result<(), Error> {
    let several = |name: &str| OPTIONS.iter().any(|option| option.name == name && option.kind.is_repeated());
    let mut names = HashSet::new();
    match given.iter().find(|(name, _)| !names.insert(name) && !several(name)) {
        Some((name, _)) => Err(Error::invalid(name, "is given more than once; give it once")),
        None => Ok(()),
    }
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Error> {
    let text: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    match percent_decode_str(&text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned().into()),
        Err(_) => Err(Error::invalid("query", "is not UTF-8 after decoding")),
    }
}

#[cfg(test)]
mod tests {
    use howdah_proto::v1::new_job::Start;

    use super::*;

    fn words(query: &str, headers: &[(&'static str, &'static str)]) -> Result<JobWords, Error> {
        let headers = headers.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        JobWords::parse(query, &headers.collect())
    }

    fn job(query: &str) -> Result<v1::NewJob, Error> {
        words(query, &[]).and_then(|words| words.job("a".into(), Bytes::new()))
    }

    #[test]
    fn options_are_in_the_query_or_in_headers_and_the_query_wins() {
        let query = "priority=-5&key=a%20b+c&headers.tenant=%C3%A9&delay=1m30s&key_policy=replace";
        let headers = [
            ("howdah-priority", "7"),
            ("howdah-max-attempts", "3"),
            ("howdah-header-lang", "en"),
            ("traceparent", "00-1"),
            ("accept", "*/*"),
        ];
        let job = words(query, &headers).unwrap().job("t".into(), "p".into()).unwrap();
        assert_eq!((job.priority, job.max_attempts, job.key.as_str()), (-5, 3, "a b c"));
        assert_eq!((job.headers["tenant"].as_str(), job.headers["lang"].as_str()), ("é", "en"));
        assert_eq!((job.key_policy(), job.traceparent.as_str()), (v1::KeyPolicy::Replace, "00-1"));
        assert_eq!(job.start, Some(Start::Delay(prost_types::Duration { seconds: 90, nanos: 0 })));
        let at = self::job("run_at=1970-01-01T00:00:01.5%2B00:00").unwrap();
        assert_eq!(at.start, Some(Start::RunAt(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 })));
    }

    #[test]
    fn an_option_of_several_values_is_given_once_for_each() {
        let several = job("tags=a,b&tags=c+d&next_stages=x&next_stages=y&after=1&after=2").unwrap();
        assert_eq!((&several.tags[..], &several.after[..]), (&["a,b".into(), "c d".into()][..], &[1, 2][..]));
        assert_eq!(several.next_stages, ["x", "y"]);
        let mut headers = HeaderMap::new();
        for tag in ["a", "b"] {
            headers.append("howdah-tags", tag.parse().unwrap());
        }
        let words = JobWords::parse("", &headers).unwrap().job("a".into(), Bytes::new()).unwrap();
        assert_eq!(words.tags, ["a", "b"]);
    }

    #[test]
    fn the_error_names_the_unreadable_option_of_a_request() {
        for (query, field) in [
            ("prioritty=1", "prioritty"),
            ("payload=x", "payload"),
            ("key=%FF", "query"),
            ("key=k&priority=high", "priority"),
            ("priority=99999999999", "priority"),
            ("delay=soon", "delay"),
            ("run_at=tomorrow", "run_at"),
            ("timeout=1", "timeout"),
            ("key_policy=keeep", "key_policy"),
            ("delay=1s&run_at=2030-01-01T00:00:00Z", "options"),
            ("priority=1&priority=2", "priority"),
            ("key=a&ke%79=a", "key"),
            ("request_key=a&priority=1&request_key=b", "request_key"),
            ("headers.a=1&headers.b=2&headers.a=3", "headers.a"),
        ] {
            let error = job(query).unwrap_err();
            assert_eq!(error.field(), Some(field), "{query}: {error}");
        }
        let unknown = words("", &[("howdah-nothing", "1")]).and_then(|words| words.job("a".into(), Bytes::new()));
        assert_eq!(unknown.unwrap_err().field(), Some("nothing"));
        let mut headers = HeaderMap::new();
        for key in ["a", "b"] {
            headers.append("howdah-key", key.parse().unwrap());
        }
        assert_eq!(
            JobWords::parse("", &headers).err().and_then(|error| error.field().map(str::to_owned)),
            Some("key".into())
        );
    }
}
