//! A partly fetched file that looks like a whole one to the Parquet decoder.

use std::ops::Range;

use bytes::{Buf as _, Bytes, buf::Reader};
use parquet::{
    errors::{ParquetError, Result},
    file::reader::{ChunkReader, Length},
};

/// The fetched byte ranges of a file. Reading any other range fails.
pub(crate) struct Sparse {
    bytes: u64,
    parts: Vec<(u64, Bytes)>,
}

impl Sparse {
    /// Creates a file of `bytes` bytes in total, of which `parts` were fetched, each with its offset.
    pub(crate) fn new(bytes: u64, parts: Vec<(u64, Bytes)>) -> Self {
        Self { bytes, parts }
    }

    fn data_at(&self, start: u64) -> Result<Bytes> {
        let part = self.parts.iter().find(|(begin, data)| (*begin..begin + data.len() as u64).contains(&start));
        let (begin, data) = part.ok_or_else(|| {
            ParquetError::General(format!(
                "bug: the Parquet reader wants byte {start} of the file, which was not fetched"
            ))
        })?;
        Ok(data.slice((start - begin) as usize..))
    }
}

impl Length for Sparse {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Sparse {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.data_at(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let data = self.data_at(start)?;
        if data.len() < length {
            return Err(ParquetError::EOF(format!(
                "bug: the Parquet reader wants {length} bytes at byte {start}, of which {} were fetched",
                data.len()
            )));
        }
        Ok(data.slice(..length))
    }
}

/// Byte range that a footer refers to; `None` if it exceeds the size of the file, which is then damaged.
pub(crate) fn within(begin: i64, length: i64, file: u64) -> Option<Range<u64>> {
    let (begin, length) = (u64::try_from(begin).ok()?, u64::try_from(length).ok()?);
    let end = begin.checked_add(length)?;
    (end <= file).then_some(begin..end)
}
