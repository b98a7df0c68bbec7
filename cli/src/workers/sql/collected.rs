//! Collects the result of a job, in bounded memory.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    options::{Format, Header, Text},
    wire::{Column, Message, Stop},
};

/// Bytes that each statement and each column counts towards the size limit, in addition to its text.
const EACH: usize = 32;

/// Results of the statements of a job.
#[derive(Debug)]
pub(super) struct Collected {
    format: Format,
    sets: Vec<Set>,
    bytes: usize,
    most: usize,
}

/// Result of one statement.
#[derive(Debug, Default)]
struct Set {
    /// Columns; `None` if the statement returns no rows.
    columns: Option<Vec<Column>>,
    /// Rows in the format of the result, one after the other.
    rows: Vec<u8>,
    /// Command tag; `None` before the end of the statement.
    command: Option<String>,
}

/// Names of types, by id and modifier.
pub(super) type TypeNames = HashMap<(u32, i32), String>;

impl Collected {
    /// Creates a collector for at most `most` bytes.
    pub(super) fn new(format: Format, most: usize) -> Self {
        Self { format, sets: Vec::new(), bytes: 0, most }
    }

    /// Processes a message of the server.
    pub(super) fn take(&mut self, message: Message) -> Result<(), Stop> {
        if self.sets.last().is_none_or(|set| set.command.is_some()) {
            self.bytes += EACH;
            self.sets.push(Set::default());
        }
        let Some(set) = self.sets.last_mut() else { return Ok(()) };
        match message {
            Message::Columns(columns) => {
                self.bytes += columns.iter().map(|column| column.name.len() + EACH).sum::<usize>();
                set.columns = Some(columns);
            }
            Message::Row(row) => {
                let before = set.rows.len();
                let columns = set.columns.as_deref().unwrap_or_default();
                match &self.format {
                    Format::Text(text) => text_row(&mut set.rows, text, columns, &row),
                    Format::Json => json_row(&mut set.rows, columns, &row),
                }
                self.bytes += set.rows.len() - before;
            }
            Message::Command(tag) => {
                self.bytes += tag.len();
                set.command = Some(tag);
            }
            Message::Empty => {
                self.sets.pop();
            }
        }
        if self.bytes > self.most { Err(Stop::TooLarge) } else { Ok(()) }
    }

    /// Returns the types whose names the result needs.
    pub(super) fn types(&self) -> Vec<(u32, i32)> {
        if matches!(&self.format, Format::Text(text) if text.header != Header::Types) {
            return Vec::new();
        }
        let columns = self.sets.iter().filter_map(|set| set.columns.as_ref()).flatten();
        let mut types: Vec<(u32, i32)> = columns.map(|column| column.type_id).collect();
        types.sort_unstable();
        types.dedup();
        types
    }

    /// Returns the collected results in the format that the job has chosen.
    pub(super) fn finish(self, types: &TypeNames) -> Bytes {
        match &self.format {
            Format::Text(text) => text_result(&self.sets, text, types).into(),
            Format::Json => json_result(&self.sets, types).into(),
        }
    }
}

fn type_name(types: &TypeNames, column: &Column) -> String {
    types.get(&column.type_id).cloned().unwrap_or_else(|| column.type_id.0.to_string())
}

/// Formats the result as lines, without a line break at the end.
fn text_result(sets: &[Set], format: &Text, types: &TypeNames) -> Vec<u8> {
    let mut result = Vec::new();
    for set in sets {
        match &set.columns {
            None => result.extend(set.command.iter().flat_map(|command| [command.as_bytes(), b"\n"]).flatten()),
            // An empty result stays empty, because the history mode without_empty drops such jobs.
            Some(_) if set.rows.is_empty() => {}
            Some(columns) => {
                for (n, column) in columns.iter().enumerate().filter(|_| format.header != Header::None) {
                    if n > 0 {
                        result.extend(format.delimiter.as_bytes());
                    }
                    let name = match format.header {
                        Header::Types => format!("{}::{}", column.name, type_name(types, column)),
                        _ => column.name.clone(),
                    };
                    put(&mut result, name.as_bytes(), format, true);
                }
                if format.header != Header::None {
                    result.push(b'\n');
                }
                result.extend(&set.rows);
            }
        }
    }
    result.pop_if(|last| *last == b'\n');
    result
}

fn text_row(to: &mut Vec<u8>, format: &Text, columns: &[Column], row: &[Option<Bytes>]) {
    for (n, value) in row.iter().enumerate() {
        if n > 0 {
            to.extend(format.delimiter.as_bytes());
        }
        match value {
            None => to.extend(format.null.as_bytes()),
            Some(value) => {
                let plain = columns.get(n).is_some_and(|column| is_plain(column.type_id.0));
                put(to, value, format, format.quote_all || !plain);
            }
        }
    }
    to.push(b'\n');
}

/// Writes a value with its quotes.
fn put(to: &mut Vec<u8>, value: &[u8], format: &Text, quoted: bool) {
    let quote = format.quote.filter(|_| quoted).map(String::from).unwrap_or_default();
    to.extend(quote.as_bytes());
    match format.escape {
        Some(escape) if quoted => {
            for character in String::from_utf8_lossy(value).chars() {
                if character == escape || Some(character) == format.quote {
                    to.extend(escape.to_string().as_bytes());
                }
                to.extend(character.to_string().as_bytes());
            }
        }
        _ => to.extend(value),
    }
    to.extend(quote.as_bytes());
}

/// Returns whether values of the type are quoted only with `sql-quote-all`: bool, numbers, object ids.
fn is_plain(type_id: u32) -> bool {
    matches!(type_id, 16 | 20 | 21 | 23 | 26 | 27 | 28 | 29 | 700 | 701 | 1560 | 1700)
}

fn json_row(to: &mut Vec<u8>, columns: &[Column], row: &[Option<Bytes>]) {
    let separator: &[u8] = if to.is_empty() { b"[" } else { b",[" };
    to.extend(separator);
    for (n, value) in row.iter().enumerate() {
        if n > 0 {
            to.push(b',');
        }
        let type_id = columns.get(n).map_or(0, |column| column.type_id.0);
        match value {
            None => to.extend(b"null"),
            Some(value) => to.extend(json_value(type_id, &String::from_utf8_lossy(value)).as_bytes()),
        }
    }
    to.push(b']');
}

/// Converts a value like Postgres's `to_json`: booleans, numbers and JSON are kept, other values become strings.
fn json_value(type_id: u32, value: &str) -> String {
    match type_id {
        16 => if value == "t" { "true" } else { "false" }.to_owned(),
        // A float may be NaN or Infinity, which do not exist in JSON.
        20 | 21 | 23 | 26 | 700 | 701 | 1700 if is_number(value) => value.to_owned(),
        114 | 3802 => value.to_owned(),
        _ => serde_json::Value::from(value).to_string(),
    }
}

fn is_number(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte))
}

fn json_result(sets: &[Set], types: &TypeNames) -> Vec<u8> {
    let mut result = b"[".to_vec();
    for (n, set) in sets.iter().enumerate() {
        result.extend(if n > 0 { b",{".as_slice() } else { b"{" });
        if let Some(columns) = &set.columns {
            let columns: Vec<_> = columns
                .iter()
                .map(|column| serde_json::json!({"name": column.name, "type": type_name(types, column)}))
                .collect();
            result.extend(format!("\"columns\":{},\"rows\":[", serde_json::Value::from(columns)).as_bytes());
            result.extend(&set.rows);
            result.extend(b"],");
        }
        let command = set.command.as_deref().unwrap_or_default();
        result.extend(format!("\"command\":{}}}", serde_json::Value::from(command)).as_bytes());
    }
    result.push(b']');
    result
}
