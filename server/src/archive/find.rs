//! Archived jobs, found again: which files may have one is asked of the database, and the files themselves say the rest.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_archive::{Candidate, Patience, Place, Row};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::ArchiveError;
use crate::store::{ArchivedFile, Store};

/// The most files that one lookup by id looks at.
pub(crate) const FILES: i32 = 2_000;
/// How long a lookup may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(10);
/// Lookups and pages that a broker reads at once; others wait.
pub(crate) const AT_ONCE: usize = 4;

/// Reads what is archived, wherever each day lies. Clones share what is open.
#[derive(Clone)]
pub struct Reader {
    pub(super) store: Store,
    patience: Patience,
    places: Arc<Mutex<HashMap<String, Place>>>,
    turns: Arc<Semaphore>,
    /// When a lookup found that nothing answers, and why: for those who wait for their turn.
    away: Arc<Mutex<Option<(Instant, String)>>>,
}

impl Reader {
    /// Of the archive that this database knows, for a command that reads much of it.
    pub fn new(store: Store) -> Self {
        Self::with(store, Patience::Long)
    }

    /// The same for callers who wait for one job: an archive that does not answer is not waited for.
    pub(crate) fn for_callers(store: Store) -> Self {
        Self::with(store, Patience::Short)
    }

    fn with(store: Store, patience: Patience) -> Self {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        Self { store, patience, places: Arc::default(), turns, away: Arc::default() }
    }

    /// The job of an id, as it ended last; `None`: it is not archived. An error names a file that could not be looked at.
    pub async fn find(&self, id: i64) -> Result<Option<Row>, ArchiveError> {
        let begun = Instant::now();
        match self.look(id, begun).await {
            // A file was replaced after the database was asked: it knows the new one.
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
        let _turn = self.turn(until).await?;
        if let Some((at, why)) = self.away.lock().as_ref()
            && *at > begun
        {
            return Err(ArchiveError::Unread(why.clone()));
        }
        let found = self.look_in(files, id, until).await;
        if let Err(ArchiveError::Files(error)) = &found
            && error.is_away()
        {
            *self.away.lock() = Some((Instant::now(), error.to_string()));
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
        if found.is_away()
            && let Some((_, error)) =
                found.unread.iter().position(|(_, e)| e.is_away()).map(|at| found.unread.remove(at))
        {
            return Err(error.into());
        }
        let late = (found.left > 0).then(|| format!("no time for {} of its files", found.left));
        let unread = found.unread.len();
        let first = found.unread.into_iter().next().map(|(_, error)| match unread {
            1 => error.to_string(),
            more => format!("{error}; and {} other files", more - 1),
        });
        let many = too_many.then(|| format!("more than {FILES} files may have it"));
        match first.or(late).or(many) {
            Some(problem) => Err(ArchiveError::Unread(problem)),
            None => Ok(None),
        }
    }

    async fn turn(&self, until: Instant) -> Result<tokio::sync::SemaphorePermit<'_>, ArchiveError> {
        let busy = || ArchiveError::Unread(format!("{AT_ONCE} others read it, and {WITHIN:?} have passed"));
        match tokio::time::timeout_at(until.into(), self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(busy()),
        }
    }

    pub(super) async fn candidate(&self, file: ArchivedFile) -> Result<Candidate, ArchiveError> {
        let ArchivedFile { day, url, path, bytes } = file;
        Ok(Candidate { place: self.place(&url).await?, day, path, bytes })
    }

    /// Opens each place once: connections are kept. There are few, because a database has one archive at a time.
    async fn place(&self, url: &str) -> Result<Place, ArchiveError> {
        if let Some(place) = self.places.lock().get(url) {
            return Ok(place.clone());
        }
        let place = self.open(url).await?;
        self.places.lock().insert(url.to_owned(), place.clone());
        Ok(place)
    }

    /// A directory of another machine that is away may not answer at all.
    async fn open(&self, url: &str) -> Result<Place, ArchiveError> {
        let (patience, own) = (self.patience, url.to_owned());
        let opened = tokio::task::spawn_blocking(move || Place::open_to_read_with(&own, patience));
        let problem = match tokio::time::timeout(patience.first_answer(), opened).await {
            Ok(Ok(place)) => return Ok(place?),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {:?}", patience.first_answer()),
        };
        Err(howdah_archive::Error::Url { url: url.to_owned(), problem }.into())
    }
}
