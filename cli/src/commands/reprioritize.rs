//! `howdah reprioritize`: changes the priority of unfinished jobs.

use std::collections::HashSet;

use super::{
    conditions::Conditions,
    context::Global,
    failure::Failure,
    output::{Output, note},
    selection::BATCH,
    task_type, text, values,
};

/// Change the priority of unfinished jobs
///
/// Changes jobs by id, or the jobs of a task type that wait for a worker and meet the given conditions. Jobs with lower numbers
/// run first. Among jobs of its new priority, a job is ordered by its age. For a running job, the new priority applies from its
/// next attempt.
///
/// With ids, prints the ids of changed jobs, one per line. The exit status is 1 if a job was finished or dead, or never existed.
/// With --type, prints the number of changed jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah reprioritize -5 17 18
  howdah reprioritize 100 --type report
  howdah reprioritize 100 --type report --fair-key acme --older-than 2h")]
pub(super) struct Args {
    /// New priority, -1000 to 1000
    #[arg(value_name = "PRIORITY", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    priority: i32,
    /// Ids of the jobs
    #[arg(value_name = "ID", required_unless_present = "task_type", conflicts_with = "Conditions", value_parser = values::id)]
    ids: Vec<i64>,
    /// Change the jobs of this task type that wait for a worker
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "ids")]
    task_type: Option<String>,
    #[command(flatten)]
    conditions: Conditions,
    /// Print one JSON object per id: id, reprioritized; with --type, one object: task_type, job_count
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut output = Output::new();
        if let Some(task_type) = &args.task_type {
            let jobs = client.reprioritize_type(task_type, args.conditions.message(), args.priority).await?;
            if jobs == 0 {
                task_type::must_exist(&client, &**task_type).await?;
            }
            if args.json {
                output.json(&serde_json::json!({"task_type": task_type, "job_count": jobs}))?;
            } else {
                output.line(jobs)?;
            }
            return output.flush();
        }
        let mut missed = 0;
        for batch in args.ids.chunks(BATCH) {
            let changed = client.reprioritize_jobs(batch.iter().copied(), args.priority).await?;
            let changed: HashSet<i64> = changed.into_iter().collect();
            for id in batch {
                let done = changed.contains(id);
                missed += usize::from(!done);
                match (args.json, done) {
                    (true, _) => output.json(&serde_json::json!({"id": id, "reprioritized": done}))?,
                    (false, true) => output.line(id)?,
                    (false, false) => note(format_args!("job {id} is finished or dead, or never existed")),
                }
            }
        }
        output.flush()?;
        if missed > 0 {
            return Err(Failure::failed(format!("{missed} of {} not reprioritized", text::jobs_were(args.ids.len()))));
        }
        Ok(())
    })
}
