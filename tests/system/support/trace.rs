//! Records the row changes of each job, and replays them against the rules of the model of leases
//! (docs/internals/model.md).

use howdah_model::replay::{Change, LOG, Operation, READ, Replayed, Table, replay};

use super::TestDatabase;

impl TestDatabase {
    /// Starts recording every change of the job tables, which must be empty.
    pub async fn record(&self) {
        self.sql(LOG).await;
    }

    /// Returns a handle for the same database whose connections have this application name, which the recorded changes
    /// contain.
    pub fn named(&self, name: &str) -> Self {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        Self { url: format!("{}{separator}application_name={name}", self.url) }
    }

    /// Replays the recorded changes. Each change must be a step that the model allows.
    pub async fn replay(&self) -> Result<Replayed, String> {
        let rows = self.connect().await.query(READ, &[]).await.expect(READ);
        let changes: Vec<Change> = rows
            .iter()
            .map(|row| Change {
                seq: row.get(0),
                transaction: row.get(1),
                table: Table::from_name(row.get(2)).expect("a table"),
                operation: if row.get(3) { Operation::In } else { Operation::Out },
                job: row.get(4),
                token: row.get(5),
                number: row.get(6),
                last_token: row.get(7),
                attempt: row.get(8),
                max_attempts: row.get(9),
                is_live: row.get(10),
                is_late: row.get(11),
                by: row.get(12),
            })
            .collect();
        replay(&changes).map_err(|violation| violation.to_string())
    }
}
