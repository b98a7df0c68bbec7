//! Steps of a run, in order. The program may be killed after each of them.

use std::sync::Arc;

/// The last completed step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The run holds its sealed day. The next run takes the day over if this run's heartbeat stops.
    Taken,
    /// A file is in the staging area, which readers ignore. The next run deletes it.
    PartStaged,
    /// All files are in the staging area.
    AllStaged,
    /// The files were read back and equal the partition.
    Compared,
    /// The database has recorded the manifest. The next run continues from here and does not write the files again.
    Noted,
    /// The files have their final names.
    Named,
    /// The manifest is written.
    ManifestWritten,
    /// The database has recorded the day as archived, so its partition may be dropped.
    Archived,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 8] = [
        Self::Taken,
        Self::PartStaged,
        Self::AllStaged,
        Self::Compared,
        Self::Noted,
        Self::Named,
        Self::ManifestWritten,
        Self::Archived,
    ];
}

/// Callback for each step.
pub type OnStep = Arc<dyn Fn(Step) + Send + Sync>;
