//! Days that are older than is kept: their files are deleted, and forgotten.

use howdah_archive::{Layout, Place};

use super::{ArchiveError, Archiver, HELD, noted};

impl Archiver {
    /// Days that are older than this, and whose partitions are gone, the oldest first.
    pub async fn expired(&self, days_kept: u16) -> Result<Vec<String>, ArchiveError> {
        Ok(self.store.expired_days(days_kept.into()).await?)
    }

    /// Deletes the files of such a day; returns how many there were. `None`: another run has it. From the first step on nobody
    /// looks for its jobs any more; a run that is killed later is done again by the next one.
    pub async fn expire(&self, day: &str, days_kept: u16) -> Result<Option<usize>, ArchiveError> {
        let run = format!("{:016x}", rand::random::<u64>());
        let taken = self.store.take_expired_day(day, days_kept.into(), &run, &self.who, HELD).await?;
        let Some((url, manifest)) = taken else { return Ok(None) };
        let deleted = match &url {
            Some(url) => self.delete(day, url, &manifest).await,
            None => Ok(0),
        };
        match deleted {
            Ok(files) => {
                self.store.expired_day(day, &run).await?;
                Ok(Some(files))
            }
            Err(error) => {
                // It is free for the next run at once.
                self.store.failed_day(day, &run, &error.to_string()).await?;
                Err(error)
            }
        }
    }

    async fn delete(&self, day: &str, url: &str, manifest: &str) -> Result<usize, ArchiveError> {
        let number = self.number(noted(day, manifest)?.as_ref()).await?;
        let (place, layout) = (Place::open_to_read(url)?, Layout::of(number));
        let manifest = howdah_archive::manifest_of(&place, &layout, day).await?;
        if let Some(manifest) = manifest.filter(|manifest| manifest.database != self.database) {
            let (url, day) = (url.to_owned(), day.to_owned());
            return Err(ArchiveError::Foreign { url, day, database: manifest.database });
        }
        Ok(howdah_archive::delete_day(&place, &layout, day).await?)
    }
}
