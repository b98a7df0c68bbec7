//! The manifest lists the files of a day. It is written last: a file that no manifest lists is not part of the archive.

use serde::{Deserialize, Serialize};

/// Checksums to compare a table, a file and a manifest. Each is a sum over rows, so row order does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Number of rows.
    pub rows: i64,
    /// Sum of the job ids, serialized as a string because it may exceed the range of JSON numbers.
    #[serde(with = "decimal")]
    pub ids: i128,
    /// Sum of `(id mod 65521) * (payload_bytes + 1)`, which ties each payload length to its id.
    #[serde(with = "decimal")]
    pub lengths: i128,
}

impl Sums {
    /// Adds one row.
    pub fn add(&mut self, id: i64, payload_bytes: i64) {
        self.rows += 1;
        self.ids += i128::from(id);
        self.lengths += i128::from(id.rem_euclid(65_521)) * (i128::from(payload_bytes) + 1);
    }

    /// Adds the checksums of another set of rows.
    pub fn add_all(&mut self, other: &Self) {
        self.rows += other.rows;
        self.ids += other.ids;
        self.lengths += other.lengths;
    }
}

/// A Parquet file of a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    /// Path below the archive URL.
    pub path: String,
    /// Staging path under which the file is first written. Not part of the stored manifest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub staged: String,
    /// Task type of all jobs in the file.
    pub task_type: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Lowest job id.
    pub min_id: i64,
    /// Highest job id.
    pub max_id: i64,
    /// Checksums of the rows.
    #[serde(flatten)]
    pub sums: Sums,
}

/// The archived files of one day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the manifest format: 1.
    pub version: u32,
    /// Number of the store.
    pub store: u32,
    /// Day in UTC, such as `2026-11-22`.
    pub day: String,
    /// Id of the database that the jobs come from.
    pub database: String,
    /// Number that increases each time jobs are added to the day.
    pub generation: i32,
    /// How payloads are archived: `full` (as they are), `hash` (only their SHA-256) or `none`.
    pub payloads: String,
    /// One set of checksums over the jobs of all files.
    #[serde(flatten)]
    pub sums: Sums,
    /// Total size of all files in bytes.
    pub bytes: u64,
    /// Files of the day.
    pub parts: Vec<PartFile>,
}

impl Manifest {
    /// Adds files and their checksums.
    #[must_use]
    pub fn with(mut self, parts: Vec<PartFile>) -> Self {
        for part in parts {
            self.sums.add_all(&part.sums);
            self.bytes += part.bytes;
            self.parts.push(part);
        }
        self
    }
}

/// Serializes a large number as a decimal string.
mod decimal {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(number: &i128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i128, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let mut sums = Sums::default();
        sums.add(i64::MAX, 1 << 30);
        sums.add(i64::MAX - 1, 0);
        let part = PartFile {
            path: "store=0/x.parquet".into(),
            staged: String::new(),
            task_type: "t".into(),
            bytes: 7,
            sha256: "ab".into(),
            min_id: 1,
            max_id: 2,
            sums,
        };
        let manifest = Manifest { version: 1, day: "2026-11-22".into(), ..Manifest::default() };
        let manifest = manifest.with(vec![part.clone(), part]);
        let text = serde_json::to_string(&manifest).expect("JSON");
        assert_eq!(serde_json::from_str::<Manifest>(&text).expect("a manifest"), manifest);
        assert_eq!((manifest.sums.rows, manifest.bytes), (4, 14));
    }
}
