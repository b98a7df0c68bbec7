//! Parses the trigger of a `ScaledObject`. Any user of the Kubernetes cluster may write a trigger, so errors name the field and
//! say what to do.

use std::{collections::HashMap, time::Duration};

use howdah_core::{job::TaskTypeName, logging::escaped};

/// Maximum number of task types per trigger.
const MOST_TYPES: usize = 20;
/// Maximum of `jobsPerReplica` and `activationJobs`.
const MOST_JOBS: u32 = 100_000;
const MOST_SECONDS: u32 = 86_400;
const DRAIN_SECONDS: u32 = 60;
/// Maximum number of characters of a value that an error shows.
const SHOWN: usize = 60;

/// Metadata fields that KEDA itself uses, and also passes on to the scaler.
const OF_KEDA: [&str; 8] =
    ["scalerAddress", "metricType", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey"];
const TASK_TYPE: &str = "taskType";
const JOBS_PER_REPLICA: &str = "jobsPerReplica";
const DRAIN: &str = "drainSeconds";
const ACTIVATION: &str = "activationJobs";

/// Scaling parameters of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    /// Task types that the worker handles.
    pub(super) task_types: Vec<String>,
    /// Number of jobs that one replica runs concurrently.
    pub(super) jobs_per_replica: u32,
    /// Time within which waiting jobs should start.
    pub(super) drain: Duration,
    /// Number of ready jobs up to which no replica is started.
    pub(super) activation: u32,
}

impl Trigger {
    /// Parses and checks the metadata.
    pub(super) fn parse(metadata: &HashMap<String, String>) -> Result<Self, String> {
        let known = [TASK_TYPE, JOBS_PER_REPLICA, DRAIN, ACTIVATION];
        let mut unknown: Vec<&String> =
            metadata.keys().filter(|key| !known.contains(&key.as_str()) && !OF_KEDA.contains(&key.as_str())).collect();
        unknown.sort_unstable();
        if let Some(key) = unknown.first() {
            return Err(format!("metadata.{}: is unknown; use {}", shown(key), known.join(", ")));
        }
        Ok(Self {
            task_types: task_types(metadata)?,
            jobs_per_replica: number(metadata, JOBS_PER_REPLICA, 1, MOST_JOBS)?.ok_or_else(|| {
                format!("metadata.{JOBS_PER_REPLICA}: is missing; set it to the jobs that one replica runs at once, such as \"10\"")
            })?,
            drain: Duration::from_secs(number(metadata, DRAIN, 1, MOST_SECONDS)?.unwrap_or(DRAIN_SECONDS).into()),
            activation: number(metadata, ACTIVATION, 0, MOST_JOBS)?.unwrap_or_default(),
        })
    }
}

fn task_types(metadata: &HashMap<String, String>) -> Result<Vec<String>, String> {
    let wrong = |problem: String| format!("metadata.{TASK_TYPE}: {problem}");
    let given = metadata.get(TASK_TYPE).filter(|given| !given.trim().is_empty()).ok_or_else(|| {
        wrong(
            "is missing; name the task type that the worker takes, or several with commas, such as \"mail.send\""
                .into(),
        )
    })?;
    let mut names = Vec::new();
    for name in given.split(',').map(str::trim) {
        let name = TaskTypeName::parse(name).map_err(|problem| wrong(shown(&problem)))?.to_string();
        if !names.contains(&name) {
            names.push(name);
        }
        if names.len() > MOST_TYPES {
            return Err(wrong(format!("has more than {MOST_TYPES} types; use more triggers")));
        }
    }
    Ok(names)
}

fn number(metadata: &HashMap<String, String>, field: &str, least: u32, most: u32) -> Result<Option<u32>, String> {
    let Some(given) = metadata.get(field).map(|given| given.trim()).filter(|given| !given.is_empty()) else {
        return Ok(None);
    };
    let number = given.parse().ok().filter(|number| (least..=most).contains(number));
    let number =
        number.ok_or_else(|| format!("metadata.{field}: \"{}\" is not a number from {least} to {most}", shown(given)));
    number.map(Some)
}

/// Escapes and shortens an external text for an error message.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN + 1).collect();
    let cut: String = start.chars().take(SHOWN).collect();
    let dots = if cut.len() < start.len() { "\u{2026}" } else { "" };
    format!("{}{dots}", escaped(&cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &[(&str, &str)]) -> Result<Trigger, String> {
        Trigger::parse(&fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_trigger_needs_types_and_jobs_per_replica_and_ignores_what_is_keda_s_own() {
        let all = [("taskType", "a, b,a"), ("jobsPerReplica", "10"), ("scalerAddress", "x:1"), ("unsafeSsl", "true")];
        let trigger = parse(&all).unwrap();
        assert_eq!(trigger.task_types, ["a", "b"]);
        assert_eq!((trigger.jobs_per_replica, trigger.drain.as_secs(), trigger.activation), (10, 60, 0));
        let more = [("taskType", "a"), ("jobsPerReplica", " 1 "), ("drainSeconds", "300"), ("activationJobs", "5")];
        let trigger = parse(&more).unwrap();
        assert_eq!((trigger.jobs_per_replica, trigger.drain.as_secs(), trigger.activation), (1, 300, 5));
    }

    #[test]
    fn an_error_names_the_field_and_says_what_to_do() {
        let with = |field, value| {
            let others = [("taskType", "a"), ("jobsPerReplica", "1")].into_iter().filter(|(name, _)| *name != field);
            parse(&others.chain([(field, value)]).collect::<Vec<_>>()).unwrap_err()
        };
        assert!(with("taskType", " ").starts_with("metadata.taskType: is missing; name the task type"));
        assert!(with("taskType", "a,,b").starts_with("metadata.taskType: is empty"));
        assert!(with("taskType", "a b").contains("has the character ' '"));
        assert!(with("jobsPerReplica", "").starts_with("metadata.jobsPerReplica: is missing"));
        for number in ["0", "-1", "1.5", "100001", "99999999999999999999", "ten"] {
            let error = with("jobsPerReplica", number);
            assert_eq!(error, format!("metadata.jobsPerReplica: \"{number}\" is not a number from 1 to 100000"));
        }
        assert!(with("drainSeconds", "0").contains("from 1 to 86400"));
        assert!(with("activationJobs", "-1").contains("from 0 to 100000"));
        assert_eq!(
            with("tasktype", "a"),
            "metadata.tasktype: is unknown; use taskType, jobsPerReplica, drainSeconds, activationJobs"
        );
        let many = (0..21).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        assert!(with("taskType", &many).contains("more than 20 types"));
        for hostile in
            [with("\x1b[2J\n", "a"), with("drainSeconds", &"9".repeat(100_000)), with("taskType", &"ä".repeat(99_999))]
        {
            assert!(hostile.len() < 300 && !hostile.contains(['\n', '\x1b']), "{hostile}");
        }
    }
}
