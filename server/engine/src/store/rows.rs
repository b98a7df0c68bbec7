//! Conversion of rows to values.

use std::time::{Duration, SystemTime};

use howdah_core::job::Lease;
use postgres_types::Json;
use serde::de::DeserializeOwned;
use tokio_postgres::{Row, types::FromSqlOwned};

/// A value that a row contains: one column, several columns, or a struct with the names of the columns.
pub(super) trait FromRow: Sized {
    fn from_row(row: &Row) -> Self;
}

/// Implements [`FromRow`] for a struct. A field has the value of the column with its name, unless an expression follows
/// the field.
macro_rules! from_row {
    ($name:ident($row:ident) { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        impl $crate::store::rows::FromRow for $name {
            fn from_row($row: &tokio_postgres::Row) -> Self {
                Self { $($field: $crate::store::rows::from_row!(@ $row $field $($value)?)),* }
            }
        }
    };
    (@ $row:ident $field:ident) => { $row.get(stringify!($field)) };
    (@ $row:ident $field:ident $value:expr) => { $value };
}
pub(super) use from_row;

/// Implements [`FromRow`] for types of a single column.
macro_rules! from_column {
    ($($column:ty),*) => {
        $(impl FromRow for $column {
            fn from_row(row: &Row) -> Self {
                row.get(0)
            }
        })*
    };
}
from_column!(bool, i32, i64, String, SystemTime, Vec<u8>);
from_column!(Option<bool>, Option<i64>, Option<String>);

impl<A: FromSqlOwned, B: FromSqlOwned> FromRow for (A, B) {
    fn from_row(row: &Row) -> Self {
        (row.get(0), row.get(1))
    }
}

impl<A: FromSqlOwned, B: FromSqlOwned, C: FromSqlOwned> FromRow for (A, B, C) {
    fn from_row(row: &Row) -> Self {
        (row.get(0), row.get(1), row.get(2))
    }
}

from_row! { Lease(row) { id, token } }

/// Converts all rows.
pub(super) fn all<T: FromRow, C: FromIterator<T>>(rows: &[Row]) -> C {
    rows.iter().map(T::from_row).collect()
}

/// Reads a duration from a column in ms. Negative durations count as zero.
pub(super) fn millis(row: &Row, column: &str) -> Option<Duration> {
    row.get::<_, Option<i64>>(column).map(|ms| Duration::from_millis(ms.max(0) as u64))
}

/// Reads a duration from a column in µs. Negative durations count as zero.
pub(super) fn micros(row: &Row, column: &str) -> Option<Duration> {
    row.get::<_, Option<i64>>(column).map(|us| Duration::from_micros(us.max(0) as u64))
}

/// Reads a JSON column. `None` if the column is missing or null, or has an invalid value, which a role with SQL access
/// may have written. Operators can still read such a row.
pub(super) fn json<T: DeserializeOwned>(row: &Row, column: &str) -> Option<T> {
    row.try_get::<_, Option<Json<T>>>(column).unwrap_or_default().map(|Json(value)| value)
}
