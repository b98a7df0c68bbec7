//! Improves clap's error messages for wrong command lines.

use std::num::{ParseFloatError, ParseIntError};

use clap::{
    Command, Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Improves an error of the command line `words`, whose first word is the program.
pub(super) fn improved(error: Error, command: Command, words: &[String]) -> Error {
    if !error.use_stderr() {
        return error;
    }
    let mut command = subcommand(command, words);
    let mut error = number(error);
    if let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) {
        let usage = if error.kind() == ErrorKind::MissingRequiredArgument {
            without_variables(&usage.to_string(), &command, words).into()
        } else {
            command.render_usage()
        };
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    if let Some(tip) = tip(&error, &command, words) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Returns the subcommand that the words name.
fn subcommand(mut command: Command, words: &[String]) -> Command {
    command.build();
    for word in words.iter().skip(1) {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner.clone();
        }
    }
    command
}

/// Removes flags with environment variables from a usage text, unless they were given. clap lists them as if they were required.
fn without_variables(usage: &str, command: &Command, words: &[String]) -> String {
    let mut usage = usage.to_owned();
    for arg in command.get_arguments().filter(|arg| arg.get_env().is_some()) {
        let Some(long) = arg.get_long().map(|long| format!("--{long}")) else { continue };
        if !words.iter().any(|word| word.split('=').next() == Some(&long)) {
            for value in arg.get_value_names().unwrap_or_default() {
                usage = usage.replace(&format!(" {long} <{value}>"), "");
            }
        }
    }
    usage
}

/// Replaces clap's message for an invalid number, such as "invalid digit found in string", by a description of the problem.
fn number(error: Error) -> Error {
    let source = std::error::Error::source(&error);
    let Some(source) = source.filter(|_| error.kind() == ErrorKind::ValueValidation) else { return error };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (flag, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let problem = match value.parse::<i128>() {
        _ if source.is::<ParseFloatError>() => "it is not a number".into(),
        Ok(number) if source.is::<ParseIntError>() && number < 0 => "it is negative".into(),
        Ok(_) if source.is::<ParseIntError>() => "it is too large".into(),
        Err(_) if source.is::<ParseIntError>() => "it is not a whole number".into(),
        _ => match range(&source.to_string()) {
            Some(range) => range,
            None => return error,
        },
    };
    let message = format!("invalid value '{value}' for '{flag}': {problem}\n\nFor more information, try '--help'.\n");
    Error::raw(ErrorKind::ValueValidation, message)
}

/// Converts a number parser's error such as `0 is not in 1..=1000` to `use 1 to 1000`.
fn range(problem: &str) -> Option<String> {
    let (_, range) = problem.split_once(" is not in ")?;
    let (low, high) = range.split_once("..")?;
    let high = high.trim_start_matches('=');
    let is_bound = [i64::MAX.to_string(), u64::MAX.to_string()].iter().all(|most| most != high);
    let numbers = [low, high].iter().all(|number| number.parse::<i128>().is_ok());
    numbers.then(|| if is_bound { format!("use {low} to {high}") } else { format!("use {low} or more") })
}

/// Suggests `--flag=-value` for a value that begins with a dash. clap suggests `--`, which would make the value an argument.
fn tip(error: &Error, command: &Command, words: &[String]) -> Option<StyledStr> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    // clap's error contains only the dash and the first letter of the value.
    let at = words.iter().position(|word| word.starts_with(unknown.as_str()))?;
    let flag = words.get(at.checked_sub(1)?)?;
    let takes_one = command.get_arguments().any(|arg| {
        arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long)) && arg.get_action().takes_values()
    });
    takes_one.then(|| format!("to pass '{0}' as the value of '{flag}', use '{flag}={0}'", words[at]).into())
}

#[cfg(test)]
mod tests {
    use super::super::command;

    use super::*;

    fn error_text(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = command().try_get_matches_from(&words).unwrap_err();
        improved(error, command(), &words).to_string()
    }

    #[test]
    fn a_value_that_begins_with_a_dash_is_a_value() {
        for (line, word) in [
            ("howdah stats --since -7d", "omit the minus sign"),
            ("howdah audit --since -7", "omit the minus sign"),
            ("howdah search --id -7", "an id must be a number, 1 or more"),
            ("howdah job -7", "an id must be a number, 1 or more"),
            ("howdah enqueue t x --delay -7s", "a duration must not be negative"),
            ("howdah workers --stuck-after -7s", "a duration must not be negative"),
            ("howdah type set t --key-max-running -7", "use 1 to 1000000"),
            ("howdah jobs t --limit -7", "it is negative"),
        ] {
            let text = error_text(line);
            assert!(text.starts_with("error: invalid value '-7") && text.contains(word), "{line}: {text}");
        }
        assert!(
            command().try_get_matches_from(["howdah", "type", "set", "t", "--rate", "-7"]).is_ok(),
            "the broker rejects the value"
        );
        assert!(command().try_get_matches_from(["howdah", "retry", "17", "--json"]).is_ok(), "flags follow ids");
    }

    #[test]
    fn a_text_that_begins_with_a_dash_is_given_with_an_equals_sign() {
        let text = error_text("howdah search t --key -k");
        assert!(text.contains("to pass '-k' as the value of '--key', use '--key=-k'"), "{text}");
        let text = self::error_text("howdah audit --id -7");
        assert!(text.contains("use '--id=-7'"), "{text}");
    }

    #[test]
    fn the_usage_lists_no_flags_that_are_optional() {
        for line in ["howdah job", "howdah bulk start", "howdah --server x:1 limit pause t"] {
            let text = error_text(line);
            assert!(text.contains("Usage: howdah ") && !text.contains("--server <URL>"), "{line}: {text}");
        }
    }

    #[test]
    fn the_usage_names_a_flag_that_needs_another() {
        let text = error_text("howdah work t --processes 2 --exec true");
        assert!(text.contains("  --lines\n") && text.contains("--processes <N>"), "{text}");
    }

    #[test]
    fn an_invalid_number_is_refused_with_the_reason() {
        for (line, word) in [
            ("howdah jobs t --limit foo", "invalid value 'foo' for '--limit <N>': it is not a whole number"),
            ("howdah stats --limit 99999999999999999999", "it is too large"),
            ("howdah stats --limit 0", "'--limit <N>': use 1 to 1000"),
            ("howdah jobs t --limit 0", "'--limit <N>': use 1 or more"),
            ("howdah enqueue t x --priority high", "'--priority <N>': it is not a whole number"),
            ("howdah enqueue t x --after foo", "an id must be a number, 1 or more"),
            ("howdah type set t --rate foo", "invalid value 'foo' for '--rate <NUMBER>': it is not a number"),
        ] {
            assert!(error_text(line).contains(word), "{line}: {}", error_text(line));
        }
    }
}
