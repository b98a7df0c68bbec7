//! Why a job does not run, in the words of `ExplainJob`.

use howdah_proto::v1::{self, JobState};

use crate::page::words::{number, wire_span};

/// Everything that holds it back, and where it stands.
pub(super) struct Reasons {
    pub(super) title: &'static str,
    pub(super) all: Vec<Reason>,
    /// Its place in its order, and when it starts; empty: that is not known.
    pub(super) outlook: String,
}

pub(super) struct Reason {
    pub(super) text: String,
    pub(super) remedy: String,
    /// Jobs that hold it back.
    pub(super) jobs: Vec<i64>,
}

impl Reasons {
    /// Of an explanation; `None`: the timeline says it all.
    pub(super) fn of(explained: v1::ExplainJobResponse) -> Option<Self> {
        let title = match explained.state() {
            JobState::Ready | JobState::Scheduled | JobState::Waiting => "Why it does not run",
            JobState::Leased => "Where it runs",
            JobState::Dead => "What can be done",
            _ => return None,
        };
        Some(Self { title, outlook: outlook(&explained), all: explained.reasons.into_iter().map(reason).collect() })
    }
}

fn reason(reason: v1::JobReason) -> Reason {
    Reason { text: reason.text, remedy: reason.remedy, jobs: reason.jobs.into_iter().map(|job| job.id).collect() }
}

fn outlook(explained: &v1::ExplainJobResponse) -> String {
    let mut sentences = Vec::new();
    if let Some(position) = explained.position {
        let more = if position.has_more { "More than " } else { "" };
        sentences.push(match position.jobs_before {
            0 if !position.has_more => "It is the first in its order.".into(),
            1 if !position.has_more => "1 job goes before it.".into(),
            n => format!("{more}{} jobs go before it.", number(n)),
        });
    }
    if let Some(left) = explained.expected_in {
        let rate = match explained.settled_per_minute {
            0 => String::new(),
            settled => format!(", at {} jobs a minute", number(settled.into())),
        };
        sentences.push(format!("It is expected to start in {}{rate}.", wire_span(left)));
    }
    sentences.join(" ")
}
