use super::binaries::{Binaries, Places};
use super::blocking;
use super::error::DevError;
use super::fetch::packages::MAJOR;
use super::fetch::{FetchError, Fetcher};

/// Chooses a Postgres for data that version `made_by` created: an installed one, else an earlier download, else a new download.
pub(super) async fn choose(places: Places, fetcher: &Fetcher, made_by: Option<u32>) -> Result<Binaries, DevError> {
    let places = Places { fetched: fetcher.bin_dirs(), ..places };
    let is_named = places.named.is_some();
    let found = blocking(move || places.search(made_by)).await;
    match missing(&found, made_by).filter(|_| !is_named) {
        Some(version) if fetcher.fetch.allowed => fetcher.fetch(&version).await,
        _ => match found {
            Err(DevError::NotInstalled) if !fetcher.fetch.allowed => Err(FetchError::Forbidden.into()),
            found => found,
        },
    }
}

/// Describes the missing version, such as `15 or later`; `None` if a download does not help. A download has a pinned version,
/// so it does not help with data that another major version created.
fn missing(found: &Result<Binaries, DevError>, made_by: Option<u32>) -> Option<String> {
    match (found, made_by) {
        (Ok(found), Some(MAJOR)) if found.major() != MAJOR => Some(MAJOR.to_string()),
        (Err(DevError::NotInstalled | DevError::TooOld { .. }), None | Some(MAJOR)) => {
            Some(made_by.map_or_else(|| format!("{} or later", super::OLDEST), |major| major.to_string()))
        }
        _ => None,
    }
}
