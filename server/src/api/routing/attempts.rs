//! Jobs of a type with the most attempts, merged from several stores.

use std::cmp::Reverse;

use howdah_proto::v1;
use prost::Message as _;

use super::task_types::Each;
use crate::{
    api::check::job_query::{MAX_PAGE, PAGE},
    operate::jobs::LIST_BYTES,
};

impl Each for v1::ListJobsResponse {
    fn add(&mut self, other: Self) {
        self.jobs.extend(other.jobs);
        self.partial |= other.partial;
        self.scanned_count += other.scanned_count;
        self.has_more |= other.has_more;
    }
}

/// Merges the pages of the stores into one page, which must not exceed the maximum size of a response.
pub(super) fn put_together(answer: &mut v1::ListJobsResponse, page_size: i32) {
    answer.jobs.sort_by_key(|job| (Reverse(job.attempt), job.id));
    let requested_size = usize::try_from(page_size).unwrap_or_default();
    let (most, mut bytes) = (if requested_size == 0 { PAGE } else { requested_size.min(MAX_PAGE) }, 0);
    let mut fits = |job: &v1::Job| {
        bytes += job.encoded_len() as i64;
        bytes < LIST_BYTES
    };
    let fitting = answer.jobs.iter().take(most).take_while(|job| fits(job)).count().max(1);
    answer.has_more |= answer.jobs.len() > fitting;
    answer.jobs.truncate(fitting);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: i64, attempt: u32, bytes: usize) -> v1::Job {
        v1::Job { id, attempt, payload: vec![0; bytes].into(), ..v1::Job::default() }
    }

    #[test]
    fn the_most_of_all_stores_come_first_as_many_as_fit() {
        let mut answer = v1::ListJobsResponse { jobs: vec![job(1, 5, 0), job(2, 2, 0)], ..Default::default() };
        let other = v1::ListJobsResponse {
            jobs: vec![job(11, 7, 0), job(12, 2, 0)],
            partial: true,
            scanned_count: 3,
            ..Default::default()
        };
        answer.add(other);
        let ids = |answer: &v1::ListJobsResponse| answer.jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        put_together(&mut answer, 0);
        assert_eq!(ids(&answer), [11, 1, 2, 12]);
        assert_eq!((answer.partial, answer.scanned_count, answer.has_more), (true, 3, false));
        put_together(&mut answer, 3);
        assert_eq!((ids(&answer), answer.has_more), (vec![11, 1, 2], true));
    }

    #[test]
    fn an_answer_of_several_stores_is_not_larger_than_one_of_one() {
        let jobs = (1..=4).map(|id| job(id, 1, 1 << 20)).collect();
        let mut answer = v1::ListJobsResponse { jobs, ..Default::default() };
        put_together(&mut answer, 100);
        assert_eq!((answer.jobs.len(), answer.has_more), (2, true));
        let mut large = v1::ListJobsResponse { jobs: vec![job(1, 1, 4 << 20)], ..Default::default() };
        put_together(&mut large, 100);
        assert_eq!((large.jobs.len(), large.has_more), (1, false));
    }
}
