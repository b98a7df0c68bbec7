//! Archive files of one task type, for a search by key.

use tokio_postgres::Row;

use super::{
    Statement, Store, StoreError,
    archive::{ArchivedFile, file},
    connection::Params,
};

/// A file of archived jobs of one task type.
#[derive(Clone, Debug)]
pub struct TypeFile {
    /// The file.
    pub file: ArchivedFile,
    /// Day of the jobs, as the number of days since 0001-01-01.
    pub day_number: i32,
    /// Number of jobs in the file.
    pub jobs: i64,
}

impl Store {
    /// Returns archive files with jobs of a task type, of this day (the number of days since 0001-01-01) and earlier
    /// ones, latest day first: at least `at_least`, if there are as many, and all files of each day.
    pub async fn archived_of_type(
        &self,
        task_type: &str,
        last_day: i32,
        at_least: i32,
    ) -> Result<Vec<TypeFile>, StoreError> {
        let params: Params<'_> = &[&task_type, &last_day, &at_least];
        let rows = self.general().await?.query(Statement::ArchivedOfType, params).await?;
        let type_file =
            |row: &Row| TypeFile { file: file(row), day_number: row.get("day_number"), jobs: row.get("jobs") };
        Ok(rows.iter().map(type_file).collect())
    }

    /// Returns the number of archived jobs of a task type.
    pub async fn count_archived(&self, task_type: &str) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::CountArchived, &[&task_type]).await?.get("jobs"))
    }
}
