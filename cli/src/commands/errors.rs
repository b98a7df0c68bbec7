//! `howdah errors`: groups failed jobs by their last error.

use howdah_client::proto::{ErrorGroup, ListErrorGroupsRequest};
use jiff::Timestamp;

use super::{
    context::Global,
    failure::Failure,
    output::{self, note},
    table::Table,
    task_type, text,
};

/// Group failed jobs by their last error
///
/// Counts dead jobs, and jobs that wait for their next attempt. In the name of a group, # replaces numbers, ids and quoted
/// texts. The name ends with ` at PLACE` if the worker reported the place of the error. The commands retry, discard and cancel
/// accept a group as --error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah errors
  howdah errors email.send --json | jq -r .error_group")]
pub(super) struct Args {
    /// Show only groups of this task type
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// Show at most this many groups, largest first, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..=1000))]
    limit: i32,
    /// Print one JSON object per group: the message ErrorGroup
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let task_type = args.task_type.clone().unwrap_or_default();
        let request = ListErrorGroupsRequest { task_type, page_size: args.limit };
        let answer = client.list_error_groups(request).await?;
        if answer.groups.is_empty() {
            task_type::must_exist(&client, args.task_type.as_deref()).await?;
        }
        if answer.groups.is_empty() && !args.json {
            let of = args.task_type.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
            note(format_args!("no job{of} is dead or waits for its next attempt"));
        } else {
            output::list(args.json, "ErrorGroup", &answer.groups, || table(&answer.groups, Timestamp::now()))?;
        }
        if answer.partial {
            note(
                "the counts are incomplete: they include at most 1,000 jobs that wait for their next attempt, among the \
                 10,000 scheduled jobs that run soonest",
            );
        }
        Ok(())
    })
}

fn table(groups: &[ErrorGroup], now: Timestamp) -> Table<'_, ErrorGroup> {
    Table::new(groups)
        .store(|group| &group.store)
        .left("TYPE", |group| &group.task_type)
        .right("DEAD", |group| group.dead_count)
        .right("BACK OFF", |group| group.backing_off_count)
        .right("FIRST", |group| text::ago(group.first_failure_time.as_ref(), now))
        .right("LAST", |group| text::ago(group.last_failure_time.as_ref(), now))
        .right("EXAMPLE", |group| group.example_job_id)
        // The error text is not shortened, because users copy it into `--error`.
        .left("ERROR GROUP", |group| &group.error_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_line_with_its_full_name() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let group = ErrorGroup {
            task_type: "email.send".into(),
            error_group: format!("no such host {} #", "x".repeat(100)),
            dead_count: 12,
            backing_off_count: 3,
            first_failure_time: at(40),
            last_failure_time: at(95),
            example_job_id: 17,
            example_error: "no such host 7".into(),
            store: String::new(),
        };
        let shown = table(std::slice::from_ref(&group), Timestamp::from_second(100).unwrap()).to_string();
        let line = shown.lines().nth(1).unwrap();
        assert!(line.starts_with("email.send    12         3") && line.ends_with(" #"), "{shown}");
    }
}
