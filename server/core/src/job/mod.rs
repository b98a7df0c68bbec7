//! The model of a job and its rules without I/O: states, rank, retry and limits.

mod bulk;
mod conditions;
mod cluster_settings;
mod coordination;
mod explanation;
mod job_options;
mod lease;
mod limits;
mod new_job;
pub mod options;
mod outcome;
mod progress;
mod rank;
mod request_key;
mod retry;
pub mod schedule;
mod search;
mod state;
mod statistics;
mod store_number;
mod task_type;
mod type_limits;
mod view;
mod worker;

pub use bulk::{Bulk, BulkArgs, BulkChange, BulkFields, BulkPreview, BulkSpec, BulkState};
pub use cluster_settings::{ClusterSettings, ClusterSettingsChange};
pub use conditions::{Chosen, JobConditions};
pub use coordination::{
    CompletedStage, CoordinationView, DependencyFailure, DependencyResult, HolderFailure, KeyPolicy, StagePayload,
};
pub use explanation::{Before, Explanation, Reason, RelatedJob};
pub use job_options::{JobOptions, PLAIN as PLAIN_OPTIONS, plain_values};
pub use lease::{Lease, LeasedJob, Tokens};
pub use limits::Limits;
pub use new_job::{EnqueueOutcome, Enqueued, NewJob, Start};
pub use outcome::{AttemptError, Outcome, SettleStatus, Settlement};
pub use progress::{Progress, ProgressReport};
pub use rank::{PRIORITY_STEP, Ready, rank_base};
pub use request_key::RequestKey;
pub use retry::{RetryKind, RetryOverride, RetryPolicy};
pub use search::{Having, SearchFound, SearchIndex, SearchPage, SearchPosition, SearchQuery, SearchRange};
pub use state::JobState;
pub use statistics::{AttemptGroups, DurationStats, Started, Stats, StatsPeriod};
pub use store_number::{Closed, IDS as IDS_OF_A_STORE, StoreNumber};
pub use task_type::{TaskTypeName, TypeId};
pub use type_limits::{Braked, TypeLimits};
pub use view::{ErrorGroup, Failure, HistoryMode, JobPage, JobView, Look, PagePosition, TypeSettings, TypeView};
pub use worker::{ListedWorker, WorkerPosition, WorkerView, WorkerWindow};

/// Truncates a text to `limit` bytes at a character boundary, and marks it as truncated. Replaces NUL by U+FFFD, because Postgres
/// cannot store NUL.
pub fn truncated(text: &str, limit: usize) -> String {
    const MARK: &str = "… [truncated]";
    let clean = text.replace('\0', "\u{fffd}");
    if clean.len() <= limit {
        return clean;
    }
    let mut end = limit.saturating_sub(MARK.len());
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &clean[..end])
}

#[cfg(test)]
mod tests {
    use super::truncated;

    #[test]
    fn a_long_text_is_cut_on_a_character_and_marked() {
        let cut = truncated(&"é".repeat(100), 50);
        assert!(cut.len() <= 50);
        assert!(cut.ends_with("… [truncated]"));
    }

    #[test]
    fn a_short_text_stays_but_for_nul() {
        assert_eq!(truncated("a\0b", 10), "a\u{fffd}b");
    }
}
