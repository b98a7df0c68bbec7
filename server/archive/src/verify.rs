//! Checks written files against their manifest entries.

use bytes::Bytes;
use parquet::file::{reader::FileReader as _, serialized_reader::SerializedFileReader};
use sha2::{Digest as _, Sha256};

use crate::{
    Error, Location, PartFile, Sums,
    decode::numbers,
    schema::{ID, PAYLOAD_BYTES},
};

/// Reads a whole file and compares its size, hash, footer and checksums with `part`. `name` is its published or its staging path.
pub async fn check(location: &Location, name: &str, part: &PartFile) -> Result<(), Error> {
    let data = location.get(name).await?;
    let (name, part) = (name.to_owned(), part.clone());
    let checked = tokio::task::spawn_blocking(move || compare(&name, data, &part));
    checked.await.map_err(|error| Error::Ended(error.to_string()))?
}

fn compare(name: &str, data: Bytes, part: &PartFile) -> Result<(), Error> {
    let damaged = |problem: String| Error::damaged(name, problem);
    if data.len() as u64 != part.bytes {
        return Err(damaged(format!("the file has {} bytes instead of {}", data.len(), part.bytes)));
    }
    if hex::encode(Sha256::digest(&data)) != part.sha256 {
        return Err(damaged("SHA-256 mismatch".into()));
    }
    let found = sums_of(data).map_err(|error| damaged(error.to_string()))?;
    if found != part.sums {
        return Err(damaged(format!("the rows have the checksums {found:?}, but the manifest has {:?}", part.sums)));
    }
    Ok(())
}

/// Computes the checksums of a file from its columns.
pub(crate) fn sums_of(data: Bytes) -> Result<Sums, Error> {
    let file = SerializedFileReader::new(data)?;
    let mut sums = Sums::default();
    for number in 0..file.num_row_groups() {
        let group = file.get_row_group(number)?;
        let ids = numbers(group.as_ref(), ID)?;
        let lengths = numbers(group.as_ref(), PAYLOAD_BYTES)?;
        for (id, length) in ids.iter().zip(&lengths) {
            sums.add(*id, *length);
        }
    }
    let counted = file.metadata().file_metadata().num_rows();
    if sums.rows != counted {
        return Err(Error::Ended(format!("the file has {} rows, but its footer says {counted}", sums.rows)));
    }
    Ok(sums)
}

/// Reads the job ids of a file, in file order.
pub fn ids_of(data: Bytes) -> Result<Vec<i64>, Error> {
    let file = SerializedFileReader::new(data)?;
    let mut ids = Vec::new();
    for number in 0..file.num_row_groups() {
        ids.extend(numbers(file.get_row_group(number)?.as_ref(), ID)?);
    }
    Ok(ids)
}
