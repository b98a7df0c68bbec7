//! An archive's directory or bucket. Each operation has a timeout; `object_store` retries transient errors.

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

/// Timeout of one storage operation, including retries.
const LONGEST: Duration = Duration::from_secs(180);
/// Maximum number of tries of a storage operation. Only a try that fails within `SOON` is repeated.
const TRIES: usize = 3;
/// Time within which an operation must fail for [`with_timeout`] to retry it. An operation that fails later has already been
/// retried by `object_store`.
const SOON: Duration = Duration::from_secs(5);
/// Timeout of one request to a bucket, unless an environment variable sets another.
const REQUEST: &str = "60 seconds";

/// Timeout policy for an archive that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeouts {
    /// Waits minutes. For archiving and bulk reads, which resume when the storage answers again.
    Long,
    /// Waits a few seconds. For interactive lookups of one job.
    Short,
}

impl Timeouts {
    /// Duration for which `object_store` retries a failed request.
    fn retry(self) -> Duration {
        Duration::from_secs(if self == Self::Long { 60 } else { 1 })
    }

    /// Timeout for opening an archive, or for reading the footer of one of its files.
    pub fn first_answer(self) -> Duration {
        if self == Self::Long { LONGEST } else { Duration::from_secs(4) }
    }
}

/// Location of an archive. Clones share connections.
#[derive(Clone, Debug)]
pub struct Location {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
    timeouts: Timeouts,
}

impl Location {
    /// Validates a URL without opening it: `file:///DIRECTORY`, or `s3://`, `gs://` or `az://` with a bucket and a prefix.
    pub fn check_url(url: &str) -> Result<(), String> {
        split(url).map(drop)
    }

    /// Opens an archive URL. Credentials, regions and endpoints come from the environment variables of `object_store` (`AWS_…`,
    /// `GOOGLE_…`, `AZURE_…`). Creates a missing directory.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::open_with(url, Timeouts::Long)
    }

    fn open_with(url: &str, timeouts: Timeouts) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Url { url: url.to_owned(), problem };
        let (scheme, bucket, path) = split(url).map_err(wrong)?;
        let bucket_url = format!("{scheme}://{bucket}");
        let retry = RetryConfig { retry_timeout: timeouts.retry(), ..RetryConfig::default() };
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
        Ok(Self { store, prefix, url: url.to_owned(), timeouts })
    }

    /// Opens an archive URL for reading. Fails if the directory does not exist.
    pub fn open_to_read(url: &str) -> Result<Self, Error> {
        Self::open_to_read_with(url, Timeouts::Long)
    }

    /// Opens an archive URL for reading, with the given timeouts.
    pub fn open_to_read_with(url: &str, timeouts: Timeouts) -> Result<Self, Error> {
        match url.strip_prefix("file://") {
            Some(path) if !std::path::Path::new(path).is_dir() => {
                Err(Error::Url { url: url.to_owned(), problem: "the directory does not exist".into() })
            }
            _ => Self::open_with(url, timeouts),
        }
    }

    /// Timeouts of this archive.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// URL of the archive.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn at(&self, name: &str) -> Result<Path, Error> {
        below(&self.prefix, name).map_err(|error| Error::damaged(name, error))
    }

    /// Writes a file atomically, replacing an existing file.
    pub async fn put(&self, name: &str, data: Bytes) -> Result<(), Error> {
        let path = self.at(name)?;
        with_timeout("writing", name, || self.store.put(&path, data.clone().into())).await.map(drop)
    }

    /// Reads a whole file.
    pub async fn get(&self, name: &str) -> Result<Bytes, Error> {
        let path = self.at(name)?;
        with_timeout("reading", name, || async { self.store.get(&path).await?.bytes().await }).await
    }

    /// Reads a part of a file.
    pub async fn part(&self, name: &str, part: Range<u64>) -> Result<Bytes, Error> {
        let path = self.at(name)?;
        with_timeout("reading", name, || self.store.get_range(&path, part.clone())).await
    }

    /// Returns the size of a file.
    pub async fn size(&self, name: &str) -> Result<u64, Error> {
        let path = self.at(name)?;
        with_timeout("looking for", name, || self.store.head(&path)).await.map(|meta| meta.size)
    }

    /// Renames a file, replacing an existing target.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let (source, target) = (self.at(from)?, self.at(to)?);
        with_timeout("renaming", from, || self.store.rename(&source, &target)).await
    }

    /// Deletes a file. Succeeds if the file does not exist.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let path = self.at(name)?;
        match with_timeout("deleting", name, || self.store.delete(&path)).await {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }

    /// Lists the files below a directory, with their sizes.
    pub async fn list(&self, name: &str) -> Result<Vec<(String, u64)>, Error> {
        let path = self.at(name)?;
        let metas: Vec<_> = with_timeout("listing", name, || self.store.list(Some(&path)).try_collect()).await?;
        let prefix_length = self.prefix.as_ref().len() + usize::from(!self.prefix.as_ref().is_empty());
        let found = metas.into_iter().map(|meta: object_store::ObjectMeta| {
            (meta.location.as_ref().get(prefix_length..).unwrap_or_default().to_owned(), meta.size)
        });
        Ok(found.collect())
    }

    /// Lists the names of the subdirectories.
    pub async fn directories(&self, name: &str) -> Result<Vec<String>, Error> {
        let path = self.at(name)?;
        let found = with_timeout("listing", name, || self.store.list_with_delimiter(Some(&path))).await?;
        Ok(found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect())
    }
}

/// Opens a local directory, with `fsync` after each write: once a file is written, its jobs may be deleted from the database.
fn directory(path: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    let failed = |error: std::io::Error| object_store::Error::Generic { store: "directory", source: error.into() };
    std::fs::create_dir_all(path).map_err(failed)?;
    Ok(Arc::new(LocalFileSystem::new_with_prefix(path)?.with_fsync(true)))
}

/// Splits a URL into scheme, bucket and path.
fn split(url: &str) -> Result<(&str, &str, &str), String> {
    const FORMS: &str = "must be file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX";
    if url.chars().any(|c| c.is_control() || c == '?' || c == '#' || c == '@') {
        return Err(format!("{FORMS}, without credentials or parameters; set credentials in the environment"));
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

/// Runs an idempotent operation with retries and a timeout. `object_store` retries requests that failed or got no
/// answer. This function also retries a response that breaks off midway, if it does so within `SOON`.
async fn with_timeout<T, F: Future<Output = object_store::Result<T>>>(
    operation: &'static str,
    name: &str,
    mut work: impl FnMut() -> F,
) -> Result<T, Error> {
    let path = || name.to_owned();
    let attempts = async {
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
    match tokio::time::timeout(LONGEST, attempts).await {
        Ok(result) => result.map_err(|source| Error::Store { operation, path: path(), source }),
        Err(_) => Err(Error::Timeout { operation, path: path(), seconds: LONGEST.as_secs() }),
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
        let location = Location::open(&format!("file://{}/new", directory.path().display())).expect("a location");
        location.put("a/b=1/c", Bytes::from_static(b"one")).await.expect("written");
        location.put("a/b=1/c", Bytes::from_static(b"other")).await.expect("replaced");
        location.rename("a/b=1/c", "a/b=1/d%2F").await.expect("renamed");
        assert_eq!(location.list("a").await.expect("a list"), [("a/b=1/d%2F".to_owned(), 5)]);
        assert_eq!(location.directories("a").await.expect("a list"), ["b=1"]);
        assert_eq!(location.get("a/b=1/d%2F").await.expect("read"), "other");
        assert!(location.size("a/b=1/c").await.is_err_and(|error| error.is_missing()));
        location.delete("a/b=1/c").await.expect("deleting a missing file succeeds");
    }
}
