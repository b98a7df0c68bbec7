//! `howdah schedule pause`, `resume`, `delete` and `run`.

use super::define::print;
use crate::commands::{context::Global, failure::Failure, output::Output};

/// Pause a schedule: it enqueues no jobs until it is resumed
///
/// Planned times that pass meanwhile are skipped. Jobs already enqueued are not affected.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule pause nightly")]
pub(in crate::commands) struct PauseArgs {
    /// Name of the schedule
    #[arg(value_name = "NAME")]
    name: String,
    /// Print one JSON object: the message Schedule
    #[arg(long)]
    json: bool,
}

/// Resume a schedule from its next planned time
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule resume nightly")]
pub(in crate::commands) struct ResumeArgs {
    /// Name of the schedule
    #[arg(value_name = "NAME")]
    name: String,
    /// Print one JSON object: the message Schedule
    #[arg(long)]
    json: bool,
}

/// Delete a schedule; its jobs stay
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule delete nightly")]
pub(in crate::commands) struct DeleteArgs {
    /// Name of the schedule
    #[arg(value_name = "NAME")]
    name: String,
}

/// Enqueue a schedule's job now, in addition to its plan
///
/// Works even if the schedule is paused or has ended, or if another of its jobs runs. Prints the id of the job.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule run nightly")]
pub(in crate::commands) struct RunArgs {
    /// Name of the schedule
    #[arg(value_name = "NAME")]
    name: String,
    /// Print one JSON object: the message EnqueuedJob
    #[arg(long)]
    json: bool,
}

pub(super) fn pause(args: &PauseArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| print(&client.pause_schedule(&args.name).await?, args.json))
}

pub(super) fn resume(args: &ResumeArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| print(&client.resume_schedule(&args.name).await?, args.json))
}

pub(super) fn delete(args: &DeleteArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        if client.delete_schedule(&args.name).await? {
            Ok(())
        } else {
            Err(Failure::failed(format!("schedule {:?} does not exist", args.name)))
        }
    })
}

pub(super) fn run(args: &RunArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let job = client.run_schedule(&args.name).await?;
        let mut output = Output::new();
        if args.json {
            output.enqueued(&job, None)?;
        } else {
            output.line(job.id)?;
        }
        output.flush()
    })
}
