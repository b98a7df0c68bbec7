//! Rewrites errors about a field of a request: names the flag, and quotes its value as the user typed it.

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

/// Pairs of field path and flag id, for fields whose flag id does not follow from the path. By default the id is the path with
/// underscores and without `_policy`: `retry_jitter` for `retry_policy.jitter`.
const OTHERS: [(&str, &str); 18] = [
    ("max_jobs_per_second", "rate"),
    ("undo_bulk_id", "undone"),
    ("fields.add_tags", "add_tag"),
    ("fields.remove_tags", "remove_tag"),
    ("key_rate.per_second", "key_rate"),
    ("rate.per_second", "rate"),
    ("page_size", "limit"),
    ("payload_text", "text"),
    ("payload_path", "path"),
    ("header.name", "header"),
    ("header.value", "header"),
    ("cron.expression", "cron"),
    ("period", "every"),
    ("limit_key", "key"),
    ("task_type", "of_type"),
    ("created_before", "older_than"),
    ("created_since", "newer_than"),
    ("worker_id", "worker"),
];
/// Prefixes of the protocol's enum values.
const CONSTANTS: [&str; 10] = [
    "BULK_OPERATION_",
    "JOB_STATE_",
    "KEY_POLICY_",
    "RETRY_POLICY_KIND_",
    "HISTORY_MODE_",
    "STAGE_PAYLOAD_",
    "DEPENDENCY_FAILURE_",
    "OVERLAP_POLICY_",
    "MISSED_POLICY_",
    "STATS_PERIOD_",
];

/// Rewrites an error about `field`. Returns the message unchanged if no flag has set the field.
pub(super) fn with_flag_names(message: &str, field: &str, command: &Command, matches: &ArgMatches) -> String {
    let (command, matches) = subcommand(command, matches);
    let path = without_indices(field);
    let given = candidates(&path).into_iter().find_map(|id| {
        let arg = command.get_arguments().find(|arg| arg.get_id() == id.as_str())?;
        (matches.value_source(&id) == Some(ValueSource::CommandLine)).then_some((arg, id))
    });
    let Some((arg, id)) = given else {
        // A request without `--request` and `--lines` has one job, so the index `jobs[0]` would only confuse the user.
        let is_one = !has(matches, "request") && !has(matches, "lines");
        return if is_one { message.replacen("jobs[0].", "", 1) } else { message.to_owned() };
    };
    let Some((before, problem)) = message.split_once(field) else { return message.to_owned() };
    let problem = match typed(matches, &id, field) {
        Some(typed) => as_typed(problem, &typed),
        None => problem.to_owned(),
    };
    format!("{before}{}{}", name(arg), words(problem))
}

/// Returns the innermost subcommand.
fn subcommand<'a>(mut command: &'a Command, mut matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    while let Some((name, inner)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, matches) = (found, inner);
    }
    (command, matches)
}

fn has(matches: &ArgMatches, id: &str) -> bool {
    matches.try_contains_id(id).unwrap_or_default() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Formats the name of an argument: `--stuck-after`, or `TYPE`.
fn name(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([name, ..])) => name.to_string(),
        (None, _) => arg.get_id().to_string(),
    }
}

/// Removes indices: `jobs[3].tags[0]` becomes `jobs.tags`.
fn without_indices(field: &str) -> String {
    let (mut path, mut rest) = (String::new(), field);
    while let Some((before, after)) = rest.split_once('[') {
        path.push_str(before);
        rest = after.split_once(']').map_or("", |(_, rest)| rest);
    }
    path + rest
}

/// Returns the ids of the flags that may have set a field, most likely first.
fn candidates(path: &str) -> Vec<String> {
    let ends = || path.match_indices('.').map(|(at, _)| &path[at + 1..]);
    let all = || std::iter::once(path).chain(ends());
    let others =
        all().flat_map(|end| OTHERS.iter().filter(move |(field, _)| *field == end).map(|(_, id)| (*id).to_owned()));
    let nested = all().map(|end| end.replace("_policy.", "_").replace('.', "_"));
    all().map(str::to_owned).chain(others).chain(nested).collect()
}

/// Returns the flag value as the user typed it. For a repeatable flag, returns the value at the index in `field`.
fn typed(matches: &ArgMatches, id: &str, field: &str) -> Option<String> {
    let index = field.strip_suffix(']').and_then(|field| field.rsplit_once('[')).and_then(|(_, at)| at.parse().ok());
    let mut values = matches.try_get_raw(id).ok()??;
    values.nth(index.unwrap_or_default()).map(|value| value.to_string_lossy().into_owned())
}

/// In an error such as ` is 100000 days; 1ms to 30 days is allowed`, replaces the duration by the value that the user typed.
fn as_typed(problem: &str, typed: &str) -> String {
    let is_span = |value: &str| {
        let number = value.trim_end_matches(|c: char| c.is_alphabetic()).trim_end();
        !number.is_empty() && number.len() < value.len() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    match problem.strip_prefix(" is ").and_then(|rest| rest.split_once(';')) {
        Some((value, rest)) if is_span(value) => format!(" is {typed};{rest}"),
        _ => problem.to_owned(),
    }
}

/// Replaces enum values by their words on the command line: `BULK_OPERATION_MOVE` becomes `move`.
fn words(mut text: String) -> String {
    for prefix in CONSTANTS {
        while let Some(at) = text.find(prefix) {
            let rest = &text[at + prefix.len()..];
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
            let word = rest[..end].to_lowercase().replace('_', "-");
            text.replace_range(at..at + prefix.len() + end, &word);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::command;

    use super::*;

    fn rewritten(line: &[&str], message: &str, field: &str) -> String {
        let matches = command().get_matches_from([&["howdah"], line].concat());
        with_flag_names(message, field, &command(), &matches)
    }

    #[test]
    fn a_field_is_named_by_its_flag_and_a_duration_is_shown_as_typed() {
        let cases: [(&[&str], &str, &str, &str); 8] = [
            (
                &["workers", "--stuck-after", "100000d"],
                "stuck_after is 100000 days; 1ms to 30 days is allowed",
                "stuck_after",
                "--stuck-after is 100000d; 1ms to 30 days is allowed",
            ),
            (
                &["bulk", "preview", "cancel", "--type", "a", "--to", "b"],
                "spec.to_task_type is for BULK_OPERATION_MOVE only; leave it out",
                "spec.to_task_type",
                "--to is for move only; leave it out",
            ),
            (
                &["enqueue", "a", "x", "--tag", "ok", "--tag", "b"],
                "jobs[0].tags[1] is \"b\", which is there twice",
                "jobs[0].tags[1]",
                "--tag is \"b\", which is there twice",
            ),
            (
                &["type", "set", "a", "--key-rate", "-7"],
                "settings.key_rate.per_second is -7; over 0 to 1000000 is allowed",
                "settings.key_rate.per_second",
                "--key-rate is -7; over 0 to 1000000 is allowed",
            ),
            (
                &["type", "set", "a", "--retry-jitter", "7"],
                "settings.retry_policy.jitter is 7; 0 to 1 is allowed",
                "settings.retry_policy.jitter",
                "--retry-jitter is 7; 0 to 1 is allowed",
            ),
            (&["search", "a b", "--key", "k"], "task_type is \"a b\": no", "task_type", "TYPE is \"a b\": no"),
            (
                &["bulk", "preview", "retry", "--type", "a b"],
                "spec.task_type is wrong",
                "spec.task_type",
                "--type is wrong",
            ),
            (&["enqueue", "a"], "jobs[0].payload is 9 bytes; no", "jobs[0].payload", "payload is 9 bytes; no"),
        ];
        for (line, message, field, expected) in cases {
            assert_eq!(rewritten(line, message, field), expected);
        }
    }

    #[test]
    fn a_field_of_a_file_stays_as_it_is() {
        let message = "jobs[0].task_type is empty";
        assert_eq!(rewritten(&["enqueue", "--request", "f"], message, "jobs[0].task_type"), message);
    }
}
