//! `howdah release`: takes running jobs away from their workers.

use howdah_client::proto::{EndLeasesRequest, JobState};

use super::{
    context::Global,
    failure::Failure,
    selection::{Answer, Operation, Selection},
};

/// Take running jobs away from their workers, for example jobs that hang
///
/// The attempts do not count, and the jobs are ready again immediately. With --fail the attempts fail, and the retry policies
/// apply. The brokers tell the workers to stop, and ignore later outcomes of these attempts. Prints the ids of the jobs, one per
/// line. The exit status is 1 if a job was not leased. To end a job instead, use `howdah cancel`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah release 17 18
  howdah release 17 --fail 'hung for two hours'
  howdah release --type email.send --worker 0123456789abcdef
  howdah release --type email.send --older-than 2h --attempts-at-least 2
  howdah jobs email.send --state leased             # running jobs, with their start")]
pub(super) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Fail the attempts with this error
    #[arg(long, value_name = "ERROR")]
    fail: Option<String>,
    /// Print one JSON object per id: id, released
    #[arg(long)]
    json: bool,
}

const RELEASED: Operation = Operation { done: "released", otherwise: "it is not leased" };

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let call = async |filter, page_token| {
            let request = EndLeasesRequest { filter: Some(filter), error: args.fail.clone(), page_token };
            let answer = client.end_leases_by(request).await?;
            Ok(Answer { done: answer.ended_ids, key_held: Vec::new(), next: answer.next_page_token })
        };
        args.selection.apply(&client, JobState::Unspecified as i32, args.json, &RELEASED, call).await
    })
}
