//! Statements that find the jobs with the most attempts.

use howdah_core::job::{JobState, PagePosition, TypeId};

use super::{Statement, Store, StoreError};

/// Maximum number of rows that one bounded scan step reads. The SQL statements contain the same number.
const STEP: i64 = 20_000;

/// A job that was attempted at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// Number of attempts started so far.
    pub attempt: i16,
    pub id: i64,
}

/// Result of one bounded scan step.
#[derive(Debug, Default)]
pub struct AttemptsStep {
    /// Jobs with the most attempts among the scanned rows.
    pub jobs: Vec<Attempted>,
    /// Position at which the next scan step starts. `None` if no rows are left.
    pub next: Option<PagePosition>,
    /// Number of jobs scanned.
    pub scanned_count: i64,
}

impl Store {
    /// Runs one bounded scan step over unfinished jobs in one state, from a position on. Dead jobs need only one step,
    /// because an index orders them by attempts.
    pub async fn most_attempts(
        &self,
        type_id: TypeId,
        from: PagePosition,
        at_most: i32,
    ) -> Result<AttemptsStep, StoreError> {
        let statement = match from.state {
            JobState::Ready => Statement::MostAttemptsReady,
            JobState::Leased => Statement::MostAttemptsLeased,
            JobState::Scheduled => Statement::MostAttemptsScheduled,
            JobState::Waiting => Statement::MostAttemptsWaiting,
            _ => return self.most_attempts_dead(type_id, at_most).await,
        };
        let rows = self.read(statement, &[&type_id, &from.rank, &from.id, &at_most]).await?;
        let mut step = AttemptsStep::default();
        for row in &rows {
            let id = row.get("id");
            match row.get::<_, Option<i64>>("scanned_count") {
                None => step.jobs.push(Attempted { attempt: row.get("attempt"), id }),
                Some(scanned_count) => {
                    step.scanned_count = scanned_count;
                    step.next = (scanned_count >= STEP).then(|| PagePosition { rank: row.get("rank"), id, ..from });
                }
            }
        }
        Ok(step)
    }

    async fn most_attempts_dead(&self, type_id: TypeId, at_most: i32) -> Result<AttemptsStep, StoreError> {
        let rows = self.read(Statement::MostAttemptsDead, &[&type_id, &at_most]).await?;
        let jobs = rows.iter().map(|row| Attempted { attempt: row.get("attempt"), id: row.get("id") });
        Ok(AttemptsStep { jobs: jobs.collect(), ..AttemptsStep::default() })
    }
}
