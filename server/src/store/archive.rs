//! Days of history that are archived: taken by a run, read page by page, noted when they are done.

use std::time::Duration;

use howdah_archive::{Job, Sums};
use tokio_postgres::{
    Row,
    types::{FromSql, Json, Type},
};

use super::{Actor, Statement, Store, StoreError, audit::Change, connection::Params};
use crate::job::{CoordinationView, TypeId};

/// How long a page, or the sums of some blocks, may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Leaves only the index on ids, whatever the statistics of an old partition say: a page must never read all of it.
pub(super) const BY_ID: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; \
                     SET LOCAL max_parallel_workers_per_gather = 0";
/// A day that a run has taken.
#[derive(Clone, Debug)]
pub struct TakenDay {
    /// Only jobs that came after the day was written are to be written.
    pub late: bool,
    /// The files are written and compared: they only need their names.
    pub publishing: bool,
    /// The number of this writing of the day, from 1.
    pub generation: i32,
    /// Where it is archived.
    pub url: String,
    /// What is archived, or is to be published, as JSON; empty: nothing yet.
    pub manifest: String,
    /// What a forget that was killed has decided on, as JSON; empty: nothing. It is finished first, and nothing else done.
    pub rewrite: String,
}

/// A day as the database knows it.
#[derive(Clone, Debug)]
pub struct ArchivedDay {
    /// As `2026-11-22`.
    pub day: String,
    /// `sealed`, `late`, `publishing`, `archived` or `dropped`; `rewriting`: a forget has begun to replace its files.
    pub state: String,
    /// How often jobs of this day were written.
    pub generation: i32,
    /// Where it is archived.
    pub url: String,
    /// Jobs.
    pub jobs: i64,
    /// Files.
    pub files: i32,
    /// Bytes of the files.
    pub bytes: i64,
    /// The manifest as JSON; empty: none yet.
    pub manifest: String,
    /// The broker or program that did it.
    pub archived_by: String,
    /// Why the last run failed; empty: it did not.
    pub error: String,
    /// Jobs that came since, and are not written yet.
    pub late: i64,
}

/// A file that has archived jobs.
#[derive(Clone, Debug)]
pub struct ArchivedFile {
    /// The day of its jobs, as `2026-11-22`.
    pub day: String,
    /// The URL of the archive.
    pub url: String,
    /// Its name in the archive.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// What a run that archives a day goes by.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLoad {
    /// Rows that all programs have changed so far, in all databases of the server.
    pub changed_rows: i64,
    /// Jobs of the day, about; 0: nobody has counted them.
    pub jobs: f64,
    /// Seconds until the day should be archived.
    pub seconds_left: f64,
}

/// Jobs in the order of their ids.
#[derive(Debug, Default)]
pub struct ArchivePage {
    /// The jobs.
    pub jobs: Vec<FinishedJob>,
    /// Their size in memory, about.
    pub bytes: usize,
}

/// A row of history.
#[derive(Debug)]
pub struct FinishedJob(Row);

/// Microseconds since 1970.
struct Micros(i64);

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        /// Postgres counts from 2000.
        const SINCE_1970: i64 = 946_684_800_000_000;
        Ok(Self(i64::from_be_bytes(raw.try_into()?).saturating_add(SINCE_1970)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

impl FinishedJob {
    /// A row with the columns of `archive_page.sql`, in their order.
    pub(super) fn of(row: Row) -> Self {
        Self(row)
    }

    /// Its id.
    pub fn id(&self) -> i64 {
        self.0.get(0)
    }

    /// Its type.
    pub fn type_id(&self) -> TypeId {
        self.0.get(1)
    }

    /// Its payload, if that was asked for.
    pub fn payload(&self) -> Option<&[u8]> {
        self.0.get(15)
    }

    /// As the archive has it. Columns go by their places: names are searched for, a dozen times for each of millions of jobs.
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
    /// Days that are over for these minutes and have jobs that are not archived, the oldest first.
    pub async fn days_to_archive(&self, minutes: i32, with_today: bool) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::DaysToArchive, &[&minutes, &with_today]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Takes a day; `None`: another run has it, or it is done.
    pub async fn take_day(
        &self,
        day: &str,
        run: &str,
        who: &str,
        held: Duration,
        url: &str,
    ) -> Result<Option<TakenDay>, StoreError> {
        let held = held.as_millis() as i64;
        let rows = self.general().await?.query(Statement::TakeDay, &[&day, &run, &who, &held, &url]).await?;
        Ok(rows.first().map(|row| {
            let state: &str = row.get("state");
            TakenDay {
                late: state == "late",
                publishing: state == "publishing",
                generation: row.get("generation"),
                url: row.get("url"),
                manifest: row.get("manifest"),
                rewrite: row.get("rewrite"),
            }
        }))
    }

    /// Says that a run goes on; false: another run has its day.
    pub async fn hold_day(&self, day: &str, run: &str, held: Duration) -> Result<bool, StoreError> {
        self.of_run(Statement::HoldDay, &[&day, &run, &(held.as_millis() as i64)]).await
    }

    /// Notes what is to be published; false: another run has the day.
    pub async fn publish_day(&self, day: &str, run: &str, manifest: &str) -> Result<bool, StoreError> {
        self.of_run(Statement::PublishDay, &[&day, &run, &manifest]).await
    }

    /// Notes that a day is archived; false: another run has the day.
    pub async fn archived_day(
        &self,
        day: &str,
        run: &str,
        who: &str,
        manifest: (&Sums, usize, u64, &str),
    ) -> Result<bool, StoreError> {
        let (sums, files, bytes, text) = manifest;
        let params: Params<'_> = &[&day, &run, &who, &sums.rows, &(files as i32), &(bytes as i64), &text];
        self.of_run(Statement::ArchivedDay, params).await
    }

    /// Notes why a run failed.
    pub async fn failed_day(&self, day: &str, run: &str, why: &str) -> Result<(), StoreError> {
        // A text of somebody else may have what Postgres refuses.
        let why = why.replace('\0', "");
        self.general().await?.query(Statement::FailedDay, &[&day, &run, &why]).await.map(drop)
    }

    /// Days that are older than this, and whose partitions are gone, the oldest first.
    pub async fn expired_days(&self, days_kept: i32) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::ExpiredDays, &[&days_kept]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Takes such a day, whose files nobody looks at from now on; `None`: another run has it. Returns where its files are, if it
    /// has any, and its manifest as JSON, which may be empty.
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
        let rows = self.general().await?.query(Statement::TakeExpiredDay, params).await?;
        Ok(rows.first().map(|row| (row.get("url"), row.get("manifest"))))
    }

    /// Forgets it; false: another run has it.
    pub async fn expired_day(&self, day: &str, run: &str) -> Result<bool, StoreError> {
        self.of_run(Statement::ExpiredDay, &[&day, &run]).await
    }

    async fn of_run(&self, statement: Statement, params: Params<'_>) -> Result<bool, StoreError> {
        Ok(!self.general().await?.query(statement, params).await?.is_empty())
    }

    /// Reads jobs of a day after an id; none: there are no more. Of a generation: those that came late.
    pub async fn archive_page(
        &self,
        day: &str,
        late: Option<i32>,
        after: i64,
        limit: i32,
        payloads: bool,
    ) -> Result<ArchivePage, StoreError> {
        let mut transaction = self.begin_general().await?;
        transaction.connection().set_timeout(PAGE_TIMEOUT);
        transaction.connection().batch(BY_ID).await?;
        let read = match &late {
            None => transaction.query(Statement::ArchivePage, &[&day, &after, &limit, &payloads]).await,
            Some(generation) => {
                transaction.query(Statement::ArchiveLatePage, &[&day, &after, &limit, &payloads, generation]).await
            }
        };
        let rows = read?;
        transaction.connection().set_timeout(self.timeout);
        transaction.commit().await?;
        let bytes = rows.iter().map(Row::raw_size_bytes).sum();
        Ok(ArchivePage { jobs: rows.into_iter().map(FinishedJob).collect(), bytes })
    }

    /// What some blocks of a day's partition have now, to be compared with the files; and the block to go on with.
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
        let wrong = |_| StoreError::Refused("a sum over ids is no whole number".into());
        let sums = Sums {
            rows: row.get("jobs"),
            ids: number("ids").map_err(wrong)?,
            lengths: number("lengths").map_err(wrong)?,
        };
        Ok((sums, row.get("next_block")))
    }

    /// What a run that archives a day goes by. The day is to be archived so long after its end.
    pub async fn archive_load(&self, day: &str, within: Duration) -> Result<ArchiveLoad, StoreError> {
        let within = within.as_millis() as i64;
        let row = self.general().await?.query_one(Statement::ArchiveLoad, &[&day, &within]).await?;
        Ok(ArchiveLoad {
            changed_rows: row.get("changed_rows"),
            jobs: row.get("jobs"),
            seconds_left: row.get("seconds_left"),
        })
    }

    /// The days of the archive, the newest first.
    pub async fn archived_days(&self, at_most: i32) -> Result<Vec<ArchivedDay>, StoreError> {
        let rows = self.general().await?.query(Statement::ArchivedDays, &[&at_most]).await?;
        let day = |row: &Row| ArchivedDay {
            day: row.get("day"),
            state: row.get("state"),
            generation: row.get("generation"),
            url: row.get("url"),
            jobs: row.get("jobs"),
            files: row.get("files"),
            bytes: row.get("bytes"),
            manifest: row.get("manifest"),
            archived_by: row.get("archived_by"),
            error: row.get("error"),
            late: row.get("late"),
        };
        Ok(rows.iter().map(day).collect())
    }

    /// Files that may have the job of this id, those of the latest day first.
    pub async fn find_archived(&self, id: i64, at_most: i32) -> Result<Vec<ArchivedFile>, StoreError> {
        let rows = self.general().await?.query(Statement::FindArchived, &[&id, &at_most]).await?;
        Ok(rows.iter().map(file).collect())
    }

    /// What the options of an archived job say by numbers: its stages and dependencies, and the type that it had first.
    pub async fn archived_options(
        &self,
        id: i64,
        options: &str,
    ) -> Result<(Option<Box<CoordinationView>>, Option<String>), StoreError> {
        let row = self.general().await?.query_one(Statement::ArchivedOptions, &[&id, &options]).await?;
        // Anybody with SQL access may have written anything.
        let coordination: Option<Json<_>> = row.try_get("coordination").unwrap_or_default();
        Ok((coordination.map(|Json(view)| view), row.get("original_task_type")))
    }

    /// Names of all task types.
    pub async fn type_names(&self) -> Result<Vec<(TypeId, String)>, StoreError> {
        let rows = self.general().await?.query(Statement::TypeNames, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Where finished jobs are to be archived before they are dropped, by whatever broker; `None`: nowhere.
    pub async fn archive_target(&self) -> Result<Option<String>, StoreError> {
        let rows = self.general().await?.query(Statement::ArchiveTarget, &[]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// Days are dropped again whether they are archived or not; returns where they were archived.
    pub async fn clear_archive_target(&self, by: &Actor) -> Result<Option<String>, StoreError> {
        let mut transaction = self.begin_general().await?;
        let rows = transaction.query(Statement::ClearArchiveTarget, &[]).await?;
        let urls: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        transaction.record(by, &Change::of_ids(&urls)).await?;
        transaction.commit().await?;
        Ok(urls.into_iter().next())
    }
}

pub(super) fn file(row: &Row) -> ArchivedFile {
    ArchivedFile {
        day: row.get("day"),
        url: row.get("url"),
        path: row.get("path"),
        bytes: row.get::<_, i64>("bytes").max(0) as u64,
    }
}
