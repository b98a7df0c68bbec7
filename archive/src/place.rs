//! A directory or a bucket. Each call has a deadline; what may be tried again is tried again by `object_store`.

use std::{
    future::Future,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{
    ClientConfigKey, ObjectStore, ObjectStoreExt as _, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    local::LocalFileSystem,
    path::Path,
};

use crate::{Error, layout::below};

/// How long a call may take, with all of its attempts.
const LONGEST: Duration = Duration::from_secs(180);
/// How often something is tried that fails soon.
const TRIES: usize = 3;
/// The same: requests that were repeated have taken longer.
const SOON: Duration = Duration::from_secs(5);
/// How long one request may take, unless a variable of the environment says otherwise.
const REQUEST: &str = "60 seconds";

/// How long an archive that does not answer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Minutes: whoever writes or reads much of it goes on when it is back.
    Long,
    /// Some seconds: somebody waits for one job.
    Short,
}

impl Patience {
    /// For how long a request that failed is repeated.
    fn retry(self) -> Duration {
        Duration::from_secs(if self == Self::Long { 60 } else { 1 })
    }

    /// How long the first answer of a place, or of one of its files, is waited for.
    pub fn first_answer(self) -> Duration {
        if self == Self::Long { LONGEST } else { Duration::from_secs(4) }
    }
}

/// Where an archive is. Clones share connections.
#[derive(Clone, Debug)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
    patience: Patience,
}

impl Place {
    /// Checks a URL without opening it: `file:///DIRECTORY`, `s3://`, `gs://` or `az://` with a bucket and a prefix.
    pub fn check_url(url: &str) -> Result<(), String> {
        split(url).map(drop)
    }

    /// Opens a URL. Credentials, regions and endpoints come from the environment, by the names of `object_store`
    /// (`AWS_…`, `GOOGLE_…`, `AZURE_…`). A directory is created if it is missing.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::open_with(url, Patience::Long)
    }

    fn open_with(url: &str, patience: Patience) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Url { url: url.to_owned(), problem };
        let (scheme, bucket, path) = split(url).map_err(wrong)?;
        let bucket_url = format!("{scheme}://{bucket}");
        let retry = RetryConfig { retry_timeout: patience.retry(), ..RetryConfig::default() };
        macro_rules! bucket {
            ($builder:ty, $key:ident) => {{
                let timeout = $key::Client(ClientConfigKey::Timeout);
                let builder = <$builder>::from_env().with_url(&bucket_url).with_retry(retry);
                let builder = match builder.get_config_value(&timeout) {
                    Some(_) => builder,
                    None => builder.with_config(timeout, REQUEST),
                };
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }};
        }
        let store = match scheme {
            "file" => directory(path),
            "s3" => bucket!(AmazonS3Builder, AmazonS3ConfigKey),
            "gs" => bucket!(GoogleCloudStorageBuilder, GoogleConfigKey),
            _ => bucket!(MicrosoftAzureBuilder, AzureConfigKey),
        };
        let store = store.map_err(|error| wrong(error.to_string()))?;
        let prefix = if scheme == "file" { Path::default() } else { Path::from(path) };
        Ok(Self { store, prefix, url: url.to_owned(), patience })
    }

    /// The same for somebody who only reads: a directory that is missing is an error.
    pub fn open_to_read(url: &str) -> Result<Self, Error> {
        Self::open_to_read_with(url, Patience::Long)
    }

    /// The same for somebody who waits as long as that.
    pub fn open_to_read_with(url: &str, patience: Patience) -> Result<Self, Error> {
        match url.strip_prefix("file://") {
            Some(path) if !std::path::Path::new(path).is_dir() => {
                Err(Error::Url { url: url.to_owned(), problem: "there is no such directory".into() })
            }
            _ => Self::open_with(url, patience),
        }
    }

    /// How long it is waited for.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn at(&self, name: &str) -> Result<Path, Error> {
        below(&self.prefix, name).map_err(|error| Error::damaged(name, error))
    }

    /// Writes a file, as a whole or not at all. A file of that name is replaced.
    pub async fn put(&self, name: &str, data: Bytes) -> Result<(), Error> {
        let path = self.at(name)?;
        timely("writing", name, || self.store.put(&path, data.clone().into())).await.map(drop)
    }

    /// Reads a whole file.
    pub async fn get(&self, name: &str) -> Result<Bytes, Error> {
        let path = self.at(name)?;
        timely("reading", name, || async { self.store.get(&path).await?.bytes().await }).await
    }

    /// Reads a part of a file.
    pub async fn part(&self, name: &str, part: Range<u64>) -> Result<Bytes, Error> {
        let path = self.at(name)?;
        timely("reading", name, || self.store.get_range(&path, part.clone())).await
    }

    /// The size of a file.
    pub async fn size(&self, name: &str) -> Result<u64, Error> {
        let path = self.at(name)?;
        timely("looking for", name, || self.store.head(&path)).await.map(|meta| meta.size)
    }

    /// Gives a file another name, and replaces what has that name.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let (source, target) = (self.at(from)?, self.at(to)?);
        timely("renaming", from, || self.store.rename(&source, &target)).await
    }

    /// Deletes a file, if it is there.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let path = self.at(name)?;
        match timely("deleting", name, || self.store.delete(&path)).await {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }

    /// The files below a name, and their sizes.
    pub async fn list(&self, name: &str) -> Result<Vec<(String, u64)>, Error> {
        let path = self.at(name)?;
        let metas: Vec<_> = timely("listing", name, || self.store.list(Some(&path)).try_collect()).await?;
        let own = self.prefix.as_ref().len() + usize::from(!self.prefix.as_ref().is_empty());
        let found = metas.into_iter().map(|meta: object_store::ObjectMeta| {
            (meta.location.as_ref().get(own..).unwrap_or_default().to_owned(), meta.size)
        });
        Ok(found.collect())
    }

    /// The directories in this one, by their last names.
    pub async fn directories(&self, name: &str) -> Result<Vec<String>, Error> {
        let path = self.at(name)?;
        let found = timely("listing", name, || self.store.list_with_delimiter(Some(&path))).await?;
        Ok(found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect())
    }
}

/// A directory whose files are on the disk before a call has ended: what is archived may be deleted elsewhere.
fn directory(path: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    let failed = |error: std::io::Error| object_store::Error::Generic { store: "directory", source: error.into() };
    std::fs::create_dir_all(path).map_err(failed)?;
    Ok(Arc::new(LocalFileSystem::new_with_prefix(path)?.with_fsync(true)))
}

/// Scheme, bucket and path of a URL.
fn split(url: &str) -> Result<(&str, &str, &str), String> {
    const FORMS: &str = "must be file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX";
    if url.chars().any(|c| c.is_control() || c == '?' || c == '#' || c == '@') {
        return Err(format!("{FORMS}, without credentials and parameters: those come from the environment"));
    }
    let (scheme, rest) = url.split_once("://").ok_or(FORMS)?;
    if scheme == "file" {
        return if rest.starts_with('/') && rest.len() > 1 { Ok((scheme, "", rest)) } else { Err(FORMS.into()) };
    }
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !matches!(scheme, "s3" | "gs" | "az") || bucket.is_empty() {
        return Err(FORMS.into());
    }
    Ok((scheme, bucket, path.trim_matches('/')))
}

/// Does what may be done again. `object_store` repeats requests that were refused or not answered, but not one whose answer was
/// cut off in the middle: that is seen here, soon after it began.
async fn timely<T, F: Future<Output = object_store::Result<T>>>(
    doing: &'static str,
    name: &str,
    mut work: impl FnMut() -> F,
) -> Result<T, Error> {
    let path = || name.to_owned();
    let tried = async {
        for _ in 1..TRIES {
            let begun = Instant::now();
            match work().await {
                Err(object_store::Error::NotFound { path, source }) => {
                    return Err(object_store::Error::NotFound { path, source });
                }
                Err(_) if begun.elapsed() < SOON => {}
                other => return other,
            }
        }
        work().await
    };
    match tokio::time::timeout(LONGEST, tried).await {
        Ok(result) => result.map_err(|source| Error::Store { doing, path: path(), source }),
        Err(_) => Err(Error::Late { doing, path: path(), seconds: LONGEST.as_secs() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_place_and_no_credentials() {
        for (url, parts) in [
            ("file:///var/lib/archive", ("file", "", "/var/lib/archive")),
            ("s3://bucket", ("s3", "bucket", "")),
            ("s3://bucket/a/b/", ("s3", "bucket", "a/b")),
            ("az://container/a", ("az", "container", "a")),
        ] {
            assert_eq!(split(url), Ok(parts), "{url}");
        }
        for url in
            ["", "/var", "file://host/x", "file:///", "http://x/y", "s3:///x", "s3://id:key@b/x", "gs://b/x?key=y"]
        {
            assert!(split(url).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn a_directory_keeps_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::open(&format!("file://{}/new", directory.path().display())).expect("a place");
        place.put("a/b=1/c", Bytes::from_static(b"one")).await.expect("written");
        place.put("a/b=1/c", Bytes::from_static(b"other")).await.expect("replaced");
        place.rename("a/b=1/c", "a/b=1/d%2F").await.expect("renamed");
        assert_eq!(place.list("a").await.expect("a list"), [("a/b=1/d%2F".to_owned(), 5)]);
        assert_eq!(place.directories("a").await.expect("a list"), ["b=1"]);
        assert_eq!(place.get("a/b=1/d%2F").await.expect("read"), "other");
        assert!(place.size("a/b=1/c").await.is_err_and(|error| error.is_missing()));
        place.delete("a/b=1/c").await.expect("it is not there");
    }
}
