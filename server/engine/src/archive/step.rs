//! Steps of an archive run, in order. The program may be killed after each of them.

use std::sync::Arc;

/// The last completed step of an archive run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The day is sealed and belongs to this run. Another run takes the day over if this run's heartbeats stop.
    Taken,
    /// A file of the day is in the staging area, which readers ignore. If this run is killed, the next run deletes the
    /// file.
    PartStaged,
    /// All files are in the staging area.
    AllStaged,
    /// The files were read back. Their checksums equal the checksums of the day partition.
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

/// Callback that is called after each step of an archive run.
pub type OnStep = Arc<dyn Fn(Step) + Send + Sync>;
