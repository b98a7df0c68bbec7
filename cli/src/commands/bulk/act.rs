//! `howdah bulk pause`, `resume` and `cancel`.

use super::shown;
use crate::commands::{context::Global, failure::Failure, output::note, values};

/// Pause a bulk operation: jobs that are not changed yet stay as they are until it is resumed
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PauseArgs {
    /// The id of the bulk operation
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
}

/// Go on with a paused bulk operation, where it was paused
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ResumeArgs {
    /// The id of the bulk operation
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
}

/// End a bulk operation before its end: jobs that it has changed stay changed, but see howdah bulk start undo
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct CancelArgs {
    /// The id of the bulk operation
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
}

pub(super) fn pause(args: &PauseArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        note(shown::progress(&client.pause_bulk(args.id).await?));
        Ok(())
    })
}

pub(super) fn resume(args: &ResumeArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        note(shown::progress(&client.resume_bulk(args.id).await?));
        Ok(())
    })
}

pub(super) fn cancel(args: &CancelArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        note(shown::progress(&client.cancel_bulk(args.id).await?));
        Ok(())
    })
}
