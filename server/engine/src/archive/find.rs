//! Lookup of archived jobs. The database knows which archive files may contain a job; the job's data is read from the
//! files.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use howdah_archive::{Candidate, Job, Location, Row, Timeouts};
use howdah_core::job::{JobOptions, JobState, JobView};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::ArchiveError;
use crate::store::{ArchivedFile, Store, failures_of};

/// Maximum number of files that one lookup by id reads.
pub(crate) const FILES: i32 = 2_000;
/// Time limit of a lookup of one archived job.
pub(crate) const WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of concurrent archive lookups and page reads of a broker. Further ones wait.
pub(crate) const AT_ONCE: usize = 4;

/// Reads archived jobs. The database names the archive of each file, so jobs may be in several archives. Clones share
/// open connections.
#[derive(Clone)]
pub struct Reader {
    pub(super) store: Store,
    timeouts: Timeouts,
    locations: Arc<Mutex<HashMap<String, Location>>>,
    lookups: Arc<Semaphore>,
    /// Time and error of the last lookup that found the archive unreachable. Lookups that began before that time and
    /// wait for a permit fail with the same error.
    last_failure: Arc<Mutex<Option<(Instant, String)>>>,
}

impl Reader {
    /// Creates a reader with long timeouts, for commands that read many files.
    pub fn new(store: Store) -> Self {
        Self::with(store, Timeouts::Long)
    }

    /// Creates an archive reader with short timeouts, for calls that read one job.
    pub(crate) fn for_callers(store: Store) -> Self {
        Self::with(store, Timeouts::Short)
    }

    fn with(store: Store, timeouts: Timeouts) -> Self {
        let lookups = Arc::new(Semaphore::new(AT_ONCE));
        Self { store, timeouts, locations: Arc::default(), lookups, last_failure: Arc::default() }
    }

    /// Returns the archived job with this id, as it was when it last ended, or `None` if the job is not archived. The
    /// error names the file that could not be read.
    pub async fn find(&self, id: i64) -> Result<Option<Row>, ArchiveError> {
        let begun = Instant::now();
        match self.look(id, begun).await {
            // The file was replaced after the database returned its path. The second lookup gets the path of the new
            // file.
            Err(ArchiveError::Files(error)) if error.is_missing() => self.look(id, begun).await,
            found => found,
        }
    }

    async fn look(&self, id: i64, begun: Instant) -> Result<Option<Row>, ArchiveError> {
        let files = self.store.find_archived(id, FILES + 1).await?;
        if files.is_empty() {
            return Ok(None);
        }
        let until = begun + WITHIN;
        self.permitted(begun, self.look_in(files, id, until)).await
    }

    /// Reads files for a lookup that began at `begun`, with a permit. Fails at once if the archive was found unreachable
    /// while the lookup waited for the permit.
    pub(super) async fn permitted<T>(
        &self,
        begun: Instant,
        read: impl Future<Output = Result<T, ArchiveError>>,
    ) -> Result<T, ArchiveError> {
        let _permit = self.lookup_permit(begun + WITHIN).await?;
        if let Some((at, why)) = self.last_failure.lock().as_ref()
            && *at > begun
        {
            return Err(ArchiveError::Unread(why.clone()));
        }
        let found = read.await;
        if let Err(ArchiveError::Files(error)) = &found
            && error.is_unavailable()
        {
            *self.last_failure.lock() = Some((Instant::now(), error.to_string()));
        }
        found
    }

    async fn look_in(
        &self,
        mut files: Vec<ArchivedFile>,
        id: i64,
        until: Instant,
    ) -> Result<Option<Row>, ArchiveError> {
        let too_many = files.len() > FILES as usize;
        files.truncate(FILES as usize);
        let mut candidates = Vec::with_capacity(files.len());
        for file in files {
            candidates.push(self.candidate(file).await?);
        }
        let mut found = howdah_archive::find(id, candidates, until).await;
        if found.row.is_some() {
            return Ok(found.row);
        }
        if let Some(at) = found.unread.iter().position(|(_, error)| error.is_missing())
            && self.store.find_archived(id, FILES).await?.iter().all(|file| file.path != found.unread[at].0)
        {
            return Err(found.unread.remove(at).1.into());
        }
        if found.is_unavailable()
            && let Some((_, error)) =
                found.unread.iter().position(|(_, e)| e.is_unavailable()).map(|at| found.unread.remove(at))
        {
            return Err(error.into());
        }
        let late =
            (found.left > 0).then(|| format!("{} files that may contain the job were not read in time", found.left));
        let unread = found.unread.len();
        let first = found.unread.into_iter().next().map(|(_, error)| match unread {
            1 => error.to_string(),
            more => format!("{error}; {} other files could not be read, either", more - 1),
        });
        let many = too_many.then(|| format!("more than {FILES} files may contain the job, and only {FILES} were read"));
        match first.or(late).or(many) {
            Some(problem) => Err(ArchiveError::Unread(problem)),
            None => Ok(None),
        }
    }

    async fn lookup_permit(&self, until: Instant) -> Result<tokio::sync::SemaphorePermit<'_>, ArchiveError> {
        let busy = || {
            ArchiveError::Unread(format!(
                "{AT_ONCE} other archive lookups did not end within {WITHIN:?}; try again later"
            ))
        };
        match tokio::time::timeout_at(until.into(), self.lookups.acquire()).await {
            Ok(Ok(lookup_permit)) => Ok(lookup_permit),
            _ => Err(busy()),
        }
    }

    pub(super) async fn candidate(&self, file: ArchivedFile) -> Result<Candidate, ArchiveError> {
        let ArchivedFile { day, url, path, bytes } = file;
        Ok(Candidate { location: self.location(&url).await?, day, path, bytes })
    }

    /// Returns the archive with this URL, with its open connections. The map stays small, because a database has one
    /// archive at a time.
    async fn location(&self, url: &str) -> Result<Location, ArchiveError> {
        if let Some(location) = self.locations.lock().get(url) {
            return Ok(location.clone());
        }
        let location = self.open(url).await?;
        self.locations.lock().insert(url.to_owned(), location.clone());
        Ok(location)
    }

    /// Opens the archive with a timeout, because a directory on an unreachable machine may not respond at all.
    async fn open(&self, url: &str) -> Result<Location, ArchiveError> {
        let (timeouts, own) = (self.timeouts, url.to_owned());
        let opened = tokio::task::spawn_blocking(move || Location::open_to_read_with(&own, timeouts));
        let problem = match tokio::time::timeout(timeouts.first_answer(), opened).await {
            Ok(Ok(location)) => return Ok(location?),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {:?}", timeouts.first_answer()),
        };
        Err(howdah_archive::Error::Url { url: url.to_owned(), problem }.into())
    }
}

/// Returns the view of an archived job, with payload and result if they were read. Omits fields that cannot be parsed,
/// so that operators can see the others.
pub fn view(job: &Job<'_>) -> JobView {
    let headers: Option<HashMap<String, String>> = job.headers.and_then(|json| serde_json::from_str(json).ok());
    let options: Option<JobOptions> = job.options.and_then(|json| serde_json::from_str(json).ok());
    let small = |number: i32| i16::try_from(number).unwrap_or(i16::MAX);
    JobView {
        id: job.id,
        task_type: job.task_type.to_owned(),
        state: JobState::from_name(job.outcome).unwrap_or(JobState::Discarded),
        priority: small(job.priority),
        attempt: small(job.attempt),
        max_attempts: small(job.max_attempts),
        key: job.key.map(str::to_owned),
        created: time(job.created),
        run_at: None,
        leased_at: job.leased_at.map(time),
        finished: Some(time(job.finished)),
        deadline: None,
        headers: headers.unwrap_or_default(),
        failures: job.failures.map(failures_of).unwrap_or_default(),
        payload: job.payload.map(Bytes::copy_from_slice),
        result: job.result.map(Bytes::copy_from_slice),
        original_task_type: None,
        tags: options.as_ref().map(|options| options.tags.clone()).unwrap_or_default(),
        options: options.map(Box::new),
        coordination: None,
        broker: None,
        worker: None,
    }
}

fn time(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let moved = if micros < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    moved.unwrap_or(UNIX_EPOCH)
}
