//! `howdah discard`: moves dead jobs to history.

use howdah_client::proto::{DiscardJobsRequest, JobState};

use super::{
    context::Global,
    failure::Failure,
    selection::{Answer, Operation, Selection},
};

/// Discard dead jobs: move them to history
///
/// Prints the ids of the discarded jobs, one per line.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah discard 17 18
  howdah discard --type email.send --error 'no such host (exit status #)'
  howdah discard --type email.send --older-than 30d
  howdah discard --type email.send")]
pub(super) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Print one JSON object per job: id, discarded
    #[arg(long)]
    json: bool,
}

const DISCARDED: Operation = Operation { done: "discarded", otherwise: "it is not dead" };

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let Args { selection, json } = args;
    global.with_client(async |client| {
        let call = async |filter, page_token| {
            let answer = client.discard_jobs(DiscardJobsRequest { filter: Some(filter), page_token }).await?;
            Ok(Answer { done: answer.discarded_ids, key_held: Vec::new(), next: answer.next_page_token })
        };
        selection.apply(&client, JobState::Unspecified as i32, json, &DISCARDED, call).await
    })
}
