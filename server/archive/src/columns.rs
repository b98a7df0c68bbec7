//! Buffers the rows of one task type column by column until they form a Parquet row group.

use std::io::Write;

use bytes::Bytes;
use parquet::{
    data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    file::writer::{SerializedFileWriter, SerializedRowGroupWriter},
};

use crate::{Error, Job, Sums};

/// A nullable column of text or bytes: all values in one buffer, with the end offset of each value.
#[derive(Default)]
struct Blobs {
    data: Vec<u8>,
    ends: Vec<usize>,
    present: Vec<i16>,
}

impl Blobs {
    fn push(&mut self, value: Option<&[u8]>) {
        self.present.push(i16::from(value.is_some()));
        if let Some(value) = value {
            self.data.extend_from_slice(value);
            self.ends.push(self.data.len());
        }
    }

    fn values(self) -> (Vec<ByteArray>, Vec<i16>) {
        let data = Bytes::from(self.data);
        let mut begin = 0;
        let values =
            self.ends.into_iter().map(|end| ByteArray::from(data.slice(std::mem::replace(&mut begin, end)..end)));
        (values.collect(), self.present)
    }
}

/// A nullable column of timestamps.
#[derive(Default)]
struct Times {
    values: Vec<i64>,
    present: Vec<i16>,
}

/// Buffered rows of one task type.
#[derive(Default)]
pub(crate) struct Columns {
    id: Vec<i64>,
    task_type: String,
    created: Vec<i64>,
    leased_at: Times,
    finished: Vec<i64>,
    outcome: Blobs,
    attempt: Vec<i32>,
    max_attempts: Vec<i32>,
    priority: Vec<i32>,
    key: Blobs,
    limit_key: Blobs,
    fair_key: Blobs,
    headers: Blobs,
    options: Blobs,
    failures: Blobs,
    payload: Blobs,
    payload_bytes: Vec<i64>,
    payload_sha256: Blobs,
    result: Blobs,
    bytes: usize,
    sums: Sums,
}

impl Columns {
    pub(crate) fn new(task_type: &str) -> Self {
        Self { task_type: task_type.to_owned(), ..Self::default() }
    }

    /// Adds a row and returns its approximate size in memory.
    pub(crate) fn push(&mut self, job: &Job<'_>) -> usize {
        fn text(text: Option<&str>) -> Option<&[u8]> {
            text.map(str::as_bytes)
        }
        let before: usize = self.blobs().iter().map(|blobs| blobs.data.len()).sum();
        self.id.push(job.id);
        self.created.push(job.created);
        self.leased_at.present.push(i16::from(job.leased_at.is_some()));
        self.leased_at.values.extend(job.leased_at);
        self.finished.push(job.finished);
        self.outcome.push(Some(job.outcome.as_bytes()));
        self.attempt.push(job.attempt);
        self.max_attempts.push(job.max_attempts);
        self.priority.push(job.priority);
        self.key.push(text(job.key));
        self.limit_key.push(text(job.limit_key));
        self.fair_key.push(text(job.fair_key));
        self.headers.push(text(job.headers));
        self.options.push(text(job.options));
        self.failures.push(text(job.failures));
        self.payload.push(job.payload);
        self.payload_bytes.push(job.payload_bytes);
        self.payload_sha256.push(job.payload_sha256);
        self.result.push(job.result);
        self.sums.add(job.id, job.payload_bytes);
        let after: usize = self.blobs().iter().map(|blobs| blobs.data.len()).sum();
        // Estimate: 9 numeric columns of 8 bytes each, plus 10 bytes per blob column for its end offset and presence flag.
        let size = after - before + 9 * 8 + 10 * 10;
        self.bytes += size;
        size
    }

    fn blobs(&self) -> [&Blobs; 10] {
        [
            &self.outcome,
            &self.key,
            &self.limit_key,
            &self.fair_key,
            &self.headers,
            &self.options,
            &self.failures,
            &self.payload,
            &self.payload_sha256,
            &self.result,
        ]
    }

    pub(crate) fn task_type(&self) -> &str {
        &self.task_type
    }

    pub(crate) fn rows(&self) -> usize {
        self.id.len()
    }

    /// Approximate size of the buffered rows in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn sums(&self) -> Sums {
        self.sums
    }

    /// Lowest and highest job id of the buffered rows; `None` if no row is buffered.
    pub(crate) fn ids(&self) -> Option<(i64, i64)> {
        Some((*self.id.iter().min()?, *self.id.iter().max()?))
    }

    /// Writes the rows as one row group.
    pub(crate) fn write<W: Write + Send>(self, file: &mut SerializedFileWriter<W>) -> Result<(), Error> {
        let rows = self.rows();
        let task_type = ByteArray::from(Bytes::from(self.task_type.into_bytes()));
        let mut group = file.next_row_group()?;
        let g = &mut group;
        column::<Int64Type, _>(g, &self.id, None)?;
        column::<ByteArrayType, _>(g, &vec![task_type; rows], None)?;
        column::<Int64Type, _>(g, &self.created, None)?;
        column::<Int64Type, _>(g, &self.leased_at.values, Some(&self.leased_at.present))?;
        column::<Int64Type, _>(g, &self.finished, None)?;
        column::<ByteArrayType, _>(g, &self.outcome.values().0, None)?;
        column::<Int32Type, _>(g, &self.attempt, None)?;
        column::<Int32Type, _>(g, &self.max_attempts, None)?;
        column::<Int32Type, _>(g, &self.priority, None)?;
        for blobs in [self.key, self.limit_key, self.fair_key, self.headers, self.options, self.failures, self.payload]
        {
            optional(g, blobs)?;
        }
        column::<Int64Type, _>(g, &self.payload_bytes, None)?;
        optional(g, self.payload_sha256)?;
        optional(g, self.result)?;
        group.close()?;
        Ok(())
    }
}

fn optional<W: Write + Send>(group: &mut SerializedRowGroupWriter<'_, W>, blobs: Blobs) -> Result<(), Error> {
    let (values, present) = blobs.values();
    column::<ByteArrayType, _>(group, &values, Some(&present))
}

fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    present: Option<&[i16]>,
) -> Result<(), Error> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| Error::Ended("bug: the Parquet schema has fewer columns than a buffered job".into()))?;
    column.typed::<T>().write_batch(values, present, None)?;
    Ok(column.close()?)
}
