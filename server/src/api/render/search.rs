//! Search results.

use howdah_proto::v1;

use super::job;
use crate::job::SearchFound;

/// Converts a search result, without the page token.
pub(crate) fn search_found(found: SearchFound) -> v1::SearchJobsResponse {
    v1::SearchJobsResponse {
        jobs: found.jobs.into_iter().map(job).collect(),
        next_page_token: String::new(),
        scanned_count: found.scanned_count,
        estimated_count: found.estimated,
        skipped_ids: found.skipped,
    }
}
