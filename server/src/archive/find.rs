//! Archived jobs, found again: which files may have one is asked of the database, and the files themselves say the rest.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_archive::{Candidate, Place, Row};
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
    places: Arc<Mutex<HashMap<String, Place>>>,
    turns: Arc<Semaphore>,
}

impl Reader {
    /// Of the archive that this database knows.
    pub fn new(store: Store) -> Self {
        Self { store, places: Arc::default(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// The job of an id, as it ended last; `None`: it is not archived. An error names a file that could not be looked at.
    pub async fn find(&self, id: i64) -> Result<Option<Row>, ArchiveError> {
        let until = Instant::now() + WITHIN;
        match self.look(id, until).await {
            // A file was replaced after the database was asked: it knows the new one.
            Err(ArchiveError::Files(error)) if error.is_missing() => self.look(id, until).await,
            found => found,
        }
    }

    async fn look(&self, id: i64, until: Instant) -> Result<Option<Row>, ArchiveError> {
        let mut files = self.store.find_archived(id, FILES + 1).await?;
        if files.is_empty() {
            return Ok(None);
        }
        let _turn = self.turn(until).await?;
        let too_many = files.len() > FILES as usize;
        files.truncate(FILES as usize);
        let files = files.into_iter().map(|file| self.candidate(file)).collect::<Result<Vec<_>, _>>()?;
        let mut found = howdah_archive::find(id, files, until).await;
        if found.row.is_some() {
            return Ok(found.row);
        }
        if let Some(at) = found.unread.iter().position(|(_, error)| error.is_missing())
            && self.store.find_archived(id, FILES).await?.iter().all(|file| file.path != found.unread[at].0)
        {
            return Err(found.unread.remove(at).1.into());
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

    pub(super) async fn turn(&self, until: Instant) -> Result<tokio::sync::SemaphorePermit<'_>, ArchiveError> {
        let busy = || ArchiveError::Unread(format!("{AT_ONCE} others read it, and {WITHIN:?} have passed"));
        match tokio::time::timeout_at(until.into(), self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(busy()),
        }
    }

    pub(super) fn candidate(&self, file: ArchivedFile) -> Result<Candidate, ArchiveError> {
        let ArchivedFile { day, url, path, bytes } = file;
        Ok(Candidate { place: self.place(&url)?, day, path, bytes })
    }

    /// Opens each place once: connections are kept. There are few, because a database has one archive at a time.
    fn place(&self, url: &str) -> Result<Place, ArchiveError> {
        if let Some(place) = self.places.lock().get(url) {
            return Ok(place.clone());
        }
        let place = Place::open_to_read(url)?;
        self.places.lock().insert(url.to_owned(), place.clone());
        Ok(place)
    }
}
