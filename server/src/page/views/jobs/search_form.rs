//! The form for a search among the jobs of a task type.

use howdah_core::error::Error;
use howdah_proto::v1::{JobConditions, JobHeader, search_jobs_request::Query};
use prost_types::Timestamp;

use crate::page::{
    conditions::{self, Field, time_or_ago},
    params::Params,
};

/// Default length of the period that a search covers.
const SINCE: &str = "24h";

/// Values of the search form, as entered by the user.
pub(super) struct SearchForm {
    pub(super) key: String,
    /// Header to search for, as `name=value`.
    pub(super) header: String,
    pub(super) text: String,
    pub(super) path: String,
    /// Start of the searched period: a duration before now, or a time. Applies to headers, texts and paths.
    pub(super) since: String,
    /// Form fields of the conditions.
    pub(super) conditions: Vec<Field>,
    /// The conditions; `None` if no condition is set.
    wanted: Option<JobConditions>,
}

impl SearchForm {
    pub(super) fn from_params(params: &Params) -> Result<Self, Error> {
        let of = |name| params.get(name).to_owned();
        Ok(Self {
            key: of("key"),
            header: of("header"),
            text: of("text"),
            path: of("path"),
            since: of("since"),
            conditions: conditions::fields(params),
            wanted: conditions::from_params(params)?,
        })
    }

    /// Returns the names and values of the search fields, with times instead of durations before now.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs: Vec<_> = self.criteria().map(|(name, value)| (name, value.to_owned())).into();
        pairs.extend(self.wanted.iter().flat_map(conditions::pairs));
        pairs
    }

    fn criteria(&self) -> [(&'static str, &str); 4] {
        let Self { key, header, text, path, .. } = self;
        [("key", key), ("header", header), ("text", text), ("path", path)]
    }

    /// The conditions; `None` if no condition is set.
    pub(super) fn wanted(&self) -> Option<&JobConditions> {
        self.wanted.as_ref()
    }

    /// Returns the search query; `None` if no search field but a condition is set.
    pub(super) fn query(&self) -> Result<Option<Query>, Error> {
        let mut set = self.criteria().into_iter().filter(|(_, value)| !value.is_empty());
        let Some((name, value)) = set.next() else { return Ok(None) };
        if let Some((other, _)) = set.next() {
            return Err(Error::invalid(other, format!("cannot be combined with {name}; search for one of them")));
        }
        let value = value.to_owned();
        Ok(Some(match name {
            "key" => Query::Key(value),
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
        let has_content = [&self.header, &self.text, &self.path].into_iter().any(|value| !value.is_empty());
        let is_indexed = |wanted: &JobConditions| !wanted.tag.is_empty() || !wanted.worker_id.is_empty();
        has_content || (self.key.is_empty() && self.wanted.as_ref().is_some_and(|wanted| !is_indexed(wanted)))
    }

    /// Returns the start of the searched period.
    pub(super) fn since(&self) -> Result<Timestamp, Error> {
        time_or_ago("since", if self.since.is_empty() { SINCE } else { &self.since })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::page::conditions::written;

    fn form(query: &str) -> SearchForm {
        SearchForm::from_params(&Params::parse(query).unwrap()).unwrap()
    }

    #[test]
    fn a_search_form_with_two_searches_is_refused() {
        assert_eq!(form("since=7d").query().unwrap(), None);
        assert_eq!((form("tag=a").query().unwrap(), form("tag=a").wanted().is_some()), (None, true));
        let looks = ["tag=a", "worker=a&fair_key=b", "key=a&fair_key=b", "fair_key=b", "tag=a&text=b"];
        assert_eq!(looks.map(|query| form(query).looks()), [false, false, false, true, true]);
        let header = JobHeader { name: "tenant".into(), value: "a=b".into() };
        assert_eq!(form("header=tenant%3Da%3Db").query().unwrap(), Some(Query::Header(header)));
        for bad in ["key=a&text=b", "text=a&path=b", "header=tenant"] {
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
