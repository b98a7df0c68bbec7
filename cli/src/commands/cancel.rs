//! `howdah cancel`: jobs that are not wanted any more.

use howdah_client::proto::{CancelJobsRequest, JobState as ProtoState};

use super::{
    context::Global,
    failure::Failure,
    jobs,
    which::{Answer, Verb, Which},
};

/// Cancel jobs that are not finished
///
/// A job that runs is taken from its worker, who is told to stop. Prints the ids cancelled, one a
/// line; ids that were finished or never existed make the exit status 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah cancel 17 18
  howdah cancel --type email.send --state ready
  howdah cancel --type email.send --error 'no such host (exit status #)'
  howdah cancel --type email.send                     # whatever is not finished, running and dead ones too")]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Of the type, only jobs in this state: ready, leased, scheduled, waiting, dead
    #[arg(long, value_name = "STATE", requires = "of_type", value_parser = jobs::state)]
    state: Option<ProtoState>,
    /// Print one JSON object for each id: id, cancelled
    #[arg(long)]
    json: bool,
}

const CANCELLED: Verb = Verb { done: "cancelled", otherwise: "finished, or never existed" };

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let Args { which, state, json } = args;
    global.with_client(async |client| {
        let call = async |filter, page_token| {
            let request = CancelJobsRequest { filter: Some(filter), page_token, ids: Vec::new() };
            let answer = client.cancel_jobs_by(request).await?;
            Ok(Answer { done: answer.cancelled_ids, key_held: Vec::new(), next: answer.next_page_token })
        };
        which.work_off(state.unwrap_or_default() as i32, json, &CANCELLED, call).await
    })
}
