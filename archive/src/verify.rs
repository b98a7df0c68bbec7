//! Reading files back: what lies there is compared with what was meant to be written.

use bytes::Bytes;
use parquet::file::{reader::FileReader as _, serialized_reader::SerializedFileReader};
use sha2::{Digest as _, Sha256};

use crate::{
    Error, PartFile, Place, Sums,
    decode::numbers,
    schema::{ID, PAYLOAD_BYTES},
};

/// Reads a file as a whole: its size, its hash, its footer, and the sums of what it holds. `name` is where it lies: its name
/// in the archive, or the one under which it was written first.
pub async fn check(place: &Place, name: &str, part: &PartFile) -> Result<(), Error> {
    let data = place.get(name).await?;
    let (name, part) = (name.to_owned(), part.clone());
    let checked = tokio::task::spawn_blocking(move || compare(&name, data, &part));
    checked.await.map_err(|error| Error::Ended(error.to_string()))?
}

fn compare(name: &str, data: Bytes, part: &PartFile) -> Result<(), Error> {
    let damaged = |problem: String| Error::damaged(name, problem);
    if data.len() as u64 != part.bytes {
        return Err(damaged(format!("{} bytes instead of {}", data.len(), part.bytes)));
    }
    if hex::encode(Sha256::digest(&data)) != part.sha256 {
        return Err(damaged("its hash is another one".into()));
    }
    let found = sums_of(data).map_err(|error| damaged(error.to_string()))?;
    if found != part.sums {
        return Err(damaged(format!("it holds {found:?} instead of {:?}", part.sums)));
    }
    Ok(())
}

/// What a file holds, by its columns.
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
    if sums.rows != file.metadata().file_metadata().num_rows() {
        return Err(Error::Ended(format!("{} rows, and the footer says otherwise", sums.rows)));
    }
    Ok(sums)
}

/// The ids in a file, in its order.
pub fn ids_of(data: Bytes) -> Result<Vec<i64>, Error> {
    let file = SerializedFileReader::new(data)?;
    let mut ids = Vec::new();
    for number in 0..file.num_row_groups() {
        ids.extend(numbers(file.get_row_group(number)?.as_ref(), ID)?);
    }
    Ok(ids)
}
