//! Parameters of a query or a form, with size limits.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use howdah_core::error::Error;
use tokio::time::timeout;

/// Maximum number of parameters, and maximum size of a form in bytes. Allow a form with all jobs of a list selected.
pub(crate) const MOST: usize = 600;
pub(crate) const BYTES: usize = 64 << 10;
/// Time limit for receiving a form.
const WITHIN: Duration = Duration::from_secs(10);

/// Names and values of the parameters, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    /// Parses the parameters of a query.
    pub(super) fn parse(query: &str) -> Result<Self, Error> {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().take(MOST + 1).collect();
        if pairs.len() > MOST {
            return Err(Error::invalid("the request", format!("has more than {MOST} parameters")));
        }
        Ok(Self(pairs))
    }

    /// Reads and parses the parameters of a form.
    pub(super) async fn of_form(body: Body) -> Result<Self, Error> {
        let body = timeout(WITHIN, to_bytes(body, BYTES)).await;
        let body = body.map_err(|_| Error::Deadline(format!("the form did not arrive within {WITHIN:?}")))?;
        let body =
            body.map_err(|_| Error::invalid("the form", format!("has more than {BYTES} bytes, or was cut off")))?;
        let text = std::str::from_utf8(&body).map_err(|_| Error::invalid("the form", "is not text"))?;
        Self::parse(text)
    }

    /// Returns the first value of this name; empty if the parameter is missing.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim()).unwrap_or_default()
    }

    /// Returns the first value of this name as it was sent, such as a text of several lines.
    pub(super) fn untrimmed(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.trim())
    }

    /// Returns the first value of this name as a number; `None` if the parameter is missing or empty.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Error> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| Error::invalid(name, "is not a number, or is too large")),
        }
    }
}

/// Encodes names and values as a query string. Leaves out empty values.
pub(super) fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs.into_iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

/// Returns the query string of the next page of a list. Empty on the last page, which has no token.
pub(super) fn next_page<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>, token: &'a str) -> String {
    if token.is_empty() { String::new() } else { query(pairs.into_iter().chain([("page", token)])) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_comes_back_as_it_was_made() {
        let text = query([("name", "a&b=c d/é"), ("none", ""), ("id", "1"), ("id", "2")]);
        let params = Params::parse(&text).unwrap();
        assert_eq!((params.get("name"), params.get("none")), ("a&b=c d/é", ""));
        assert_eq!(params.all("id").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(params.number::<u8>("id").unwrap(), Some(1));
        assert!(params.number::<u8>("name").is_err());
    }

    #[test]
    fn the_number_of_query_parameters_is_bounded() {
        assert!(Params::parse(&"a=1&".repeat(MOST)).is_ok());
        assert!(Params::parse(&"a=1&".repeat(MOST + 1)).is_err());
    }
}
