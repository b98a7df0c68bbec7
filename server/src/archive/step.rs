//! The steps of a run, in their order. After each of them the program may end without a word.

use std::sync::Arc;

/// What a run has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has its day, which is sealed. The next run takes it when this one has not been heard of for a while.
    Taken,
    /// A file lies in the staging area, where no reader looks. The next run deletes it.
    PartStaged,
    /// All files lie there.
    AllStaged,
    /// They were read back, and hold what the partition has.
    Compared,
    /// The database has the manifest. From here the next run goes on, and writes nothing again.
    Noted,
    /// The files have their names.
    Named,
    /// The manifest is written.
    ManifestWritten,
    /// The database knows that the day is archived: it may be dropped.
    Archived,
}

impl Step {
    /// All of them.
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

/// Told of each step.
pub type OnStep = Arc<dyn Fn(Step) + Send + Sync>;
