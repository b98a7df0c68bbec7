//! `howdah schedule …`: defines, shows, pauses, resumes, deletes and runs schedules.

mod define;
mod show;

use super::{context::Global, failure::Failure, output::Output};

subcommands! { |args, global|
    Create(define::CreateArgs) => define::create(args, global),
    Update(define::UpdateArgs) => define::update(args, global),
    List(show::ListArgs) => show::list(&args, global),
    Show(show::ShowArgs) => show::show(&args, global),
    /// Pause a schedule: it enqueues no jobs until it is resumed
    ///
    /// Planned times that pass meanwhile are skipped. Jobs already enqueued are not affected.
    #[command(after_help = "\
Examples:
  howdah schedule pause nightly")]
    Pause(NameArgs) => global.with_client(async |client| {
        show::print(&client.pause_schedule(&args.name).await?, args.json)
    }),
    /// Resume a schedule from its next planned time
    #[command(after_help = "\
Examples:
  howdah schedule resume nightly")]
    Resume(NameArgs) => global.with_client(async |client| {
        show::print(&client.resume_schedule(&args.name).await?, args.json)
    }),
    Delete(DeleteArgs) => delete(&args, global),
    Run(RunArgs) => run_now(&args, global),
}

#[derive(Debug, clap::Args)]
pub(super) struct NameArgs {
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

fn delete(args: &DeleteArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        if client.delete_schedule(&args.name).await? {
            Ok(())
        } else {
            Err(Failure::failed(format!("schedule {:?} does not exist", args.name)))
        }
    })
}

fn run_now(args: &RunArgs, global: &Global) -> Result<(), Failure> {
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
