//! The progress of a job, and the checkpoint for its next attempt.

use std::time::SystemTime;

use bytes::Bytes;

use super::Lease;

/// A worker's progress report on one job; fields that are `None` stay unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    /// The lease.
    pub lease: Lease,
    /// Fraction, 0 to 1.
    pub fraction: Option<f64>,
    /// Text for people.
    pub text: Option<String>,
    /// Checkpoint for the next attempt; an empty one deletes it.
    pub checkpoint: Option<Bytes>,
}

impl ProgressReport {
    /// Size of the report's text and checkpoint, in bytes.
    pub fn weight(&self) -> usize {
        self.text.as_ref().map_or(0, String::len) + self.checkpoint.as_ref().map_or(0, Bytes::len)
    }

    /// Merges a later report of the same lease, whose fields take precedence.
    pub fn then(&mut self, later: &Self) {
        debug_assert_eq!(self.lease, later.lease, "reports of one lease");
        self.fraction = later.fraction.or(self.fraction);
        if later.text.is_some() {
            self.text.clone_from(&later.text);
        }
        if later.checkpoint.is_some() {
            self.checkpoint.clone_from(&later.checkpoint);
        }
    }
}

/// Last reported progress of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Fraction, 0 to 1.
    pub fraction: Option<f64>,
    /// Text for people; may be empty.
    pub text: String,
    /// Time of the report.
    pub updated: SystemTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_report_replaces_what_it_says_and_leaves_the_rest() {
        let lease = Lease { id: 1, token: 2 };
        let none = ProgressReport { lease, fraction: None, text: None, checkpoint: None };
        let mut report = ProgressReport { fraction: Some(0.5), text: Some("half".into()), ..none.clone() };
        report.then(&ProgressReport { checkpoint: Some("page 7".into()), ..none.clone() });
        report.then(&ProgressReport { text: Some("more".into()), ..none });
        assert_eq!((report.fraction, report.text.as_deref()), (Some(0.5), Some("more")));
        assert_eq!(report.checkpoint.as_deref(), Some(&b"page 7"[..]));
        assert_eq!(report.weight(), 10);
    }
}
