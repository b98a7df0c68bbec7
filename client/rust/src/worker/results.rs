//! Results of the jobs that a job depended on.

use std::{collections::VecDeque, sync::Arc};

use howdah_proto::v1::{DependencyResult, GetResultsRequest, LeasedJob};

use crate::{Client, Result, call::call};

/// The dependencies of a running job.
#[derive(Debug)]
pub(crate) struct Dependencies {
    id: i64,
    count: usize,
    /// The first dependencies, as the broker sent them with the job.
    sent: Vec<DependencyResult>,
    /// `None` in tests without a broker.
    client: Option<Client>,
}

impl Dependencies {
    /// Takes the dependencies from the broker's message. `None` if the job has none.
    pub(crate) fn take(job: &mut LeasedJob, client: Option<&Client>) -> Option<Arc<Self>> {
        let count = usize::try_from(job.dependency_count).unwrap_or_default();
        let sent = std::mem::take(&mut job.after);
        (count > 0).then(|| Arc::new(Self { id: job.id, count, sent, client: client.cloned() }))
    }
}

/// Returns the results of a job's dependencies, one after the other; see [`Job::results`](crate::Job::results).
#[derive(Debug)]
pub struct Results {
    dependencies: Option<Arc<Dependencies>>,
    /// Number of dependencies that were returned.
    returned: usize,
    page: VecDeque<DependencyResult>,
}

impl Results {
    pub(crate) fn new(dependencies: Option<Arc<Dependencies>>) -> Self {
        Self { dependencies, returned: 0, page: VecDeque::new() }
    }

    /// Returns the next dependency with its result; `None` after the last one. Asks the broker for results that did not come
    /// with the job.
    pub async fn next(&mut self) -> Result<Option<DependencyResult>> {
        let Some(dependencies) = &self.dependencies else { return Ok(None) };
        if self.returned >= dependencies.count {
            return Ok(None);
        }
        if self.page.is_empty() {
            let sent = dependencies.sent.get(self.returned).filter(|sent| !sent.truncated);
            match (sent, &dependencies.client) {
                (Some(sent), _) => self.page.push_back(sent.clone()),
                (None, Some(client)) => self.page = page(client, dependencies.id, self.returned).await?,
                (None, None) => {}
            }
        }
        self.returned += 1;
        Ok(self.page.pop_front())
    }
}

/// Gets a page of results, without the first `start` dependencies of the job.
async fn page(client: &Client, id: i64, start: usize) -> Result<VecDeque<DependencyResult>> {
    let request = GetResultsRequest { id, start: i32::try_from(start).unwrap_or(i32::MAX) };
    Ok(call!(Read client.workers().get_results(request))?.results.into())
}
