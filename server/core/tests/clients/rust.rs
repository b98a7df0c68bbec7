//! The Rust client: methods of `NewJob`.

use super::{Bound, Field, Types, bounds, lines, pascal, word};

/// `tags` and `header` add to the earlier ones.
const BY_HAND: [&str; 2] = ["headers", "tags"];

const TYPES: Types = &[
    ("string", "impl Into<String>", "$.into()"),
    ("int32", "i32", "$"),
    ("uint32", "u32", "$"),
    ("int64", "i64", "$"),
    ("enum", "proto::ENUM", "$ as i32"),
    ("Duration", "Duration", "time::to_proto($)"),
    ("Timestamp", "SystemTime", "$.into()"),
    ("RetryPolicy", "RetryPolicy", "$.into_proto()"),
    ("[string]", "impl IntoIterator<Item = impl Into<String>>", "$.into_iter().map(Into::into).collect()"),
    ("[int64]", "impl IntoIterator<Item = i64>", "$.into_iter().collect()"),
];

const MODULE: &str = r#"
//! Options of a job.

use std::time::{Duration, SystemTime};

use howdah_proto::v1 as proto;

#[cfg(feature = "testing")]
use crate::testing::rules::{Rule, Value, rule};
use crate::{NewJob, RetryPolicy, setters::setters, time};

impl NewJob {
    setters! {
METHODS    }
}

/// Returns the rules of the options that are checked without a broker.
#[cfg(feature = "testing")]
#[allow(clippy::unreadable_literal)]
#[rustfmt::skip]
pub(crate) fn rules(job: &proto::NewJob) -> Vec<Rule<'_>> {
    vec![
RULES    ]
}
"#;

pub(super) fn options() -> String {
    let methods = super::options(&BY_HAND).iter().map(method).collect::<Vec<_>>().join("\n");
    let rules = bounds().iter().map(check).collect::<String>();
    MODULE.replace("METHODS", &methods).replace("RULES", &rules)
}

fn method(field: &Field) -> String {
    let name = field.name();
    let comment = field.comment(|choices, value| format!("`{choices}::{}`", pascal(&word(choices, value))));
    let (kind, value) = field.typed(TYPES, name);
    let (target, value) = match field.oneof() {
        Some(oneof) => {
            let variant = format!("proto::new_job::{}::{}", pascal(&oneof), field.pascal());
            (oneof, format!("Some({variant}({value}))"))
        }
        None if is_option(field) => (name.to_owned(), format!("Some({value})")),
        None => (name.to_owned(), value),
    };
    let comment = comment.replace("(https", "(<https").replace("/)", "/>)");
    let comment = lines("        /// ", "        /// ", &comment);
    format!("{comment}        {name}({name}: {kind}) => 0.{target} = {value};\n")
}

/// Whether the field is an `Option` in the message.
fn is_option(field: &Field) -> bool {
    field.is_optional() || matches!(field.kind().as_str(), "Duration" | "RetryPolicy")
}

fn check(Bound { name, kind, least, most, needs }: &Bound) -> String {
    let field = super::field("NewJob", name);
    let value = match field.oneof() {
        Some(oneof) => {
            let variant = format!("proto::new_job::{}::{}", pascal(&oneof), field.pascal());
            format!("if let Some({variant}(it)) = job.{oneof} {{ Some(it) }} else {{ None }}")
        }
        None => format!("job.{name}"),
    };
    let is_set = match field.kind().as_str() {
        _ if field.oneof().is_some() => "true".into(),
        _ if field.0.is_list() || matches!(field.kind().as_str(), "string" | "map") => format!("!{value}.is_empty()"),
        _ if is_option(&field) => format!("{value}.is_some()"),
        _ => format!("{value} != 0"),
    };
    let value = match *kind {
        "any" => "Value::Any".into(),
        "number" => format!("Value::Number({value}.into())"),
        "ms" => format!("Value::Ms({value})"),
        "list" => format!("Value::List({value}.len())"),
        kind => format!("Value::{}(&{value})", pascal(kind)),
    };
    format!("        rule({name:?}, {is_set}, {value}, {least}..={most}, &{needs:?}),\n")
}
