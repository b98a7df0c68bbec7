//! `howdah cancel`: cancels unfinished jobs.

use howdah_client::proto::{CancelJobsRequest, JobState as ProtoState};

use super::{
    context::Global,
    failure::Failure,
    jobs,
    selection::{Answer, Operation, Selection},
};

/// Cancel unfinished jobs
///
/// If a worker runs the job, the broker tells the worker to stop. Prints the ids of the cancelled jobs, one per line. The exit
/// status is 1 if a job was finished or never existed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah cancel 17 18
  howdah cancel --type email.send --state ready
  howdah cancel --type email.send --error 'no such host (exit status #)'
  howdah cancel --type email.send --tag batch-17 --older-than 2h
  howdah cancel --type email.send                     # all unfinished jobs, including dead jobs")]
pub(super) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// With --type: cancel only jobs in this state: ready, leased, scheduled, waiting, dead
    #[arg(long, value_name = "STATE", requires = "of_type", value_parser = jobs::state)]
    state: Option<ProtoState>,
    /// Print one JSON object per id: id, cancelled
    #[arg(long)]
    json: bool,
}

const CANCELLED: Operation = Operation { done: "cancelled", otherwise: "it is finished or never existed" };

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let Args { selection, state, json } = args;
    global.with_client(async |client| {
        let call = async |filter, page_token| {
            let request = CancelJobsRequest { filter: Some(filter), page_token, ids: Vec::new() };
            let answer = client.cancel_jobs_by(request).await?;
            Ok(Answer { done: answer.cancelled_ids, key_held: Vec::new(), next: answer.next_page_token })
        };
        selection.apply(&client, state.unwrap_or_default() as i32, json, &CANCELLED, call).await
    })
}
