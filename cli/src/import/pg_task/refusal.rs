//! Predicts why a broker would refuse a task, using the broker's own checks.

use howdah_core::{error::Error, job::ClusterSettings};

use super::task::Becomes;
use howdah_server::api;

/// Reason why a cluster with default settings would refuse the job or schedule.
pub(super) fn refusal(becomes: &Becomes) -> Option<String> {
    let limits = ClusterSettings::DEFAULT;
    let checked: Result<(), Error> = match becomes {
        Becomes::Job(job) => api::check_jobs(vec![job.clone().into_proto()], &limits),
        Becomes::Schedule(schedule) => api::check_schedule(schedule.clone().into_proto(), &limits),
        Becomes::Nothing(_) => Ok(()),
    };
    checked.err().map(|error| reason(error.field().unwrap_or_default(), &error.to_string()))
}

/// Returns the broker's error, prefixed with the column of `pg_task` that caused it.
pub(super) fn reason(field: &str, message: &str) -> String {
    match column(field) {
        Some(column) => format!("column {column}: {message}"),
        None => message.to_owned(),
    }
}

/// Returns the column of `pg_task` from which a request field such as `jobs[0].run_at` is derived.
fn column(field: &str) -> Option<&'static str> {
    Some(match field.rsplit('.').next()? {
        "payload" => "input",
        "run_at" | "start_time" => "plan",
        "expire_at" | "expire_after" => "active",
        "timeout" => "timeout",
        "limit_key" => "group",
        "period" => "repeat",
        "headers" => "data, remote or null",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_column_if_one_is_at_fault() {
        assert_eq!(reason("jobs[0].run_at", "is late"), "column plan: is late");
        assert_eq!(reason("schedule.template.limit_key", "is long"), "column group: is long");
        assert_eq!(reason("", "no"), "no");
    }
}
