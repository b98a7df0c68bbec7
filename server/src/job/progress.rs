//! How far a job has come, and what its next attempt shall find.

use std::time::SystemTime;

use bytes::Bytes;

use super::Lease;

/// What a worker says of one job; what is `None` stays as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    /// Whose.
    pub lease: Lease,
    /// 0 to 1.
    pub fraction: Option<f64>,
    /// For people.
    pub text: Option<String>,
    /// For the next attempt; empty: none any more.
    pub checkpoint: Option<Bytes>,
}

impl ProgressReport {
    /// Bytes of what it carries.
    pub fn weight(&self) -> usize {
        self.text.as_ref().map_or(0, String::len) + self.checkpoint.as_ref().map_or(0, Bytes::len)
    }

    /// Takes over what a later report of the same lease says.
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

/// How far a job has come, as its worker said last.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// 0 to 1.
    pub fraction: Option<f64>,
    /// For people; may be empty.
    pub text: String,
    /// When it was said.
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
