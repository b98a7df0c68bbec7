//! The end of a run: files get the names that readers look for, and the manifest is written last. Each step may be done
//! again, so a run that was killed is finished by the next one.

use crate::{Error, Layout, Manifest, Place, is_day};

/// What a day consists of; `None` if it is not archived.
pub async fn manifest_of(place: &Place, layout: &Layout, day: &str) -> Result<Option<Manifest>, Error> {
    let name = layout.manifest(day);
    match place.get(&name).await {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| Error::damaged(name, error)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The days of the archive, in their order.
pub async fn manifests(place: &Place, layout: &Layout) -> Result<Vec<Manifest>, Error> {
    let mut days: Vec<_> = place.directories(&layout.root()).await?;
    days.sort();
    let mut found = Vec::new();
    for day in days.iter().filter_map(|name| name.strip_prefix("day=")).filter(|day| is_day(day)) {
        found.extend(manifest_of(place, layout, day).await?);
    }
    Ok(found)
}

/// Deletes what earlier runs left that did not come to their end.
pub async fn clear_staging(place: &Place, layout: &Layout, day: &str) -> Result<usize, Error> {
    let left = place.list(&layout.staging(day)).await?;
    for (name, _) in &left {
        place.delete(name).await?;
    }
    Ok(left.len())
}

/// Deletes a day, the manifest first: it says that all files are there. Returns how many files there were.
pub async fn delete_day(place: &Place, layout: &Layout, day: &str) -> Result<usize, Error> {
    place.delete(&layout.manifest(day)).await?;
    let files = place.list(&layout.day(day)).await?;
    for (name, _) in &files {
        place.delete(name).await?;
    }
    clear_staging(place, layout, day).await?;
    Ok(files.len())
}

/// Gives the files of a manifest their names. Those that have them already are looked at only.
pub async fn publish(place: &Place, manifest: &Manifest) -> Result<(), Error> {
    for part in manifest.parts.iter().filter(|part| !part.staged.is_empty()) {
        match place.rename(&part.staged, &part.path).await {
            Err(error) if error.is_missing() => match place.size(&part.path).await? {
                bytes if bytes == part.bytes => {}
                bytes => return Err(Error::damaged(&part.path, format!("{bytes} bytes instead of {}", part.bytes))),
            },
            other => other?,
        }
    }
    Ok(())
}

/// Writes the manifest, and deletes the files of the day that it does not name.
pub async fn finish(place: &Place, layout: &Layout, manifest: &Manifest) -> Result<(), Error> {
    write_manifest(place, layout, manifest).await?;
    discard(place, layout, manifest).await
}

/// Writes the manifest, without the names that files had first.
pub async fn write_manifest(place: &Place, layout: &Layout, manifest: &Manifest) -> Result<(), Error> {
    let mut public = manifest.clone();
    public.parts.iter_mut().for_each(|part| part.staged.clear());
    let text = serde_json::to_vec_pretty(&public).map_err(|error| Error::Ended(error.to_string()))?;
    place.put(&layout.manifest(&manifest.day), text.into()).await
}

/// Deletes the files of the day that a manifest does not name, and what is left of runs.
pub async fn discard(place: &Place, layout: &Layout, manifest: &Manifest) -> Result<(), Error> {
    for (name, _) in place.list(&layout.day(&manifest.day)).await? {
        if name.ends_with(".parquet") && !manifest.parts.iter().any(|part| part.path == name) {
            place.delete(&name).await?;
        }
    }
    clear_staging(place, layout, &manifest.day).await.map(drop)
}
