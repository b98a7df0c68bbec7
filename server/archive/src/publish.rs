//! Publishes the files of an archive run: renames them to the paths that readers look for, and writes the manifest last. Each
//! step is idempotent, so the next run completes a run that was killed.

use crate::{Error, Layout, Location, Manifest, is_day};

/// Reads the manifest of a day; `None` if the day is not archived.
pub async fn manifest_of(location: &Location, layout: &Layout, day: &str) -> Result<Option<Manifest>, Error> {
    let name = layout.manifest(day);
    match location.get(&name).await {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| Error::damaged(name, error)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the manifests of all archived days, oldest first.
pub async fn manifests(location: &Location, layout: &Layout) -> Result<Vec<Manifest>, Error> {
    let mut days: Vec<_> = location.directories(&layout.root()).await?;
    days.sort();
    let mut found = Vec::new();
    for day in days.iter().filter_map(|name| name.strip_prefix("day=")).filter(|day| is_day(day)) {
        found.extend(manifest_of(location, layout, day).await?);
    }
    Ok(found)
}

/// Deletes the staged files that interrupted runs left behind. Returns their number.
pub async fn clear_staging(location: &Location, layout: &Layout, day: &str) -> Result<usize, Error> {
    let left = location.list(&layout.staging(day)).await?;
    for (name, _) in &left {
        location.delete(name).await?;
    }
    Ok(left.len())
}

/// Deletes the files of a day. The manifest is deleted first, because it asserts that all files exist. Returns the number of
/// other files deleted.
pub async fn delete_day(location: &Location, layout: &Layout, day: &str) -> Result<usize, Error> {
    location.delete(&layout.manifest(day)).await?;
    let files = location.list(&layout.day(day)).await?;
    for (name, _) in &files {
        location.delete(name).await?;
    }
    clear_staging(location, layout, day).await?;
    Ok(files.len())
}

/// Renames the staged files of a manifest. For a file that was already renamed, only its size is checked.
pub async fn publish(location: &Location, manifest: &Manifest) -> Result<(), Error> {
    for part in manifest.parts.iter().filter(|part| !part.staged.is_empty()) {
        match location.rename(&part.staged, &part.path).await {
            Err(error) if error.is_missing() => match location.size(&part.path).await? {
                bytes if bytes == part.bytes => {}
                bytes => {
                    return Err(Error::damaged(&part.path, format!("has {bytes} bytes instead of {}", part.bytes)));
                }
            },
            other => other?,
        }
    }
    Ok(())
}

/// Writes the manifest and deletes the day's files that it does not list.
pub async fn finish(location: &Location, layout: &Layout, manifest: &Manifest) -> Result<(), Error> {
    write_manifest(location, layout, manifest).await?;
    discard(location, layout, manifest).await
}

/// Writes the manifest without the staging paths.
pub async fn write_manifest(location: &Location, layout: &Layout, manifest: &Manifest) -> Result<(), Error> {
    let mut public = manifest.clone();
    public.parts.iter_mut().for_each(|part| part.staged.clear());
    let text = serde_json::to_vec_pretty(&public).map_err(|error| Error::Ended(error.to_string()))?;
    location.put(&layout.manifest(&manifest.day), text.into()).await
}

/// Deletes staged files and the day's files that the manifest does not list.
pub async fn discard(location: &Location, layout: &Layout, manifest: &Manifest) -> Result<(), Error> {
    for (name, _) in location.list(&layout.day(&manifest.day)).await? {
        if name.ends_with(".parquet") && !manifest.parts.iter().any(|part| part.path == name) {
            location.delete(&name).await?;
        }
    }
    clear_staging(location, layout, &manifest.day).await.map(drop)
}
