//! The calls that read the figures of a view. Each read makes a few small calls. No call makes the broker count jobs, reads
//! more than one page, or takes longer with more waiting jobs.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use howdah_client::{
    Client, Error,
    proto::{GetStatsRequest, JobState, ListJobsRequest, ListTaskTypesRequest, ListWorkersRequest, Stats, StatsPeriod},
};
use jiff::Timestamp;
use tonic::Code;

use super::{
    super::{explain, job, text, type_settings, values},
    figures::{Figures, Flow, Jobs, TypeRow, Types},
    state::View,
};

/// Maximum number of types and workers in a list.
const PAGE: i32 = 1_000;
/// Maximum number of jobs in a list.
const JOBS: i32 = 200;
/// Number of complete minutes that rates are computed from, in addition to the current one.
const RATE_MINUTES: i64 = 4;
/// Number of minutes in the plot of a type.
const PLOT_MINUTES: i64 = 60;

/// Reads the figures of a view.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    /// Time up to which statistics are complete, by the clock of the database.
    complete: Option<Timestamp>,
    /// Reason why the rates of all types are unavailable. Once set, no statistics are requested, because the broker would
    /// refuse, count and log each request.
    no_flow: Option<String>,
}

impl Reader {
    pub fn new(client: Client) -> Self {
        Self { client, complete: None, no_flow: None }
    }

    /// Reads the figures of a view.
    pub async fn read(&mut self, view: &View) -> Result<Figures, Error> {
        match view {
            View::Types => self.types().await.map(Figures::Types),
            View::Workers => self.workers().await,
            View::Jobs { task_type, state } => Ok(Figures::Jobs(Box::new(self.jobs(task_type, *state).await?))),
            View::Job { id, .. } => self.job(*id).await,
        }
    }

    async fn types(&mut self) -> Result<Types, Error> {
        let request = ListTaskTypesRequest { page_size: PAGE, last_count: true, ..ListTaskTypesRequest::default() };
        let page = self.client.task_type_page(request).await?;
        let age = text::duration(page.count_age.as_ref()).unwrap_or_default();
        let counted = Instant::now().checked_sub(age);
        let flows = self.flows().await?;
        // A type that several stores have is listed once for each.
        let mut rows: BTreeMap<&str, TypeRow> = BTreeMap::new();
        for task_type in &page.task_types {
            let row = TypeRow::new(task_type);
            let sum = match rows.remove(&*task_type.name) {
                Some(known) => known.plus(&row),
                None => row,
            };
            rows.insert(&task_type.name, sum);
        }
        let with_flow = |row: TypeRow| {
            let flow = flows.as_ref().map(|flows| flows.get(&row.name).cloned().unwrap_or_default());
            TypeRow { flow, ..row }
        };
        Ok(Types {
            rows: rows.into_values().map(with_flow).collect(),
            has_more: !page.next_page_token.is_empty(),
            counted,
            no_flow: self.no_flow.clone(),
        })
    }

    /// Throughput of each task type in the last minutes, in all stores; `None` if the statistics are unavailable. Wait and run
    /// times come from the first store that has the type, because percentiles cannot be added.
    async fn flows(&mut self) -> Result<Option<HashMap<String, Flow>>, Error> {
        if self.no_flow.is_some() {
            return Ok(None);
        }
        let found = match self.stats(String::new(), RATE_MINUTES).await {
            Ok(found) => found,
            Err(error) if error.code() == Code::PermissionDenied => {
                self.no_flow = Some("rates need the scope read:*".into());
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Some((stats, since, complete)) = found else { return Ok(None) };
        // Divides by at least a minute, so that a few jobs in the first seconds of statistics do not look like a burst.
        let seconds = complete.duration_since(since).as_secs_f64().max(60.0);
        let mut flows: HashMap<String, Flow> = HashMap::new();
        for stats in stats {
            match flows.get_mut(&stats.task_type) {
                Some(flow) => {
                    flow.stats.enqueued_count += stats.enqueued_count;
                    flow.stats.succeeded_count += stats.succeeded_count;
                    flow.stats.failed_count += stats.failed_count;
                }
                None => drop(flows.insert(stats.task_type.clone(), Flow { stats, seconds })),
            }
        }
        Ok(Some(flows))
    }

    /// Returns the statistics of the current minute and the `minutes` before it, with the start and end of this range. `None`
    /// before the first statistics.
    async fn stats(
        &mut self,
        task_type: String,
        minutes: i64,
    ) -> Result<Option<(Vec<Stats>, Timestamp, Timestamp)>, Error> {
        // Only the first request uses this machine's clock, which may be wrong. Later requests use the database's clock.
        let now = self.complete.unwrap_or_else(Timestamp::now).as_second();
        let since = Timestamp::from_second(now - now.rem_euclid(60) - minutes * 60).unwrap_or_default();
        let request = GetStatsRequest {
            task_type,
            period: StatsPeriod::Minute.into(),
            since: Some(values::wire(since)),
            limit: PAGE,
            ..GetStatsRequest::default()
        };
        let answer = self.client.get_stats(request).await?;
        self.complete = text::timestamp(answer.complete_time.as_ref());
        Ok(self.complete.map(|complete| (answer.stats, since, complete)))
    }

    async fn workers(&self) -> Result<Figures, Error> {
        let request = ListWorkersRequest { page_size: PAGE, ..ListWorkersRequest::default() };
        let page = self.client.worker_page(request).await?;
        Ok(Figures::Workers(page.workers, !page.next_page_token.is_empty()))
    }

    async fn jobs(&mut self, task_type: &str, state: JobState) -> Result<Jobs, Error> {
        let types = ListTaskTypesRequest { task_type: task_type.into(), last_count: true, ..Default::default() };
        let found = self.client.find_task_types(types).await?;
        let request = ListJobsRequest {
            task_type: task_type.into(),
            state: state as i32,
            page_size: JOBS,
            ..ListJobsRequest::default()
        };
        let page = self.client.list_jobs(request).await?;
        let minutes = match self.stats(task_type.into(), PLOT_MINUTES - 1).await? {
            Some((stats, since, _)) => by_minute(&stats, since),
            None => Vec::new(),
        };
        Ok(Jobs {
            row: TypeRow {
                name: task_type.into(),
                ..found.iter().map(TypeRow::new).reduce(|all, other| all.plus(&other)).unwrap_or_default()
            },
            state,
            settings: type_settings::settings_of_stores(&found),
            has_more: !page.next_page_token.is_empty(),
            rows: page.jobs,
            minutes,
        })
    }

    async fn job(&self, id: i64) -> Result<Figures, Error> {
        let (Some(explained), Some(job)) = (self.client.explain_job(id).await?, self.client.get_job(id).await?) else {
            return Ok(Figures::Job(id, None));
        };
        let mut lines: Vec<String> = explain::describe(&explained).lines().map(str::to_owned).collect();
        lines.push(String::new());
        // Skips the first line (id, type and state), which is already the first line of the explanation.
        lines.extend(job::describe(&job, Timestamp::now()).lines().skip(1).map(str::to_owned));
        Ok(Figures::Job(id, Some(lines)))
    }
}

/// Returns the number of jobs that succeeded in each of 60 minutes, beginning at `since`.
fn by_minute(stats: &[Stats], since: Timestamp) -> Vec<u64> {
    let mut minutes = vec![0; PLOT_MINUTES as usize];
    for stats in stats {
        let start = text::timestamp(stats.start_time.as_ref()).unwrap_or_default();
        let index = start.duration_since(since).as_secs() / 60;
        if let Some(minute) = usize::try_from(index).ok().and_then(|index| minutes.get_mut(index)) {
            *minute += u64::try_from(stats.succeeded_count).unwrap_or_default();
        }
    }
    minutes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_in_which_nothing_happened_is_shown_as_nothing() {
        let since = Timestamp::from_second(600).unwrap();
        let stats = |seconds, succeeded_count| Stats {
            start_time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            succeeded_count,
            ..Stats::default()
        };
        // Two stores have statistics of the third minute.
        let all = [stats(0, 9), stats(600, 1), stats(720, 3), stats(720, 4), stats(99_999, 9)];
        let minutes = by_minute(&all, since);
        assert_eq!((minutes.len(), &minutes[..4]), (60, &[1, 0, 7, 0][..]));
    }
}
