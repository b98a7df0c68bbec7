//! Expiry of archived days: deletes the files of days beyond the retention, and their records.

use howdah_archive::{Layout, Location};

use super::{ArchiveError, Archiver, HELD, noted};

impl Archiver {
    /// Returns the archived days that are older than `days_kept` and whose partitions are dropped, oldest first.
    pub async fn expired(&self, days_kept: u16) -> Result<Vec<String>, ArchiveError> {
        Ok(self.store.expired_days(days_kept.into()).await?)
    }

    /// Deletes the files of a day and returns their number, or `None` if another run works on the day. Lookups ignore
    /// the day as soon as this deletion has begun. If the run is killed, the next run deletes the remaining files.
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
                self.store.delete_day(day, &run).await?;
                Ok(Some(files))
            }
            Err(error) => {
                // Releases the day, so that another run can continue at once. Needs a reachable database.
                self.store.record_day_error(day, &run, &error.to_string()).await?;
                Err(error)
            }
        }
    }

    async fn delete(&self, day: &str, url: &str, manifest: &str) -> Result<usize, ArchiveError> {
        let number = self.number(noted(day, manifest)?.as_ref()).await?;
        let (location, layout) = (Location::open_to_read(url)?, Layout::new(number));
        let manifest = howdah_archive::manifest_of(&location, &layout, day).await?;
        if let Some(manifest) = manifest.filter(|manifest| manifest.database != self.database) {
            let (url, day) = (url.to_owned(), day.to_owned());
            return Err(ArchiveError::Foreign { url, day, database: manifest.database });
        }
        Ok(howdah_archive::delete_day(&location, &layout, day).await?)
    }
}
