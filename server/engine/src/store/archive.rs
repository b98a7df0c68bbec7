//! Statements of an archive run, which copies finished jobs to archive files, one day partition at a time. The run
//! takes a day (reserves it for a limited time), reads its jobs page by page, and records the result.

use std::time::Duration;

use howdah_archive::{Job, Sums};
use howdah_core::job::{CoordinationView, TypeId};
use tokio_postgres::{
    Row,
    types::{FromSql, Json, Type},
};

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::Params,
    rows::{FromRow as _, from_row},
};

/// Timeout of reserving a day for an archive run. It is long, because the jobs of the day may first have to move from
/// the default partition to the day partition.
const MOVE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Timeout of reading one page of jobs, or the checksums of one range of blocks.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Forces the planner to use the index on ids, even if an old partition has wrong statistics. Otherwise each page could
/// scan the whole partition.
pub(super) const BY_ID: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; \
                     SET LOCAL max_parallel_workers_per_gather = 0";
/// A day that an archive run has reserved.
#[derive(Clone, Debug)]
pub struct TakenDay {
    /// Whether the day was archived before. Then the run writes only the jobs that arrived after that.
    pub late: bool,
    /// Whether an earlier run has written and verified the files. Then this run only renames them to their final names.
    pub publishing: bool,
    /// Number of times that the day was archived, including this run. A day is archived again for jobs that arrived
    /// late.
    pub generation: i32,
    /// URL of the archive.
    pub url: String,
    /// JSON manifest of the archive files, or of files that do not have their final names yet. Empty if no file was
    /// written yet.
    pub manifest: String,
    /// JSON manifest of the replacement files of an interrupted forget operation (early deletion of finished jobs). The
    /// run finishes that operation and does nothing else. Empty if no forget operation was interrupted.
    pub rewrite: String,
}

from_row! {
    TakenDay(row) {
        late: row.get::<_, &str>("state") == "late",
        publishing: row.get::<_, &str>("state") == "publishing",
        generation, url, manifest, rewrite,
    }
}

/// The archive state of a day, from the database.
#[derive(Clone, Debug)]
pub struct ArchivedDay {
    /// UTC day, such as `2026-11-22`.
    pub day: String,
    /// State of the day: `sealed` (first archiving), `late` (late jobs are written), `publishing` (files get their
    /// final names), `archived`, or `dropped` (the day partition is dropped). `rewriting` while a forget operation
    /// (early deletion of finished jobs) replaces the files.
    pub state: String,
    /// Number of times that the day was archived: once, and again for jobs that arrived late.
    pub generation: i32,
    /// URL of the archive. Empty if the day has none yet.
    pub url: String,
    /// Number of archived jobs.
    pub jobs: i64,
    /// Number of archive files.
    pub files: i32,
    /// Total size of the files in bytes.
    pub bytes: i64,
    /// JSON manifest of the archive files. Empty before the day is archived for the first time.
    pub manifest: String,
    /// Broker or program that archived the day.
    pub archived_by: String,
    /// Error of the last archive run of the day. Empty if that run succeeded.
    pub error: String,
    /// Number of jobs that arrived after the day was archived and are not archived yet.
    pub late: i64,
}

from_row! {
    ArchivedDay(row) { day, state, generation, url, jobs, files, bytes, manifest, archived_by, error, late }
}

/// A file of archived jobs.
#[derive(Clone, Debug)]
pub struct ArchivedFile {
    /// UTC day of the jobs, such as `2026-11-22`.
    pub day: String,
    /// URL of the archive.
    pub url: String,
    /// Path of the file, relative to the archive URL.
    pub path: String,
    /// File size in bytes.
    pub bytes: u64,
}

from_row! {
    ArchivedFile(row) { day, url, path, bytes: row.get::<_, i64>("bytes").max(0) as u64 }
}

/// A file of archived jobs of one task type.
#[derive(Clone, Debug)]
pub struct TypeFile {
    /// The file.
    pub file: ArchivedFile,
    /// Day of the jobs, as the number of days since 0001-01-01.
    pub day_number: i32,
    /// Number of jobs in the file.
    pub jobs: i64,
}

from_row! { TypeFile(row) { file: ArchivedFile::from_row(row), day_number, jobs } }

/// Inputs for the pace of an archive run: slow while Postgres is busy, fast when the deadline is near.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLoad {
    /// Number of rows that all clients have changed in all databases of the Postgres server (`pg_stat_database`).
    pub changed_rows: i64,
    /// Estimated number of jobs of the day. 0 if the day partition has no planner statistics yet.
    pub jobs: f64,
    /// Seconds until the day should be archived. Negative if that time has passed.
    pub seconds_left: f64,
}

from_row! { ArchiveLoad(row) { changed_rows, jobs, seconds_left } }

/// A page of finished jobs, ordered by id.
#[derive(Debug, Default)]
pub struct ArchivePage {
    pub jobs: Vec<FinishedJob>,
    /// Approximate size of the jobs in memory, in bytes.
    pub bytes: usize,
}

/// A finished job: a row of the table `history`.
#[derive(Debug)]
pub struct FinishedJob(Row);

/// A `timestamptz` value, as microseconds since 1970.
struct Micros(i64);

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        /// Microseconds from 1970 to 2000, the epoch of Postgres timestamps.
        const SINCE_1970: i64 = 946_684_800_000_000;
        Ok(Self(i64::from_be_bytes(raw.try_into()?).saturating_add(SINCE_1970)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

impl FinishedJob {
    /// Wraps a row that has the columns of `archive_page.sql`, in the same order.
    pub(super) fn new(row: Row) -> Self {
        Self(row)
    }

    pub fn id(&self) -> i64 {
        self.0.get(0)
    }

    pub fn type_id(&self) -> TypeId {
        self.0.get(1)
    }

    /// Job payload, if the query selected payloads.
    pub fn payload(&self) -> Option<&[u8]> {
        self.0.get(15)
    }

    /// Converts the row to a job of the archive. Columns are read by position, because a lookup by name is a linear
    /// search, which would run a dozen times for each of millions of jobs.
    pub fn as_job<'a>(&'a self, task_type: &'a str) -> Job<'a> {
        let row = &self.0;
        Job {
            id: row.get(0),
            task_type,
            created: row.get::<_, Micros>(2).0,
            leased_at: row.get::<_, Option<Micros>>(3).map(|time| time.0),
            finished: row.get::<_, Micros>(4).0,
            outcome: row.get(5),
            attempt: row.get::<_, i16>(6).into(),
            max_attempts: row.get::<_, i16>(7).into(),
            priority: row.get::<_, i16>(8).into(),
            key: row.get(9),
            limit_key: row.get(10),
            fair_key: row.get(11),
            headers: row.get(12),
            options: row.get(13),
            failures: row.get(14),
            payload: row.get(15),
            payload_bytes: row.get(16),
            payload_sha256: None,
            result: row.get(17),
        }
    }
}

impl Store {
    /// Returns days that ended at least `minutes` ago and have unarchived jobs or an interrupted forget operation
    /// (early deletion of finished jobs), oldest first. `with_today` adds the current day.
    pub async fn days_to_archive(&self, minutes: i32, with_today: bool) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::DaysToArchive, &[&minutes, &with_today]).await
    }

    /// Reserves a day for an archive run, for the time `held`. `None` if another run has reserved the day, or if the
    /// day has no unarchived jobs.
    pub async fn take_day(
        &self,
        day: &str,
        run: &str,
        who: &str,
        held: Duration,
        url: &str,
    ) -> Result<Option<TakenDay>, StoreError> {
        let held = held.as_millis() as i64;
        let rows = self.query_within(MOVE_TIMEOUT, Statement::TakeDay, &[&day, &run, &who, &held, &url]).await?;
        Ok(rows.first().map(TakenDay::from_row))
    }

    /// Extends an archive run's reservation of a day until `held` from now. False if another run has reserved the day
    /// since.
    pub async fn hold_day(&self, day: &str, run: &str, held: Duration) -> Result<bool, StoreError> {
        self.general().await?.changes(Statement::HoldDay, &[&day, &run, &(held.as_millis() as i64)]).await
    }

    /// Records the manifest of the written and verified archive files, before they get their final names. False if
    /// another run has reserved the day since.
    pub async fn publish_day(&self, day: &str, run: &str, manifest: &str) -> Result<bool, StoreError> {
        self.general().await?.changes(Statement::PublishDay, &[&day, &run, &manifest]).await
    }

    /// Records that an archive run has archived a day. False if another run has reserved the day since.
    pub async fn finish_day(
        &self,
        day: &str,
        run: &str,
        who: &str,
        manifest: (&Sums, usize, u64, &str),
    ) -> Result<bool, StoreError> {
        let (sums, files, bytes, text) = manifest;
        let params: Params<'_> = &[&day, &run, &who, &sums.rows, &(files as i32), &(bytes as i64), &text];
        self.general().await?.changes(Statement::ArchivedDay, params).await
    }

    /// Records why an archive run failed, and ends its reservation of the day, so that the next run can take the day.
    pub async fn record_day_error(&self, day: &str, run: &str, why: &str) -> Result<(), StoreError> {
        // Errors of other programs may contain NUL, which Postgres rejects in text.
        let why = why.replace('\0', "");
        self.general().await?.run(Statement::FailedDay, &[&day, &run, &why]).await
    }

    /// Returns archived days older than `days_kept` whose partitions are dropped, oldest first.
    pub async fn expired_days(&self, days_kept: i32) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::ExpiredDays, &[&days_kept]).await
    }

    /// Reserves a day whose archive retention has ended, and excludes its files from job lookups. `None` if another run
    /// has reserved the day, or if new jobs have arrived in it. Returns the archive URL, if the day has files, and the
    /// JSON manifest, which may be empty.
    pub async fn take_expired_day(
        &self,
        day: &str,
        days_kept: i32,
        run: &str,
        who: &str,
        held: Duration,
    ) -> Result<Option<(Option<String>, String)>, StoreError> {
        let held = held.as_millis() as i64;
        let params: Params<'_> = &[&day, &days_kept, &run, &who, &held];
        self.general().await?.find(Statement::TakeExpiredDay, params).await
    }

    /// Deletes the row of an archived day whose archive files were deleted at the end of their retention. False if
    /// another run has reserved the day since.
    pub async fn delete_day(&self, day: &str, run: &str) -> Result<bool, StoreError> {
        self.general().await?.changes(Statement::ExpiredDay, &[&day, &run]).await
    }

    /// Reads at most `limit` jobs of a day with ids above `after`. An empty page means the end. If `late` is set, reads
    /// only the late jobs that the archiving with this number (`TakenDay::generation`) writes.
    pub async fn archive_page(
        &self,
        day: &str,
        late: Option<i32>,
        after: i64,
        limit: i32,
        payloads: bool,
    ) -> Result<ArchivePage, StoreError> {
        let mut transaction = self.begin_general().await?;
        transaction.set_timeout(PAGE_TIMEOUT);
        transaction.batch(BY_ID).await?;
        let params: Params<'_> = &[&day, &after, &limit, &payloads, &late];
        let rows = match late {
            None => transaction.query(Statement::ArchivePage, &params[..4]).await?,
            Some(_) => transaction.query(Statement::ArchiveLatePage, params).await?,
        };
        transaction.set_timeout(self.timeout);
        transaction.commit().await?;
        let bytes = rows.iter().map(Row::raw_size_bytes).sum();
        Ok(ArchivePage { jobs: rows.into_iter().map(FinishedJob).collect(), bytes })
    }

    /// Returns the checksums of some blocks of a day partition, for the comparison with the archive files, and the
    /// block to continue with.
    pub async fn sums_of_day(
        &self,
        day: &str,
        late: Option<i32>,
        from: i64,
        blocks: i64,
    ) -> Result<(Sums, Option<i64>), StoreError> {
        let mut connection = self.general().await?;
        connection.set_timeout(PAGE_TIMEOUT);
        let read = connection.query_one(Statement::SumsOfDay, &[&day, &late, &from, &blocks]).await;
        connection.set_timeout(self.timeout);
        let row = read?;
        let number = |name: &str| row.get::<_, &str>(name).parse::<i128>();
        let wrong = |_| StoreError::Refused("bug: a sum over ids is no whole number".into());
        let sums = Sums {
            rows: row.get("jobs"),
            ids: number("ids").map_err(wrong)?,
            lengths: number("lengths").map_err(wrong)?,
        };
        Ok((sums, row.get("next_block")))
    }

    /// Returns the inputs for the pace of an archive run. `within` is the time, counted from the end of the day, in
    /// which the day should be archived.
    pub async fn archive_load(&self, day: &str, within: Duration) -> Result<ArchiveLoad, StoreError> {
        let within = within.as_millis() as i64;
        self.general().await?.one(Statement::ArchiveLoad, &[&day, &within]).await
    }

    /// Returns the archive state of days, newest first.
    pub async fn archived_days(&self, at_most: i32) -> Result<Vec<ArchivedDay>, StoreError> {
        self.general().await?.list(Statement::ArchivedDays, &[&at_most]).await
    }

    /// Returns archive files that may contain the job with this id, latest day first.
    pub async fn find_archived(&self, id: i64, at_most: i32) -> Result<Vec<ArchivedFile>, StoreError> {
        self.general().await?.list(Statement::FindArchived, &[&id, &at_most]).await
    }

    /// Returns archive files with jobs of a task type, of this day (the number of days since 0001-01-01) and earlier
    /// ones, latest day first: at least `at_least` if so many exist, and all files of each day.
    pub async fn archived_of_type(
        &self,
        task_type: &str,
        last_day: i32,
        at_least: i32,
    ) -> Result<Vec<TypeFile>, StoreError> {
        self.general().await?.list(Statement::ArchivedOfType, &[&task_type, &last_day, &at_least]).await
    }

    /// Returns the number of archived jobs of a task type.
    pub async fn count_archived(&self, task_type: &str) -> Result<i64, StoreError> {
        self.general().await?.one(Statement::CountArchived, &[&task_type]).await
    }

    /// Returns the stages and dependencies, and the original task type, from the options of an archived job. Task type
    /// ids are replaced by names.
    pub async fn archived_options(
        &self,
        id: i64,
        options: &str,
    ) -> Result<(Option<Box<CoordinationView>>, Option<String>), StoreError> {
        let row = self.general().await?.query_one(Statement::ArchivedOptions, &[&id, &options]).await?;
        // A role with SQL access may have written an invalid value, which is read as absent.
        let coordination: Option<Json<_>> = row.try_get("coordination").unwrap_or_default();
        Ok((coordination.map(|Json(view)| view), row.get("original_task_type")))
    }

    /// Returns the names of all task types.
    pub async fn type_names(&self) -> Result<Vec<(TypeId, String)>, StoreError> {
        self.general().await?.list(Statement::TypeNames, &[]).await
    }

    /// Returns the URL to which brokers must archive finished jobs before they drop a day. `None` if archiving is off.
    pub async fn archive_target(&self) -> Result<Option<String>, StoreError> {
        self.general().await?.find(Statement::ArchiveTarget, &[]).await
    }

    /// Turns archiving off: days are dropped at the end of their retention even if they are not archived. Returns the
    /// previous URL.
    pub async fn clear_archive_target(&self, by: &Actor) -> Result<Option<String>, StoreError> {
        let mut transaction = self.begin_general().await?;
        let urls: Vec<String> = transaction.list(Statement::ClearArchiveTarget, &[]).await?;
        transaction.record(by, &Change::of_ids(&urls)).await?;
        transaction.commit().await?;
        Ok(urls.into_iter().next())
    }
}
