//! Generates the tables of the options of a job: their meaning, and their names in each interface.

use howdah_core::job::options::{JobOption, OPTIONS, OptionGroup, OptionKind};

use howdah_core::numbers::grouped_in;

use super::{code, markdown};
use crate::commands::job_flags::flag_name;

/// Returns a heading and a table for each group of job options.
pub(super) fn table(_: &[&str]) -> String {
    let mut groups: Vec<OptionGroup> = Vec::new();
    for option in OPTIONS {
        if !groups.contains(&option.group) {
            groups.push(option.group);
        }
    }
    let group = |group: OptionGroup| {
        let rows = OPTIONS.iter().filter(|option| option.group == group).map(|option| {
            let about = if option.notes.is_empty() {
                option.about.to_owned()
            } else {
                format!("{}; {}", option.about, option.notes)
            };
            [code(option.name), option.default.to_owned(), bounds(option), about]
        });
        format!("### {}\n\n{}", group.heading(), markdown(["option", "default", "bounds", "meaning"], rows))
    };
    groups.into_iter().map(group).collect::<Vec<_>>().join("\n")
}

fn bounds(option: &JobOption) -> String {
    match option.kind {
        OptionKind::Integer(i64::MIN, i64::MAX) => "any whole number".into(),
        OptionKind::Integer(0, i64::MAX) => "an id".into(),
        OptionKind::Word(words) => words.iter().map(code).collect::<Vec<_>>().join(", "),
        // Omits the example after `, such as`.
        OptionKind::Time => grouped_in(option.kind.to_string().split(", such as").next().unwrap_or_default()),
        kind => grouped_in(&kind.to_string()),
    }
}

/// Returns a table of the names of each option in each interface.
pub(super) fn names(_: &[&str]) -> String {
    let rows = OPTIONS.iter().map(|option| {
        let (flag, header, sql) = if option.is_of_request() {
            (String::new(), String::new(), "in `enqueue_batch`".to_owned())
        } else {
            (format!("--{} {}", flag_name(option.name), option.kind.value_name()), header(option), argument(option))
        };
        [code(option.name), code(flag), code(header), if option.is_of_request() { sql } else { code(sql) }]
    });
    markdown(["gRPC field, JSON, HTTP query", "command line", "HTTP header", "SQL argument"], rows)
}

/// Returns the HTTP header of an option: `Howdah-Key-Hold` for `key_hold`. The trace context has the standard headers.
fn header(option: &JobOption) -> String {
    match option.name {
        "headers" => "Howdah-Header-NAME".into(),
        "traceparent" | "tracestate" => option.name.into(),
        name => {
            let capital = |word: &str| format!("{}{}", word[..1].to_uppercase(), &word[1..]);
            let part = |part: &str| part.split('_').map(capital).collect::<Vec<_>>().join("-");
            format!("Howdah-{}", name.split('.').map(part).collect::<Vec<_>>().join("."))
        }
    }
}

/// Returns the SQL argument of an option. A nested option is a key of the outer argument's object.
fn argument(option: &JobOption) -> String {
    option.name.split('.').next().unwrap_or_default().to_owned()
}
