//! Reasons why a job does not run, as `ExplainJob` reports them.

use howdah_proto::v1::{self, JobState, ReasonKind};

use crate::page::{
    action::ActionKind,
    params::query,
    words::{number, wire_span},
};

/// Reasons why a job does not run, and its queue position.
pub(super) struct Reasons {
    pub(super) title: &'static str,
    pub(super) all: Vec<Reason>,
    /// Text about the queue position and the expected start; empty if unknown.
    pub(super) outlook: String,
}

pub(super) struct Reason {
    pub(super) text: String,
    pub(super) remedy: String,
    /// Ids of the jobs that block this job.
    pub(super) jobs: Vec<i64>,
    /// The pause that blocks the job; `None` if nothing is paused.
    pub(super) pause: Option<Pause>,
}

/// A pause that blocks a job.
pub(super) struct Pause {
    /// Command that ends the pause.
    pub(super) command: String,
    /// Path of the view that shows the paused object, without the prefix of all links.
    pub(super) at: String,
    /// Action of the page that ends the pause.
    pub(super) action: &'static str,
    /// Names and values of the action's form fields.
    pub(super) fields: Vec<(&'static str, String)>,
}

impl Reasons {
    /// Converts the answer of `ExplainJob`; `None` for a finished job, whose timeline shows the end.
    pub(super) fn new(explained: v1::ExplainJobResponse) -> Option<Self> {
        let title = match explained.state() {
            JobState::Ready | JobState::Scheduled | JobState::Waiting => "Why the job does not run",
            JobState::Leased => "Where the job runs",
            JobState::Dead => "What can be done",
            _ => return None,
        };
        let outlook = outlook(&explained);
        let all = explained.reasons.into_iter().map(|it| reason(&explained.task_type, it)).collect();
        Some(Self { title, all, outlook })
    }
}

fn reason(task_type: &str, reason: v1::JobReason) -> Reason {
    Reason {
        pause: pause(task_type, &reason),
        text: reason.text.clone(),
        remedy: reason.remedy,
        jobs: reason.jobs.into_iter().map(|job| job.id).collect(),
    }
}

fn pause(task_type: &str, reason: &v1::JobReason) -> Option<Pause> {
    let of_type = ("type", task_type.to_owned());
    match reason.kind() {
        ReasonKind::TypePaused => Some(Pause {
            command: format!("howdah type set {task_type} --paused false"),
            at: format!("/type?{}", query([("name", task_type)])),
            action: ActionKind::ResumeType.words().name,
            fields: vec![of_type],
        }),
        ReasonKind::LimitKeyPaused => Some(Pause {
            command: format!("howdah limit resume {task_type} '{}'", reason.key.replace('\'', r"'\''")),
            at: format!("/limits?{}", query([("type", task_type)])),
            action: ActionKind::ResumeKey.words().name,
            fields: vec![of_type, ("key", reason.key.clone())],
        }),
        _ => None,
    }
}

fn outlook(explained: &v1::ExplainJobResponse) -> String {
    let mut sentences = Vec::new();
    if let Some(position) = explained.position {
        let more = if position.has_more { "More than " } else { "" };
        sentences.push(match position.jobs_before {
            0 if !position.has_more => "The job is next in its queue.".into(),
            1 if !position.has_more => "1 job goes before this one.".into(),
            n => format!("{more}{} jobs go before this one.", number(n)),
        });
    }
    if let Some(left) = explained.expected_in {
        let rate = match explained.settled_per_minute {
            0 => String::new(),
            settled => format!(", at {} jobs a minute", number(settled.into())),
        };
        sentences.push(format!("The job is expected to start in {}{rate}.", wire_span(left)));
    }
    sentences.join(" ")
}
