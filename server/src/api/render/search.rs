//! What a search found.

use howdah_proto::v1;

use super::job;
use crate::job::SearchFound;

/// The answer, but for its page token.
pub(crate) fn search_found(found: SearchFound) -> v1::SearchJobsResponse {
    v1::SearchJobsResponse {
        jobs: found.jobs.into_iter().map(job).collect(),
        next_page_token: String::new(),
        looked_at_count: found.looked_at,
        estimated_count: found.estimated,
        skipped_ids: found.skipped,
    }
}
