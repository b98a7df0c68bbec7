//! The Go client: functions that return an `Option`, and the bounds for the package `howdahtest`.

use super::{Field, Types, lines, pascal, rows};

/// `Key` takes the policy too, `Header` takes one header, and `Backoff` and `RetryDelays` make the usual retry policies.
const BY_HAND: [&str; 4] = ["headers", "key", "key_policy", "retry_policy"];

const TYPES: Types = &[
    ("enum", "howdahv1.ENUM", "$"),
    ("Duration", "time.Duration", "durationpb.New($)"),
    ("Timestamp", "time.Time", "timestamppb.New($)"),
    ("[string]", "...string", "$"),
    ("[int64]", "...int64", "$"),
];

const OPTIONS: &str = r#"
package howdah

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"howdah.dev/go/howdahv1"
)
"#;

const BOUNDS: &str = "
package howdahtest

// bounds of the options of a job that are checked without a broker.
var bounds = []bound{
ROWS}
";

pub(super) fn options() -> String {
    OPTIONS.to_owned() + &super::options(&BY_HAND).iter().map(function).collect::<String>()
}

fn function(field: &Field) -> String {
    let (name, camel) = (go(&field.pascal()), go(field.camel()));
    let (kind, value) = field.typed(TYPES, &camel);
    let target = field.pascal();
    let set = match field.oneof() {
        Some(oneof) => format!("job.{} = &howdahv1.NewJob_{target}{{{target}: {value}}}", pascal(&oneof)),
        None if field.0.is_list() => format!("job.{target} = append(job.{target}, {value}...)"),
        None if field.is_optional() => format!("job.{target} = &{value}"),
        None => format!("job.{target} = {value}"),
    };
    let comment = field.comment(|choices, value| format!("[howdahv1.{choices}_{value}]"));
    let comment = lines("// ", "// ", &format!("{name} sets {}. {comment}", field.name()).replace('`', ""));
    format!(
        "\n{comment}func {name}({camel} {kind}) Option {{\n\treturn func(job *howdahv1.NewJob) {{\n\t\t{set}\n\t}}\n}}\n"
    )
}

/// Spells a name as Go does.
fn go(name: &str) -> String {
    name.strip_suffix("Id").map_or_else(|| name.to_owned(), |start| format!("{start}ID"))
}

pub(super) fn bounds() -> String {
    BOUNDS.replace("ROWS", &rows("\t{NAME, KIND, LEAST, MOST, []string{NEEDS}},\n"))
}
