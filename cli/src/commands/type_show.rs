//! `howdah type show`: shows all settings of a task type.

use super::{context::Global, failure::Failure, output::Output, type_set::settings_list};

/// Show all settings of a task type
///
/// `-` stands for the broker's default.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah type show email.send
  howdah type show email.send --json | jq '.paused // false'")]
pub(super) struct Args {
    /// Task type to show
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Print one JSON object: the message TaskTypeSettings; an omitted field stands for the broker's default
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let task_type = client.get_task_type(&args.task_type).await?;
        let task_type = task_type.ok_or_else(|| super::task_type::unknown(&args.task_type))?;
        let mut output = Output::new();
        if args.json {
            output.message("TaskTypeSettings", &task_type.settings.unwrap_or_default())?;
        } else {
            for (setting, value) in settings_list(&task_type.settings.unwrap_or_default()) {
                output.line(format_args!("{setting:<19} {}", value.as_deref().unwrap_or("-")))?;
            }
        }
        output.flush()
    })
}
