//! A job's options for its own result, in its headers.

use std::collections::HashMap;

/// The prefix of these headers. Other headers are ignored; an unknown one with the prefix is an error.
const PREFIX: &str = "sql-";

/// Where a job runs, and the format of its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// `sql-database`: a named database of the worker; `None`: its default one.
    pub(super) database: Option<String>,
    /// `sql-retry`: whether a failed statement may be tried again.
    pub(super) retry: bool,
    /// `sql-format`.
    pub(super) format: Format,
}

/// The format of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Lines.
    Text(Text),
    /// An array with the result of each statement.
    Json,
}

/// Lines of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    /// `sql-header`.
    pub(super) header: Header,
    /// `sql-delimiter`: between values.
    pub(super) delimiter: String,
    /// `sql-quote`: around values.
    pub(super) quote: Option<char>,
    /// `sql-quote-all`: whether numbers are quoted too.
    pub(super) quote_all: bool,
    /// `sql-escape`: before a quote, and before itself.
    pub(super) escape: Option<char>,
    /// `sql-null`.
    pub(super) null: String,
}

/// The line above the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// There is none.
    None,
    /// `name`
    Names,
    /// `name::type`
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
    /// Reads a job's headers; an error names the header.
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
                // A tab is hard to type.
                "sql-delimiter" => text.delimiter = value.replace("\\t", "\t"),
                "sql-quote" => text.quote = character(name, value)?,
                "sql-quote-all" => text.quote_all = one_of(name, value, &[("true", true), ("false", false)])?,
                "sql-escape" => text.escape = character(name, value)?,
                "sql-null" => text.null.clone_from(value),
                _ => {
                    return Err(format!(
                        "header {name} is unknown; docs/reference/workers.md lists those of the SQL worker"
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

/// One character, or none.
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
