//! Options of a job for its database and its result, from its headers.

use std::collections::HashMap;

/// Prefix of the headers with options for the SQL worker. Other headers are ignored. An unknown header with the prefix is an
/// error.
const PREFIX: &str = "sql-";

/// Database of a job, and format of its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// `sql-database`: a named database of the worker. `None`: its default database.
    pub(super) database: Option<String>,
    /// `sql-retry`: whether a failed job may be retried.
    pub(super) retry: bool,
    /// `sql-format`: format of the result.
    pub(super) format: Format,
}

/// Format of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Result as text: one line per row, with separated values.
    Text(Text),
    /// JSON array with the result of each statement.
    Json,
}

/// Options of the text format, which has one line per row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    /// `sql-header`: heading line.
    pub(super) header: Header,
    /// `sql-delimiter`: text between values.
    pub(super) delimiter: String,
    /// `sql-quote`: character around values.
    pub(super) quote: Option<char>,
    /// `sql-quote-all`: whether to quote numbers too.
    pub(super) quote_all: bool,
    /// `sql-escape`: character before a quote and before itself.
    pub(super) escape: Option<char>,
    /// `sql-null`: text for null.
    pub(super) null: String,
}

/// Heading line above the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// No heading.
    None,
    /// Names of the columns.
    Names,
    /// Names and types of the columns, as `name::type`.
    Types,
}

impl Default for Text {
    fn default() -> Self {
        Self {
            header: Header::Names,
            delimiter: "\t".into(),
            quote: None,
            quote_all: false,
            escape: None,
            null: "\\N".into(),
        }
    }
}

impl Options {
    /// Parses the headers of a job. Errors name the header.
    pub(super) fn read(headers: &HashMap<String, String>) -> Result<Self, String> {
        let mut options = Self { database: None, retry: true, format: Format::Json };
        let (mut text, mut json) = (Text::default(), false);
        for (name, value) in headers.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            match name.as_str() {
                "sql-database" => options.database = Some(value.clone()),
                "sql-retry" => options.retry = one_of(name, value, &[("true", true), ("false", false)])?,
                "sql-format" => json = one_of(name, value, &[("text", false), ("json", true)])?,
                "sql-header" => {
                    let words = [("names", Header::Names), ("types", Header::Types), ("none", Header::None)];
                    text.header = one_of(name, value, &words)?;
                }
                // `\t` in the header stands for a tab, which is hard to type.
                "sql-delimiter" => text.delimiter = value.replace("\\t", "\t"),
                "sql-quote" => text.quote = character(name, value)?,
                "sql-quote-all" => text.quote_all = one_of(name, value, &[("true", true), ("false", false)])?,
                "sql-escape" => text.escape = character(name, value)?,
                "sql-null" => text.null.clone_from(value),
                _ => {
                    return Err(format!(
                        "header {name} is unknown; docs/reference/workers.md lists the headers of the SQL worker"
                    ));
                }
            }
        }
        if !json {
            options.format = Format::Text(text);
        }
        Ok(options)
    }
}

fn one_of<T: Copy>(name: &str, value: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
    found.ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("header {name}: unknown value {value:?}; use one of {}", words.join(", "))
    })
}

/// Parses one character, or an empty value.
fn character(name: &str, value: &str) -> Result<Option<char>, String> {
    let mut characters = value.chars();
    match (characters.next(), characters.next()) {
        (one, None) => Ok(one),
        _ => Err(format!("header {name} is {value:?}; it must be one character, or empty")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<Options, String> {
        Options::read(&headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn without_headers_a_result_looks_as_that_of_pg_task() {
        let options = read(&[("other", "x")]).unwrap();
        assert_eq!(options.format, Format::Text(Text::default()));
        assert!(options.retry && options.database.is_none());
    }

    #[test]
    fn every_header_counts() {
        let options = read(&[
            ("sql-header", "types"),
            ("sql-delimiter", "\\t|"),
            ("sql-quote", "\""),
            ("sql-quote-all", "true"),
            ("sql-escape", "\\"),
            ("sql-null", ""),
            ("sql-retry", "false"),
            ("sql-database", "b"),
        ]);
        let options = options.unwrap();
        let text = Text {
            header: Header::Types,
            delimiter: "\t|".into(),
            quote: Some('"'),
            quote_all: true,
            escape: Some('\\'),
            null: String::new(),
        };
        assert_eq!(options, Options { database: Some("b".into()), retry: false, format: Format::Text(text) });
        assert_eq!(read(&[("sql-format", "json"), ("sql-null", "x")]).unwrap().format, Format::Json);
    }

    #[test]
    fn a_header_that_makes_no_sense_is_named() {
        for (name, value) in [("sql-format", "xml"), ("sql-quote", "ab"), ("sql-nul", ""), ("sql-header", "yes")] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
