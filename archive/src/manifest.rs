//! What a day consists of. The manifest is written last: a file that it does not name is not part of the archive.

use serde::{Deserialize, Serialize};

/// What is compared between a table, a file and a manifest. Each is a sum over rows, so that no order matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Number of rows.
    pub rows: i64,
    /// The sum of their ids. Written as text: JSON has no such numbers.
    #[serde(with = "decimal")]
    pub ids: i128,
    /// The sum of (id mod 65521) * (bytes of the payload + 1): it ties each length to its id.
    #[serde(with = "decimal")]
    pub lengths: i128,
}

impl Sums {
    /// With one more row.
    pub fn add(&mut self, id: i64, payload_bytes: i64) {
        self.rows += 1;
        self.ids += i128::from(id);
        self.lengths += i128::from(id.rem_euclid(65_521)) * (i128::from(payload_bytes) + 1);
    }

    /// With the rows of another part.
    pub fn add_all(&mut self, other: &Self) {
        self.rows += other.rows;
        self.ids += other.ids;
        self.lengths += other.lengths;
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    /// Its name below the archive's URL.
    pub path: String,
    /// The name under which it is written first. Not in the manifest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub staged: String,
    /// The task type of all of its jobs.
    pub task_type: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal digits.
    pub sha256: String,
    /// The lowest id in it.
    pub min_id: i64,
    /// The highest id in it.
    pub max_id: i64,
    /// What it holds.
    #[serde(flatten)]
    pub sums: Sums,
}

/// A day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Of this format: 1.
    pub version: u32,
    /// The number of the store.
    pub store: u32,
    /// As `2026-11-22`, in UTC.
    pub day: String,
    /// The database whose jobs these are, as brokers know it.
    pub database: String,
    /// Raised each time that jobs are added.
    pub generation: i32,
    /// `full`, `hash` or `none`.
    pub payloads: String,
    /// All parts together.
    #[serde(flatten)]
    pub sums: Sums,
    /// Their size together.
    pub bytes: u64,
    /// The files.
    pub parts: Vec<PartFile>,
}

impl Manifest {
    /// The same with more files.
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

/// A large number as text.
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
