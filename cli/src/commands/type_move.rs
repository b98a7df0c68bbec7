//! `howdah type move`: moves a task type to another store.

use howdah_client::proto::{MovePhase, MoveTypeRequest, MoveTypeResponse};

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    text::jobs,
};

/// Move a task type to another store, with its settings, jobs and schedules
///
/// New jobs are enqueued in the other store immediately. The type is paused in both stores until its jobs have moved, so that
/// their order is kept. Leased jobs end in the old store. Moved jobs get new ids, because the prefix of an id is the number of
/// its store. The commands job, explain, cancel and wait accept the old ids for as long as history is kept.
///
/// Jobs with ties to other jobs stay and run in the old store: jobs with a limit key, with stages, with dependents, waiting jobs,
/// jobs that a caller waits for, and jobs whose key is held in the other store. Finished jobs stay, too.
///
/// If this command or its broker ends early, the move and the type stay paused. The same command continues the move.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah type move mail.send --to mail --reason 'a database of its own'
  howdah type move mail.send --from shop --to mail
  howdah type move mail.send --to mail --json | jq -r .moved_count")]
pub(super) struct Args {
    /// Task type to move
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Store to move the type to, as shown by `howdah store list`
    #[arg(long, value_name = "STORE")]
    to: String,
    /// Store to move the type from [default: the store that has had the type for longest]
    #[arg(long, value_name = "STORE")]
    from: Option<String>,
    /// Print one JSON object per step: the message MoveTypeResponse
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let request = MoveTypeRequest {
        task_type: args.task_type.clone(),
        to_store: args.to.clone(),
        from_store: args.from.clone().unwrap_or_default(),
    };
    global.with_client(async |client| {
        let mut answers = client.stores().move_type(request).await.map_err(howdah_client::Error::from)?.into_inner();
        let (mut output, mut printed, mut last) = (Output::new(), String::new(), MoveTypeResponse::default());
        while let Some(answer) = answers.message().await.map_err(|status| stopped(args, status))? {
            if args.json {
                output.message("MoveTypeResponse", &answer)?;
                output.flush()?;
            } else {
                let words = words(&args.task_type, &answer);
                if words != printed {
                    words.lines().for_each(note);
                    printed = words;
                }
            }
            last = answer;
        }
        if last.phase() == MovePhase::Done {
            return Ok(());
        }
        Err(Failure::failed(format!("the move was interrupted; run `{}` to continue it", again(args))))
    })
}

/// Command that continues the move.
fn again(args: &Args) -> String {
    format!("howdah type move {} --to {}", args.task_type, args.to)
}

/// Handles a progress stream that ended before the move: prints the command that continues the move, and returns the failure.
fn stopped(args: &Args, status: tonic::Status) -> Failure {
    note(format!("the move was interrupted; run `{}` to continue it", again(args)));
    howdah_client::Error::from(status).into()
}

fn words(task_type: &str, at: &MoveTypeResponse) -> String {
    let mut words = match at.phase() {
        MovePhase::Unspecified | MovePhase::Pausing => {
            format!(
                "{task_type} is paused in {} and {}: waiting until all brokers know that",
                at.from_store, at.to_store
            )
        }
        MovePhase::Moving => format!("{} moved to {}", jobs(at.moved_count), at.to_store),
        MovePhase::Following => format!(
            "{} moved; {task_type} runs in {}; {} still run in {}",
            jobs(at.moved_count),
            at.to_store,
            jobs(at.running_count),
            at.from_store
        ),
        MovePhase::Done => format!("{task_type} is now in {}: {} moved", at.to_store, jobs(at.moved_count)),
    };
    if at.phase() == MovePhase::Done {
        if at.moved_schedule_count > 0 {
            let schedules = if at.moved_schedule_count == 1 { "schedule" } else { "schedules" };
            words = format!("{words}, {} {schedules} moved", at.moved_schedule_count);
        }
        if at.staying_count > 0 {
            let ids: Vec<String> = at.staying_ids.iter().map(i64::to_string).collect();
            let more = if at.staying_count > at.staying_ids.len() as i64 { ", …" } else { "" };
            words = format!(
                "{words}\nnot moved from {}, because of dependencies, limits or stages: {}: {}{more}",
                at.from_store,
                jobs(at.staying_count),
                ids.join(", ")
            );
        }
        if at.staying_schedule_count > 0 {
            words = format!(
                "{words}\nschedules that stay in {}, because {} already has schedules with their names: {}",
                at.from_store, at.to_store, at.staying_schedule_count
            );
        }
    }
    if at.problem.is_empty() { words } else { format!("{words}; waiting: {}", at.problem) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_move_lists_the_jobs_that_were_not_moved() {
        let mut at = MoveTypeResponse { from_store: "shop".into(), to_store: "mail".into(), ..Default::default() };
        at.set_phase(MovePhase::Done);
        at.moved_count = 1;
        assert_eq!(words("t", &at), "t is now in mail: 1 job moved");
        (at.staying_count, at.staying_ids, at.moved_schedule_count) = (12, vec![3, 7], 2);
        assert_eq!(
            words("t", &at),
            "t is now in mail: 1 job moved, 2 schedules moved\nnot moved from shop, because of dependencies, limits or \
             stages: 12 jobs: 3, 7, …"
        );
    }
}
