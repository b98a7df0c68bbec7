//! Generates schema text for job options from their definitions (`job::options::OPTIONS`). So a new option becomes an
//! argument of `howdah.enqueue`, with its checks, without a change of the SQL files.
//!
//! Placeholders in double braces in the files of `server/engine/schema`:
//!
//! | | |
//! |---|---|
//! | `arguments` | arguments of a function, with types; their default is null, except for `priority` |
//! | `argument_names` | names of the arguments |
//! | `given` | arguments that are null if the caller omits them |
//! | `passed` | the arguments of `given`, as `name => name` |
//! | `pairs` | names and values of all arguments, for `jsonb_build_object` |
//! | `names` | names of the options of a job in an object, as texts |
//! | `texts` | names of the options whose value is a JSON string |
//! | `checked` | checked values by column name, for `jsonb_build_object`; from object `j`, settings `s`, error prefix `p` |
//! | `needs` | rows of an option, the options that it needs, and the problem of a job without one of these |
//! | `plain`, `plain_columns` | names of the plain options; columns of the view `howdah.job` for those that the text does not name |
//! | `template_arguments`, `template_argument_names`, `template_passed`, `template_pairs` | as above, without the times that a template of a schedule may not have |
//! | `template`, `retry_template` | fields of `howdah.v1.NewJob` and of its retry policy in JSON, for `jsonb_build_object`; from object `j` |
//! | `schedule_arguments`, `schedule_argument_names`, `schedule_passed` | arguments for the plan and the policies of a schedule |
//! | `tag_limits` | maximum number of tags of a job, and maximum bytes of a tag |
//! | `retry_texts`, `retry_checked` | `texts` and `checked` of a retry policy; from object `policy`, error prefix `field` |

use std::{borrow::Cow, fmt::Write as _};

use howdah_core::job::{
    Limits, PLAIN_OPTIONS,
    options::{JobOption, OPTIONS, OptionKind},
};
use howdah_proto::json;

/// Prefix of the names of retry policy options. SQL functions take these options as one JSON object.
const RETRY: &str = "retry_policy.";

/// Options that a template of a schedule may not have, because they are times.
const NOT_OF_TEMPLATE: [&str; 2] = ["run_at", "expire_at"];

/// Names and SQL types of the plan and the policies of a schedule.
const SCHEDULE: [(&str, &str); 11] = [
    ("every", "interval"),
    ("cron", "text"),
    ("time_zone", "text"),
    ("drift", "text"),
    ("overlap", "text"),
    ("missed", "text"),
    ("missed_limit", "integer"),
    ("start_time", "timestamptz"),
    ("end_time", "timestamptz"),
    ("jitter", "interval"),
    ("paused", "boolean"),
];

/// Replaces the placeholders in a schema text.
pub(super) fn expand(text: &str) -> Cow<'_, str> {
    if !text.contains("{{") {
        return text.into();
    }
    let unset = || names().filter(|name| *name != "priority");
    let checks = retry().filter_map(|(name, kind)| checked(name, kind, "field || '.'", "policy"));
    let parts = [
        ("arguments", arguments(|_| true)),
        ("template_arguments", arguments(of_template)),
        ("template_argument_names", joined(", ", template_names().map(quoted))),
        ("template_passed", joined(", ", template_names().map(|name| format!("{name} => {name}")))),
        ("template_pairs", joined(", ", template_names().map(|name| format!("'{name}', {name}")))),
        ("template", joined(",\n        ", top().filter_map(template))),
        (
            "retry_template",
            joined(
                ",\n            ",
                retry().map(|(name, kind)| wire("RetryPolicy", name, kind, "j -> 'retry_policy'")),
            ),
        ),
        (
            "schedule_arguments",
            joined(", ", SCHEDULE.map(|(name, kind)| format!("{name} {kind} DEFAULT NULL")).into_iter()),
        ),
        ("schedule_argument_names", joined(", ", SCHEDULE.map(|(name, _)| quoted(name)).into_iter())),
        ("schedule_passed", joined(", ", SCHEDULE.map(|(name, _)| format!("{name} => {name}")).into_iter())),
        ("argument_names", joined(", ", names().map(quoted))),
        ("given", joined(", ", unset())),
        ("passed", joined(", ", unset().map(|name| format!("{name} => {name}")))),
        ("pairs", joined(", ", names().map(|name| format!("'{name}', {name}")))),
        ("names", joined(", ", top().map(|option| quoted(option.name)).chain([quoted("retry_policy")]))),
        ("texts", joined(", ", top().filter(|option| is_text(option.kind)).map(|option| quoted(option.name)))),
        ("checked", joined(",\n        ", top().filter_map(|option| checked(option.name, option.kind, "p", "j")))),
        ("needs", joined(", ", OPTIONS.iter().filter(|option| !option.needs.is_empty()).map(needs))),
        ("plain", PLAIN_OPTIONS.join(",")),
        (
            "plain_columns",
            PLAIN_OPTIONS.iter().filter(|name| !text.contains(&format!(" AS {name}"))).map(column).collect(),
        ),
        ("tag_limits", format!("{}, {}", Limits::TAGS, Limits::TAG_BYTES)),
        ("retry_texts", joined(", ", retry().filter(|(_, kind)| is_text(*kind)).map(|(name, _)| quoted(name)))),
        ("retry_checked", joined(",\n        ", checks)),
    ];
    let mut text = text.to_owned();
    for (name, part) in parts {
        text = text.replace(&format!("{{{{{name}}}}}"), &part);
    }
    text.into()
}

/// Returns the options of a job that are not nested in another option.
fn top() -> impl Iterator<Item = &'static JobOption> {
    OPTIONS.iter().filter(|option| !option.name.contains('.'))
}

/// Returns options of a retry policy.
fn retry() -> impl Iterator<Item = (&'static str, OptionKind)> {
    OPTIONS.iter().filter_map(|option| Some((option.name.strip_prefix(RETRY)?, option.kind)))
}

/// Returns the arguments of a function that stores one job, in the order of the option definitions.
fn argument_kinds() -> impl Iterator<Item = (&'static str, Option<OptionKind>)> {
    let mut before = "";
    OPTIONS.iter().filter_map(move |option| {
        let (name, kind) = match option.name.split_once('.') {
            Some((outer, _)) => (outer, None),
            None => (option.name, Some(option.kind)),
        };
        let again = before == name;
        before = name;
        (!again && !option.is_of_request()).then_some((name, kind))
    })
}

fn names() -> impl Iterator<Item = &'static str> {
    argument_kinds().map(|(name, _)| name)
}

fn of_template(name: &str) -> bool {
    !NOT_OF_TEMPLATE.contains(&name)
}

fn template_names() -> impl Iterator<Item = &'static str> {
    names().filter(|name| of_template(name))
}

/// Returns the name and the value of a field of a template; `None` if a template has no such field.
fn template(option: &JobOption) -> Option<String> {
    let has = of_template(option.name) && !option.is_of_request();
    has.then(|| wire("NewJob", option.name, option.kind, "j"))
}

/// Returns SQL for the name and the value of a field of the protocol in JSON, from the options in a JSON object.
fn wire(message: &str, name: &str, kind: OptionKind, object: &str) -> String {
    match kind {
        OptionKind::Duration(..) => format!("'{name}', howdah.wire_duration({object} ->> '{name}')"),
        OptionKind::Durations(..) => format!(
            "'{name}', (SELECT jsonb_agg(howdah.wire_duration(e.value) ORDER BY e.n) \
             FROM jsonb_array_elements_text({object} -> '{name}') WITH ORDINALITY AS e(value, n))"
        ),
        OptionKind::Word(_) => {
            let unset = json::enum_values(message, name).into_iter().next().unwrap_or_default();
            let prefix = unset.trim_end_matches("UNSPECIFIED");
            format!("'{name}', '{prefix}' || upper({object} ->> '{name}')")
        }
        _ => format!("'{name}', {object} -> '{name}'"),
    }
}

/// Returns the arguments whose names fit, with types and defaults.
fn arguments(fits: impl Fn(&str) -> bool) -> String {
    let argument = |(name, kind): (&str, Option<OptionKind>)| match name {
        // The argument that callers set most often. Its default is 0, and not null, so that an explicit 0 also counts
        // as unset.
        "priority" => "priority integer DEFAULT 0".to_owned(),
        _ => format!("{name} {} DEFAULT NULL", sql_type(kind)),
    };
    joined(", ", argument_kinds().filter(|(name, _)| fits(name)).map(argument))
}

/// Returns the SQL type of an argument. Kind `None` is the retry policy, a JSON object.
fn sql_type(kind: Option<OptionKind>) -> &'static str {
    match kind {
        None | Some(OptionKind::Headers) => "jsonb",
        Some(OptionKind::Integer(low, high)) => match (i32::try_from(low), i32::try_from(high)) {
            (Ok(_), Ok(_)) => "integer",
            _ => "bigint",
        },
        Some(OptionKind::Hundredths(..)) => "double precision",
        Some(OptionKind::Text(_) | OptionKind::Key | OptionKind::Word(_) | OptionKind::TaskType) => "text",
        Some(OptionKind::Duration(..)) => "interval",
        Some(OptionKind::Durations(..)) => "interval[]",
        Some(OptionKind::Time) => "timestamptz",
        Some(OptionKind::TaskTypes(_) | OptionKind::LocalNames | OptionKind::Tags) => "text[]",
        Some(OptionKind::Jobs) => "bigint[]",
    }
}

/// Returns SQL for an option, the options that it needs, and the problem of a job without one of these.
fn needs(option: &JobOption) -> String {
    format!("('{}', '{{{}}}'::text[], '{}')", option.name, option.needs.join(","), option.lack())
}

/// Returns SQL for a further column of the view `howdah.job`. Roles with SQL access may have written options of a wrong type.
fn column(name: &&str) -> String {
    let value = match JobOption::find(name).map(|option| option.kind) {
        Some(OptionKind::Integer(low, high)) => format!(
            "CASE WHEN jsonb_typeof(j.options -> '{name}') = 'number'\n            \
             THEN least(greatest((j.options -> '{name}')::numeric, {low}), {high})::{} END",
            sql_type(Some(OptionKind::Integer(low, high)))
        ),
        _ => format!("j.options ->> '{name}'"),
    };
    format!(",\n       {value} AS {name}")
}

/// Whether the value of an option must be a JSON string. A number in place of a time or a name is a mistake of the
/// caller.
fn is_text(kind: OptionKind) -> bool {
    use OptionKind::{Duration, Key, TaskType, Text, Time, Word};
    matches!(kind, Text(_) | Key | Duration(..) | Time | Word(_) | TaskType)
}

/// Returns SQL for the column name and the checked value of an option. `None` for options that only a request with
/// several jobs has.
fn checked(name: &str, kind: OptionKind, prefix: &str, object: &str) -> Option<String> {
    let (field, text, value) =
        (format!("{prefix} || '{name}'"), format!("{object} ->> '{name}'"), format!("{object} -> '{name}'"));
    let ms = |low: &str, high: &str| match high {
        "max_delay" | "max_timeout" => format!("'{low}', s.{high}"),
        _ => format!("'{low}', '{high}'"),
    };
    Some(match kind {
        OptionKind::Integer(low, high) => format!("'{name}', howdah.number_of({field}, {text}, {low}, {high})"),
        OptionKind::Hundredths(low, high) => {
            let bound = |n: i64| n as f64 / 100.0;
            format!("'{name}', howdah.fraction_of({field}, {value}, {}, {})", bound(low), bound(high))
        }
        OptionKind::Text(bytes) => format!("'{name}', howdah.text_of({field}, {text}, {bytes})"),
        OptionKind::Key => format!("'{name}', howdah.text_of({field}, {text}, s.key_bytes)"),
        OptionKind::Duration(low, high) => format!("'{name}_ms', howdah.ms_of({field}, {text}, {})", ms(low, high)),
        OptionKind::Durations(most, low, high) => {
            format!("'{name}_ms', howdah.all_ms_of({field}, {value}, {most}, {})", ms(low, high))
        }
        OptionKind::Time => format!("'{name}_us', howdah.us_of({field}, {text}, s.max_delay)"),
        OptionKind::Word(words) => {
            format!("'{name}', howdah.word_of({field}, {text}, {})", joined(", ", words.iter().map(quoted)))
        }
        OptionKind::TaskType => format!("'{name}', howdah.type_id_of({field}, {text})"),
        OptionKind::TaskTypes(most) => format!("'{name}', howdah.type_ids_of({field}, {value}, {most})"),
        OptionKind::Jobs => format!("'{name}', howdah.job_ids_of({field}, {value}, s.batch)"),
        OptionKind::Tags => {
            format!("'{name}', howdah.tags_of({field}, {value}, {}, {})", Limits::TAGS, Limits::TAG_BYTES)
        }
        OptionKind::Headers => format!("'{name}', howdah.headers_of({field}, {value}, s)"),
        OptionKind::LocalNames => return None,
    })
}

fn quoted(text: impl AsRef<str>) -> String {
    format!("'{}'", text.as_ref())
}

fn joined(between: &str, parts: impl Iterator<Item = impl AsRef<str>>) -> String {
    let mut text = String::new();
    for part in parts {
        let between = if text.is_empty() { "" } else { between };
        let _ = write!(text, "{between}{}", part.as_ref());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_an_argument_and_is_checked() {
        let made = expand("f({{arguments}}) given {{given}} checked {{checked}}");
        for part in [
            "headers jsonb DEFAULT NULL, priority integer DEFAULT 0",
            "key_version bigint DEFAULT NULL",
            "after bigint[] DEFAULT NULL",
            "given headers, run_at,",
            "'key', howdah.text_of(p || 'key', j ->> 'key', s.key_bytes)",
            "'delay_ms', howdah.ms_of(p || 'delay', j ->> 'delay', '0 s', s.max_delay)",
        ] {
            assert!(made.contains(part), "{part}\n{made}");
        }
        assert!(!made.contains("local_name text"), "only a request with several jobs has local names");
    }

    #[test]
    fn a_retry_policy_is_one_argument() {
        let made = expand("{{arguments}}");
        assert_eq!(made.matches("retry_policy jsonb").count(), 1, "{made}");
        assert!(
            expand("{{retry_checked}}")
                .contains("'max_delay_ms', howdah.ms_of(field || '.' || 'max_delay', policy ->> 'max_delay'")
        );
    }

    #[test]
    fn a_template_has_the_fields_of_the_protocol() {
        let made = expand("f({{template_arguments}}) {{template}} {{retry_template}}");
        for part in [
            "'delay', howdah.wire_duration(j ->> 'delay')",
            "'key_policy', 'KEY_POLICY_' || upper(j ->> 'key_policy')",
            "'kind', 'RETRY_POLICY_KIND_' || upper(j -> 'retry_policy' ->> 'kind')",
            "'tags', j -> 'tags'",
        ] {
            assert!(made.contains(part), "{part}\n{made}");
        }
        assert!(!made.contains("run_at") && !made.contains("expire_at") && made.contains("expire_after interval"));
    }

    #[test]
    fn the_view_gets_a_column_of_each_plain_option_that_it_does_not_name() {
        let made = expand("j.x AS limit_key, j.x AS fair_key{{plain_columns}}");
        assert_eq!(made.matches(" AS limit_key").count(), 1, "{made}");
        assert!(made.ends_with("::numeric, 1), 1000000)::integer END AS limit_max"), "{made}");
    }

    #[test]
    fn an_option_is_refused_without_the_options_that_it_needs() {
        let made = expand("{{needs}}");
        let row = "('on_dependency_failure', '{after,after_local}'::text[], \
                   'is set without after or after_local; set one of them too')";
        assert!(made.contains(row), "{made}");
    }

    #[test]
    fn a_text_without_braces_stays() {
        assert!(matches!(expand("SELECT '{}'::text[]"), Cow::Borrowed(_)));
    }
}
