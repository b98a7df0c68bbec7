//! Reads one Parquet file in byte ranges: the footer, Bloom filters and row groups as needed.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use parquet::{
    bloom_filter::Sbbf,
    data_type::AsBytes,
    file::{
        metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData},
        properties::{ReaderProperties, ReaderPropertiesPtr},
        serialized_reader::SerializedRowGroupReader,
        statistics::Statistics,
    },
};
use tokio::sync::mpsc;

use crate::{
    Error, Location, Row,
    decode::{self, FilterColumns},
    schema::{FILTERED, ID},
    sparse::{Sparse, within},
};

/// Number of bytes first read from the end of a file: enough for the footer of 64 row groups.
const TAIL: u64 = 64 << 10;
/// Maximum number of rows per Parquet page. Pages of large rows have fewer.
const PAGE_ROWS: usize = 20_480;
/// Maximum size of a Parquet footer, in bytes.
const LARGEST_FOOTER: u64 = 64 << 20;

/// A Parquet file with its footer.
pub struct OpenFile {
    location: Location,
    name: String,
    bytes: u64,
    footer: Arc<ParquetMetaData>,
    properties: ReaderPropertiesPtr,
}

impl OpenFile {
    /// Reads the footer of a file of `bytes` bytes.
    pub async fn open(location: Location, name: &str, bytes: u64) -> Result<Self, Error> {
        let short = || Error::damaged(name, format!("not a Parquet file ({bytes} bytes)"));
        let mut begin = bytes.saturating_sub(TAIL);
        let mut tail = location.part(name, begin..bytes).await?;
        let (rest, magic) = tail.split_last_chunk::<8>().ok_or_else(short)?;
        let [a, b, c, d, b'P', b'A', b'R', b'1'] = *magic else { return Err(short()) };
        let length = u64::from(u32::from_le_bytes([a, b, c, d]));
        if length > bytes - 8 || length > LARGEST_FOOTER {
            return Err(Error::damaged(name, format!("invalid footer length: {length} bytes")));
        }
        if length > rest.len() as u64 {
            begin = bytes - 8 - length;
            tail = location.part(name, begin..bytes).await?;
        }
        let end = tail.len() - 8;
        let footer = tail.slice(end - length as usize..end);
        let footer = ParquetMetaDataReader::decode_metadata(&footer).map_err(|error| Error::damaged(name, error))?;
        decode::check_columns(footer.file_metadata().schema_descr()).map_err(|error| Error::damaged(name, error))?;
        Ok(Self {
            location,
            name: name.to_owned(),
            bytes,
            footer: Arc::new(footer),
            properties: Arc::new(ReaderProperties::builder().build()),
        })
    }

    /// Path of the file in the archive.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Indexes of the row groups in the file.
    pub(crate) fn groups(&self) -> Range<usize> {
        0..self.footer.num_row_groups()
    }

    /// Number of rows in a row group.
    pub(crate) fn rows_of(&self, group: usize) -> usize {
        self.group(group).num_rows().max(0) as usize
    }

    fn group(&self, number: usize) -> &RowGroupMetaData {
        self.footer.row_group(number)
    }

    /// Lowest and highest value of an `INT64` column in a row group; the full range if there are no statistics.
    pub(crate) fn range(&self, group: usize, column: usize) -> (i64, i64) {
        match self.group(group).column(column).statistics() {
            Some(Statistics::Int64(numbers)) => {
                (numbers.min_opt().copied().unwrap_or(i64::MIN), numbers.max_opt().copied().unwrap_or(i64::MAX))
            }
            _ => (i64::MIN, i64::MAX),
        }
    }

    /// Whether the Bloom filter of a column allows `value`. True if there is no filter.
    pub(crate) async fn may_have<T: AsBytes + ?Sized>(
        &self,
        group: usize,
        column: usize,
        value: &T,
    ) -> Result<bool, Error> {
        let column = self.group(group).column(column);
        let (Some(begin), Some(length)) = (column.bloom_filter_offset(), column.bloom_filter_length()) else {
            return Ok(true);
        };
        let part = within(begin, length.into(), self.bytes).ok_or_else(|| self.outside())?;
        let filter = Sbbf::from_bytes(&self.location.part(&self.name, part).await?);
        Ok(filter.map_err(|error| Error::damaged(&self.name, error))?.check(value))
    }

    /// Reads the columns that [`crate::JobFilter`] compares, with one entry per row.
    pub(crate) async fn filter_columns(&self, group: usize) -> Result<FilterColumns, Error> {
        let mut parts = Vec::with_capacity(FILTERED.len());
        for column in FILTERED {
            parts.push(self.fetch(self.column(group, column)?).await?);
        }
        self.decode(group, parts, decode::filter_columns).await
    }

    /// Reads the job ids of a row group, in file order.
    pub(crate) async fn ids(&self, group: usize) -> Result<Vec<i64>, Error> {
        let part = self.fetch(self.column(group, ID)?).await?;
        self.decode(group, vec![part], |group| decode::numbers(group, ID)).await
    }

    /// Reads the rows at the positions in `rows`, which must be in ascending order. Payloads and results are read if `payloads` is
    /// set.
    pub(crate) async fn rows(&self, group: usize, rows: Vec<usize>, payloads: bool) -> Result<Vec<Row>, Error> {
        let part = self.whole(group).await?;
        self.decode(group, vec![part], move |group| decode::rows(group, &rows, payloads)).await
    }

    /// Sends rows to a channel, in pieces of at most one page, because a row group takes much more memory as rows than as columns.
    /// Returns false if the receiver has closed the channel.
    pub(crate) async fn send_rows(
        &self,
        group: usize,
        rows: Vec<usize>,
        payloads: bool,
        to: mpsc::Sender<Vec<Row>>,
    ) -> Result<bool, Error> {
        let part = self.whole(group).await?;
        let send = move |group: &decode::Group<'_>| {
            // Cut at page boundaries, so that few pages are decoded twice.
            for piece in rows.chunk_by(|one, next| one / PAGE_ROWS == next / PAGE_ROWS) {
                if to.blocking_send(decode::rows(group, piece, payloads)?).is_err() {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        self.decode(group, vec![part], send).await
    }

    async fn whole(&self, group: usize) -> Result<(u64, Bytes), Error> {
        // The columns are contiguous, so one request fetches all of them.
        let first = self.column(group, ID)?;
        let last = self.column(group, self.group(group).num_columns() - 1)?;
        self.fetch(first.start.min(last.start)..first.end.max(last.end)).await
    }

    fn outside(&self) -> Error {
        Error::damaged(&self.name, "the footer refers to bytes beyond the end of the file")
    }

    fn column(&self, group: usize, column: usize) -> Result<Range<u64>, Error> {
        let column = self.group(group).column(column);
        let first = column.dictionary_page_offset().unwrap_or(i64::MAX).min(column.data_page_offset());
        within(first, column.compressed_size(), self.bytes).ok_or_else(|| self.outside())
    }

    async fn fetch(&self, part: Range<u64>) -> Result<(u64, Bytes), Error> {
        Ok((part.start, self.location.part(&self.name, part).await?))
    }

    /// Decodes a row group on a blocking thread, because decoding takes about ten milliseconds.
    async fn decode<T: Send + 'static>(
        &self,
        group: usize,
        parts: Vec<(u64, Bytes)>,
        decode: impl FnOnce(&decode::Group<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (footer, properties) = (self.footer.clone(), self.properties.clone());
        let data = Arc::new(Sparse::new(self.bytes, parts));
        let decoded = tokio::task::spawn_blocking(move || {
            let index = footer.page_index_for_row_group(group);
            let group = SerializedRowGroupReader::new(data, footer.row_group(group), index, properties)?;
            decode(&group)
        });
        let decoded = decoded.await.map_err(|error| Error::Ended(error.to_string()))?;
        decoded.map_err(|error| Error::damaged(&self.name, error))
    }
}
