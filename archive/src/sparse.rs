//! A file of which only some parts were fetched, for a decoder that wants a whole one.

use std::ops::Range;

use bytes::{Buf as _, Bytes, buf::Reader};
use parquet::{
    errors::{ParquetError, Result},
    file::reader::{ChunkReader, Length},
};

/// The parts that were fetched. Whatever else is asked for is an error.
pub(crate) struct Sparse {
    bytes: u64,
    parts: Vec<(u64, Bytes)>,
}

impl Sparse {
    /// Of a file of this size, what begins at these places.
    pub(crate) fn new(bytes: u64, parts: Vec<(u64, Bytes)>) -> Self {
        Self { bytes, parts }
    }

    fn from(&self, start: u64) -> Result<Bytes> {
        let part = self.parts.iter().find(|(begin, data)| (*begin..begin + data.len() as u64).contains(&start));
        let (begin, data) =
            part.ok_or_else(|| ParquetError::General(format!("the part at byte {start} was not read")))?;
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
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let data = self.from(start)?;
        if data.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at byte {start} were not read")));
        }
        Ok(data.slice(..length))
    }
}

/// Where a part of a file is; `None`: it lies outside of the file, which is damaged then.
pub(crate) fn within(begin: i64, length: i64, file: u64) -> Option<Range<u64>> {
    let (begin, length) = (u64::try_from(begin).ok()?, u64::try_from(length).ok()?);
    let end = begin.checked_add(length)?;
    (end <= file).then_some(begin..end)
}
