//! Results of the jobs that a job depended on. Only jobs with dependencies cost a statement.

use bytes::Bytes;
use howdah_core::job::{DependencyResult, JobOptions, JobState, LeasedJob};
use tokio_postgres::Row;

use super::{
    ClaimRequest, Connection, Statement, Store, StoreError,
    rows::{from_row, json},
};

/// Maximum size of a result that is sent with a job, in bytes.
pub const SENT_RESULT: i64 = 64 << 10;
/// Maximum size of the dependencies and results that are sent with a job, in bytes.
pub const SENT_RESULTS: i64 = 1 << 20;
/// Maximum size of the dependencies and results of all jobs of a claim, in bytes.
const CLAIM_RESULTS: i64 = 8 << 20;
/// Memory of a dependency without its result, in bytes.
const ENTRY: i64 = 64;
/// Maximum size of the results in a page of `GetResults`, in bytes. The first result may be larger.
const PAGE_RESULTS: i64 = 3 << 20;

/// A job that has dependencies.
#[derive(Debug)]
pub struct Dependent {
    /// Name of its task type.
    pub task_type: String,
    /// Options of the job, which list its dependencies.
    pub options: Box<JobOptions>,
}

// Invalid options, which a role with SQL access may have written, are read as empty.
from_row! { Dependent(row) { task_type, options: json(row, "options").unwrap_or_default() } }

/// Columns of the statement `DependencyResults`.
#[derive(Default)]
struct Asked {
    /// Number of the job, from 1, for each dependency.
    jobs: Vec<i32>,
    ids: Vec<i64>,
    /// Maximum bytes of results, for each job.
    bytes: Vec<i64>,
}

impl Store {
    /// Adds the dependencies and their results to claimed jobs, as far as they fit into the claim, and into the windows of the
    /// claim's workers. If they cannot be read, the jobs are delivered without them: their workers know the number of
    /// dependencies, and call `GetResults`.
    pub(super) async fn add_dependencies(&self, jobs: &mut [LeasedJob], request: &ClaimRequest) {
        if !jobs.iter().any(has_dependencies) {
            return;
        }
        let weight: u64 = jobs.iter().map(|job| job.weight).sum();
        let mut left = request.bytes.min(CLAIM_RESULTS).saturating_sub_unsigned(weight).max(0);
        let mut asked = Asked::default();
        let mut listed = Vec::new();
        for (index, job) in jobs.iter().enumerate().filter(|(_, job)| has_dependencies(job)) {
            let want = request.wants.iter().find(|want| want.type_id == job.type_id);
            let room = want.map_or(0, |want| want.largest.saturating_sub_unsigned(job.weight));
            let room = room.min(left).clamp(0, SENT_RESULTS);
            let after = job.options.as_ref().map_or(&[][..], |options| &options.after);
            let count = after.len().min((room / ENTRY) as usize);
            let number = asked.bytes.len() as i32 + 1;
            asked.jobs.extend(std::iter::repeat_n(number, count));
            asked.ids.extend(&after[..count]);
            asked.bytes.push(room - count as i64 * ENTRY);
            left -= count as i64 * ENTRY;
            listed.push((index, count));
        }
        let read = async { self.hot().await?.dependency_results(&asked, left, SENT_RESULT).await };
        let mut results = match read.await {
            Ok(results) => results.into_iter(),
            Err(error) => return self.log_failure("reading the results of dependencies", &error),
        };
        for (index, count) in listed {
            let job = &mut jobs[index];
            job.dependencies = results.by_ref().take(count).collect();
            let bytes: usize = job.dependencies.iter().map(|dependency| ENTRY as usize + dependency.result.len()).sum();
            job.weight += bytes as u64;
        }
    }

    /// Returns the task type and the options of a job in any state.
    pub async fn dependent(&self, id: i64) -> Result<Option<Dependent>, StoreError> {
        self.general().await?.find(Statement::DependenciesOf, &[&id]).await
    }

    /// Returns a page of dependencies with their results: as many of the given jobs as fit, at least one.
    pub async fn results_of(&self, ids: &[i64]) -> Result<Vec<DependencyResult>, StoreError> {
        let asked = |ids: &[i64], bytes| Asked { jobs: vec![1; ids.len()], ids: ids.to_vec(), bytes: vec![bytes] };
        let mut connection = self.general().await?;
        let mut results = connection.dependency_results(&asked(ids, PAGE_RESULTS), i64::MAX, i64::MAX).await?;
        match results.iter().position(|result| result.truncated) {
            // The first result alone is larger than a page.
            Some(0) => connection.dependency_results(&asked(&ids[..1], i64::MAX), i64::MAX, i64::MAX).await,
            fitting => {
                results.truncate(fitting.unwrap_or(results.len()));
                Ok(results)
            }
        }
    }
}

impl Connection {
    /// Reads the dependencies with their results, in order: at most `total` bytes of results, each of at most `each` bytes.
    async fn dependency_results(
        &mut self,
        asked: &Asked,
        total: i64,
        each: i64,
    ) -> Result<Vec<DependencyResult>, StoreError> {
        let params = [&asked.jobs as _, &asked.ids as _, &asked.bytes as _, &total as _, &each as _];
        let rows = self.query(Statement::DependencyResults, &params).await?;
        Ok(asked.ids.iter().zip(&rows).map(|(id, row)| dependency(*id, row)).collect())
    }
}

fn dependency(id: i64, row: &Row) -> DependencyResult {
    DependencyResult {
        id,
        state: row.get::<_, Option<&str>>("state").and_then(JobState::from_name),
        result: row.get::<_, Option<&[u8]>>("result").map(Bytes::copy_from_slice).unwrap_or_default(),
        truncated: row.get("truncated"),
    }
}

fn has_dependencies(job: &LeasedJob) -> bool {
    job.options.as_ref().is_some_and(|options| !options.after.is_empty())
}
