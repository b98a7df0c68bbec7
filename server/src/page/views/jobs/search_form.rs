//! The form for a search among the jobs of a task type.

use std::time::{Duration, SystemTime};

use howdah_proto::v1::{JobHeader, search_jobs_request::Query};
use prost_types::Timestamp;

use crate::{error::Error, page::params::Params};

/// Default length of the period that a search covers.
const SINCE: Duration = Duration::from_hours(24);

/// Values of the search form, as entered by the user.
pub(super) struct SearchForm {
    pub(super) key: String,
    pub(super) tag: String,
    /// Header to search for, as `name=value`.
    pub(super) header: String,
    pub(super) text: String,
    pub(super) path: String,
    /// Start of the searched period: a duration before now, or a time. Applies to headers, texts and paths.
    pub(super) since: String,
}

impl SearchForm {
    pub(super) fn from_params(params: &Params) -> Self {
        let of = |name| params.get(name).to_owned();
        Self {
            key: of("key"),
            tag: of("tag"),
            header: of("header"),
            text: of("text"),
            path: of("path"),
            since: of("since"),
        }
    }

    /// Returns the names and values of the search fields.
    pub(super) fn pairs(&self) -> [(&'static str, &str); 5] {
        let Self { key, tag, header, text, path, .. } = self;
        [("key", key), ("tag", tag), ("header", header), ("text", text), ("path", path)]
    }

    /// Returns the search query; `None` if no search field is set.
    pub(super) fn query(&self) -> Result<Option<Query>, Error> {
        let mut set = self.pairs().into_iter().filter(|(_, value)| !value.is_empty());
        let Some((name, value)) = set.next() else { return Ok(None) };
        if let Some((other, _)) = set.next() {
            return Err(Error::invalid(other, format!("cannot be combined with {name}; search for one of them")));
        }
        let value = value.to_owned();
        Ok(Some(match name {
            "key" => Query::Key(value),
            "tag" => Query::Tag(value),
            "header" => {
                let (name, value) =
                    value.split_once('=').ok_or_else(|| Error::invalid("header", "must have the form name=value"))?;
                Query::Header(JobHeader { name: name.trim().into(), value: value.trim().into() })
            }
            "text" => Query::PayloadText(value),
            _ => Query::PayloadPath(value),
        }))
    }

    /// Whether the search has to scan jobs of one state and period, because no index covers the fields.
    pub(super) fn looks(&self) -> bool {
        [&self.header, &self.text, &self.path].into_iter().any(|value| !value.is_empty())
    }

    /// Returns the start of the searched period.
    pub(super) fn since(&self) -> Result<Timestamp, Error> {
        let ago = if self.since.is_empty() { Some(SINCE) } else { humantime::parse_duration(&self.since).ok() };
        if let Some(at) = ago.and_then(|ago| SystemTime::now().checked_sub(ago)) {
            let at = Timestamp::from(at);
            // Truncates to microseconds, as `written` does. The next page must repeat exactly this search, or its page
            // token is invalid.
            return Ok(Timestamp { nanos: at.nanos - at.nanos % 1_000, ..at });
        }
        let time: Result<jiff::Timestamp, _> = howdah_proto::json::time_text(&self.since).parse();
        let time = time.map_err(|_| {
            Error::invalid("since", "must be a duration such as 7d or a time such as 2027-01-01T03:00:00Z")
        })?;
        Ok(Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() })
    }
}

/// Formats a time for a query string, with microsecond precision.
pub(super) fn written(time: Timestamp) -> String {
    jiff::Timestamp::new(time.seconds, time.nanos).map(|at| format!("{at:.6}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(query: &str) -> SearchForm {
        SearchForm::from_params(&Params::parse(query).unwrap())
    }

    #[test]
    fn a_search_form_with_two_searches_is_refused() {
        assert_eq!(form("since=7d").query().unwrap(), None);
        assert_eq!(form("tag=a").query().unwrap(), Some(Query::Tag("a".into())));
        let header = JobHeader { name: "tenant".into(), value: "a=b".into() };
        assert_eq!(form("header=tenant%3Da%3Db").query().unwrap(), Some(Query::Header(header)));
        for bad in ["key=a&tag=b", "text=a&path=b", "header=tenant"] {
            assert!(form(bad).query().is_err(), "{bad}");
        }
    }

    #[test]
    fn since_is_a_duration_or_a_time_and_comes_back_as_it_was_written() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
        for (text, ago) in [("", 86_400), ("since=7d", 604_800), ("since=90s", 90)] {
            let since = form(text).since().unwrap();
            assert!((since.seconds + ago - now).abs() < 60, "{text}");
            assert_eq!(form(&format!("since={}", written(since))).since().unwrap(), since);
        }
        let time = form("since=2026-11-23T10:00:00.25Z").since().unwrap();
        assert_eq!(form(&format!("since={}", written(time))).since().unwrap(), time);
        assert!(form("since=yesterday").since().is_err());
    }
}
