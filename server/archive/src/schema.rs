//! Columns of the Parquet files. Existing columns never change their meaning; new ones are appended.

use std::sync::{Arc, LazyLock};

use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    file::properties::{EnabledStatistics, WriterProperties},
    schema::{
        parser::parse_message_type,
        types::{ColumnPath, TypePtr},
    },
};

use crate::Error;

/// Maximum number of rows in a row group.
pub(crate) const GROUP_ROWS: usize = 65_536;

const MESSAGE: &str = "message job {
    REQUIRED INT64 id;
    REQUIRED BYTE_ARRAY task_type (UTF8);
    REQUIRED INT64 created (TIMESTAMP(MICROS,true));
    OPTIONAL INT64 leased_at (TIMESTAMP(MICROS,true));
    REQUIRED INT64 finished (TIMESTAMP(MICROS,true));
    REQUIRED BYTE_ARRAY outcome (UTF8);
    REQUIRED INT32 attempt;
    REQUIRED INT32 max_attempts;
    REQUIRED INT32 priority;
    OPTIONAL BYTE_ARRAY key (UTF8);
    OPTIONAL BYTE_ARRAY limit_key (UTF8);
    OPTIONAL BYTE_ARRAY fair_key (UTF8);
    OPTIONAL BYTE_ARRAY headers (UTF8);
    OPTIONAL BYTE_ARRAY options (UTF8);
    OPTIONAL BYTE_ARRAY failures (UTF8);
    OPTIONAL BYTE_ARRAY payload;
    REQUIRED INT64 payload_bytes;
    OPTIONAL BYTE_ARRAY payload_sha256;
    OPTIONAL BYTE_ARRAY result;
}";

/// Position of column `id`.
pub(crate) const ID: usize = 0;
/// Position of column `finished`.
pub(crate) const FINISHED: usize = 4;
/// Position of column `outcome`.
pub(crate) const OUTCOME: usize = 5;
/// Position of column `key`.
pub(crate) const KEY: usize = 9;
/// Position of column `payload_bytes`.
pub(crate) const PAYLOAD_BYTES: usize = 16;
/// Positions of the columns that job filters compare.
pub(crate) const FILTERED: [usize; 3] = [FINISHED, OUTCOME, KEY];

static SCHEMA: LazyLock<Result<TypePtr, String>> =
    LazyLock::new(|| parse_message_type(MESSAGE).map(Arc::new).map_err(|error| error.to_string()));

/// The Parquet schema of every archive file.
pub(crate) fn schema() -> Result<TypePtr, Error> {
    SCHEMA.clone().map_err(Error::Ended)
}

/// Parquet encodings. Ids and times are close together, so they are delta-encoded. Payloads and results rarely repeat, so a
/// dictionary would cost time and save nothing.
pub(crate) fn properties() -> WriterProperties {
    let column = |name: &str| ColumnPath::from(name);
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("howdah ", env!("CARGO_PKG_VERSION")).into())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3).unwrap_or_default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_column_statistics_enabled(column("id"), EnabledStatistics::Page)
        .set_max_row_group_row_count(Some(GROUP_ROWS));
    for name in ["id", "created", "leased_at", "finished"] {
        builder = builder
            .set_column_dictionary_enabled(column(name), false)
            .set_column_encoding(column(name), Encoding::DELTA_BINARY_PACKED);
    }
    for name in ["key", "failures", "payload", "payload_sha256", "result"] {
        builder = builder.set_column_dictionary_enabled(column(name), false);
    }
    for name in ["payload", "payload_sha256", "result", "headers", "options", "failures"] {
        builder = builder.set_column_statistics_enabled(column(name), EnabledStatistics::None);
    }
    for name in ["id", "key"] {
        builder = builder
            .set_column_bloom_filter_enabled(column(name), true)
            .set_column_bloom_filter_fpp(column(name), 0.01)
            .set_column_bloom_filter_max_ndv(column(name), GROUP_ROWS as u64);
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    #[test]
    fn column_constants_are_positions_in_the_schema() {
        let schema = SchemaDescriptor::new(schema().expect("a schema"));
        let names = [ID, FINISHED, OUTCOME, KEY, PAYLOAD_BYTES].map(|at| schema.column(at).name().to_owned());
        assert_eq!(names, ["id", "finished", "outcome", "key", "payload_bytes"]);
    }
}
