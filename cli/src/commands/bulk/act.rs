//! `howdah bulk pause`, `resume` and `cancel`.

use super::shown;
use crate::commands::{context::Global, failure::Failure, output::note, values};

/// Pause a bulk operation: jobs not yet changed stay as they are until it is resumed
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PauseArgs {
    /// Id of the bulk operation
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
}

/// Resume a paused bulk operation where it stopped
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ResumeArgs {
    /// Id of the bulk operation
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
}

/// Cancel a bulk operation: jobs already changed stay changed; see howdah bulk start undo
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct CancelArgs {
    /// Id of the bulk operation
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
