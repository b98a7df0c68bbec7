//! One file that is read in parts: its footer, filters, and row groups, as they are needed.

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
    Error, Place, Row,
    decode::{self, Seen},
    schema::{FILTERED, ID},
    sparse::{Sparse, within},
};

/// How much of the end of a file is read at first: the footer of 64 row groups and more.
const TAIL: u64 = 64 << 10;
/// The rows of a page, if they are small.
const PAGE_ROWS: usize = 20_480;
/// The largest footer that is read.
const LARGEST_FOOTER: u64 = 64 << 20;

/// A file and its footer.
pub struct OpenFile {
    place: Place,
    name: String,
    bytes: u64,
    footer: Arc<ParquetMetaData>,
    properties: ReaderPropertiesPtr,
}

impl OpenFile {
    /// Reads the footer of a file of this size.
    pub async fn open(place: Place, name: &str, bytes: u64) -> Result<Self, Error> {
        let short = || Error::damaged(name, format!("its {bytes} bytes are no Parquet file"));
        let mut begin = bytes.saturating_sub(TAIL);
        let mut tail = place.part(name, begin..bytes).await?;
        let (rest, magic) = tail.split_last_chunk::<8>().ok_or_else(short)?;
        let [a, b, c, d, b'P', b'A', b'R', b'1'] = *magic else { return Err(short()) };
        let length = u64::from(u32::from_le_bytes([a, b, c, d]));
        if length > bytes - 8 || length > LARGEST_FOOTER {
            return Err(Error::damaged(name, format!("its footer is to have {length} bytes")));
        }
        if length > rest.len() as u64 {
            begin = bytes - 8 - length;
            tail = place.part(name, begin..bytes).await?;
        }
        let end = tail.len() - 8;
        let footer = tail.slice(end - length as usize..end);
        let footer = ParquetMetaDataReader::decode_metadata(&footer).map_err(|error| Error::damaged(name, error))?;
        decode::check_columns(footer.file_metadata().schema_descr()).map_err(|error| Error::damaged(name, error))?;
        Ok(Self {
            place,
            name: name.to_owned(),
            bytes,
            footer: Arc::new(footer),
            properties: Arc::new(ReaderProperties::builder().build()),
        })
    }

    /// Its name in the archive.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of its row groups.
    pub(crate) fn groups(&self) -> Range<usize> {
        0..self.footer.num_row_groups()
    }

    /// How many rows a row group has.
    pub(crate) fn rows_of(&self, group: usize) -> usize {
        self.group(group).num_rows().max(0) as usize
    }

    fn group(&self, number: usize) -> &RowGroupMetaData {
        self.footer.row_group(number)
    }

    /// The lowest and the highest value of a column of numbers in a row group; without statistics, any number.
    pub(crate) fn range(&self, group: usize, column: usize) -> (i64, i64) {
        match self.group(group).column(column).statistics() {
            Some(Statistics::Int64(numbers)) => {
                (numbers.min_opt().copied().unwrap_or(i64::MIN), numbers.max_opt().copied().unwrap_or(i64::MAX))
            }
            _ => (i64::MIN, i64::MAX),
        }
    }

    /// Whether the Bloom filter of a column says that this value may be there. Without a filter, it may.
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
        let filter = Sbbf::from_bytes(&self.place.part(&self.name, part).await?);
        Ok(filter.map_err(|error| Error::damaged(&self.name, error))?.check(value))
    }

    /// What is needed of a row group to choose rows, for each of its rows in their order.
    pub(crate) async fn seen(&self, group: usize) -> Result<Seen, Error> {
        let mut parts = Vec::with_capacity(FILTERED.len());
        for column in FILTERED {
            parts.push(self.fetch(self.column(group, column)?).await?);
        }
        self.decode(group, parts, decode::seen).await
    }

    /// The ids in a row group, in their order.
    pub(crate) async fn ids(&self, group: usize) -> Result<Vec<i64>, Error> {
        let part = self.fetch(self.column(group, ID)?).await?;
        self.decode(group, vec![part], |group| decode::numbers(group, ID)).await
    }

    /// These rows of a row group, whose numbers ascend. Payloads and results only if they are wanted.
    pub(crate) async fn rows(&self, group: usize, rows: Vec<usize>, payloads: bool) -> Result<Vec<Row>, Error> {
        let part = self.whole(group).await?;
        self.decode(group, vec![part], move |group| decode::rows(group, &rows, payloads)).await
    }

    /// The same, piece by piece: a row group has far more memory as rows than as columns. False: nobody takes them any more.
    pub(crate) async fn send_rows(
        &self,
        group: usize,
        rows: Vec<usize>,
        payloads: bool,
        to: mpsc::Sender<Vec<Row>>,
    ) -> Result<bool, Error> {
        let part = self.whole(group).await?;
        let send = move |group: &decode::Group<'_>| {
            // As many as a page has, so that few pages are decoded twice.
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
        // Columns lie one behind the other, so this is one request.
        let first = self.column(group, ID)?;
        let last = self.column(group, self.group(group).num_columns() - 1)?;
        self.fetch(first.start.min(last.start)..first.end.max(last.end)).await
    }

    fn outside(&self) -> Error {
        Error::damaged(&self.name, "its footer names parts that are outside of it")
    }

    fn column(&self, group: usize, column: usize) -> Result<Range<u64>, Error> {
        let column = self.group(group).column(column);
        let first = column.dictionary_page_offset().unwrap_or(i64::MAX).min(column.data_page_offset());
        within(first, column.compressed_size(), self.bytes).ok_or_else(|| self.outside())
    }

    async fn fetch(&self, part: Range<u64>) -> Result<(u64, Bytes), Error> {
        Ok((part.start, self.place.part(&self.name, part).await?))
    }

    /// Decodes on a thread of its own: a row group takes some ten milliseconds.
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
