//! Decodes Parquet columns into rows.

use bytes::Bytes;
use parquet::{
    column::reader::{ColumnReader, get_typed_column_reader},
    data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    file::{reader::RowGroupReader, serialized_reader::SerializedRowGroupReader},
    schema::types::SchemaDescriptor,
};

use crate::{
    Error, Row,
    schema::{self, ID},
    sparse::Sparse,
};

/// Reader of a row group, of which only the needed byte ranges were fetched.
pub(crate) type Group<'a> = SerializedRowGroupReader<'a, Sparse>;

/// Columns of a row group that [`crate::JobFilter`] compares, with one entry per row.
pub(crate) struct FilterColumns {
    pub(crate) finished: Vec<i64>,
    pub(crate) outcomes: Vec<ByteArray>,
    pub(crate) keys: Vec<Option<ByteArray>>,
}

/// Fails unless the file has the expected columns at the expected positions. Later releases may append columns.
pub(crate) fn check_columns(found: &SchemaDescriptor) -> Result<(), Error> {
    let expected = SchemaDescriptor::new(schema::schema()?);
    for (at, column) in expected.columns().iter().enumerate() {
        let same = found
            .columns()
            .get(at)
            .is_some_and(|found| found.name() == column.name() && found.physical_type() == column.physical_type());
        if !same {
            return Err(Error::Ended(format!("column {at} is not {}, or has the wrong type", column.name())));
        }
    }
    Ok(())
}

pub(crate) fn filter_columns(group: &Group<'_>) -> Result<FilterColumns, Error> {
    let all: Vec<usize> = (0..rows_of(group)).collect();
    Ok(FilterColumns {
        finished: numbers(group, schema::FINISHED)?,
        outcomes: required::<ByteArrayType>(group, schema::OUTCOME, &all)?,
        keys: optional::<ByteArrayType>(group, schema::KEY, &all)?,
    })
}

/// Reads a required `INT64` column.
pub(crate) fn numbers(group: &dyn RowGroupReader, column: usize) -> Result<Vec<i64>, Error> {
    let rows = rows_of(group);
    let mut values = Vec::with_capacity(rows);
    let ColumnReader::Int64ColumnReader(mut reader) = group.get_column_reader(column)? else {
        return Err(Error::Ended(format!("column {column} is not of type INT64")));
    };
    while values.len() < rows {
        let (records, ..) = reader.read_records(rows - values.len(), None, None, &mut values)?;
        if records == 0 {
            return Err(Error::Ended(format!("column {column} ends after {} of {rows} rows", values.len())));
        }
    }
    Ok(values)
}

fn rows_of(group: &dyn RowGroupReader) -> usize {
    group.metadata().num_rows().max(0) as usize
}

/// Decodes the rows at the positions in `wanted`, which must be in ascending order.
pub(crate) fn rows(group: &Group<'_>, wanted: &[usize], payloads: bool) -> Result<Vec<Row>, Error> {
    let ids = required::<Int64Type>(group, ID, wanted)?;
    let mut rows: Vec<Row> = ids.into_iter().map(|id| Row { id, ..Row::default() }).collect();
    macro_rules! column {
        ($at:expr, $read:ident::<$kind:ty>, $field:ident, $convert:expr) => {
            for (row, value) in rows.iter_mut().zip($read::<$kind>(group, $at, wanted)?) {
                row.$field = $convert(value)?;
            }
        };
    }
    column!(1, required::<ByteArrayType>, task_type, text);
    column!(2, required::<Int64Type>, created, Ok::<_, Error>);
    column!(3, optional::<Int64Type>, leased_at, Ok::<_, Error>);
    column!(schema::FINISHED, required::<Int64Type>, finished, Ok::<_, Error>);
    column!(schema::OUTCOME, required::<ByteArrayType>, outcome, text);
    column!(6, required::<Int32Type>, attempt, Ok::<_, Error>);
    column!(7, required::<Int32Type>, max_attempts, Ok::<_, Error>);
    column!(8, required::<Int32Type>, priority, Ok::<_, Error>);
    column!(schema::KEY, optional::<ByteArrayType>, key, maybe_text);
    column!(10, optional::<ByteArrayType>, limit_key, maybe_text);
    column!(11, optional::<ByteArrayType>, fair_key, maybe_text);
    column!(12, optional::<ByteArrayType>, headers, maybe_text);
    column!(13, optional::<ByteArrayType>, options, maybe_text);
    column!(14, optional::<ByteArrayType>, failures, maybe_text);
    column!(schema::PAYLOAD_BYTES, required::<Int64Type>, payload_bytes, Ok::<_, Error>);
    if payloads {
        column!(15, optional::<ByteArrayType>, payload, bytes);
        column!(17, optional::<ByteArrayType>, payload_sha256, bytes);
        column!(18, optional::<ByteArrayType>, result, bytes);
    }
    Ok(rows)
}

#[allow(clippy::needless_pass_by_value)] // same signature as the other conversions
fn text(value: ByteArray) -> Result<String, Error> {
    String::from_utf8(value.data().to_vec()).map_err(|error| Error::Ended(error.to_string()))
}

fn maybe_text(value: Option<ByteArray>) -> Result<Option<String>, Error> {
    value.map(text).transpose()
}

/// Copies the bytes, because a slice would keep its whole page in memory.
#[allow(clippy::unnecessary_wraps)] // same signature as the other conversions
fn bytes(value: Option<ByteArray>) -> Result<Option<Bytes>, Error> {
    Ok(value.map(|value| Bytes::copy_from_slice(value.data())))
}

fn required<T: DataType>(group: &Group<'_>, column: usize, wanted: &[usize]) -> Result<Vec<T::T>, Error> {
    let values = optional::<T>(group, column, wanted)?;
    let found: Vec<T::T> = values.into_iter().flatten().collect();
    if found.len() == wanted.len() {
        Ok(found)
    } else {
        Err(Error::Ended(format!("column {column} is required, but some rows have no value in it")))
    }
}

/// Reads a column at the positions in `wanted`. Pages without a wanted row are skipped without decompression.
fn optional<T: DataType>(group: &Group<'_>, column: usize, wanted: &[usize]) -> Result<Vec<Option<T::T>>, Error> {
    let ends_early = || Error::Ended(format!("column {column} has fewer values than rows"));
    let may_be_missing = group.metadata().column(column).column_descr().max_def_level() > 0;
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(column)?);
    let mut found = Vec::with_capacity(wanted.len());
    let (mut at, mut values, mut present) = (0, Vec::new(), Vec::new());
    for run in wanted.chunk_by(|one, next| one + 1 == *next) {
        let Some(first) = run.first() else { continue };
        if reader.skip_records(first - at)? != first - at {
            return Err(ends_early());
        }
        values.clear();
        present.clear();
        let mut read = 0;
        while read < run.len() {
            let (records, ..) = reader.read_records(run.len() - read, Some(&mut present), None, &mut values)?;
            if records == 0 {
                return Err(ends_early());
            }
            read += records;
        }
        at = first + run.len();
        let mut values = values.drain(..);
        if may_be_missing {
            found.extend(present.iter().map(|level| if *level > 0 { values.next() } else { None }));
        } else {
            found.extend(values.map(Some));
        }
    }
    Ok(found)
}
