//! Statements that look for the jobs with the most attempts.

use super::{Statement, Store, StoreError};
use crate::job::{JobState, PagePosition, TypeId};

/// How many rows a step of a look reads, as its statements say.
const STEP: i64 = 20_000;

/// A job with attempts behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// Attempts started so far.
    pub attempt: i16,
    /// Its id.
    pub id: i64,
}

/// What a step of a look saw.
#[derive(Debug, Default)]
pub struct AttemptsStep {
    /// The jobs with the most attempts in it.
    pub jobs: Vec<Attempted>,
    /// Where the next step begins; `None`: nothing is left.
    pub next: Option<PagePosition>,
    /// How many jobs it looked at.
    pub looked_at: i64,
}

impl Store {
    /// The next jobs of a state that is not finished, from a position on. Dead jobs are all seen in one step.
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
            match row.get::<_, Option<i64>>("looked_at") {
                None => step.jobs.push(Attempted { attempt: row.get("attempt"), id }),
                Some(looked_at) => {
                    step.looked_at = looked_at;
                    step.next = (looked_at >= STEP).then(|| PagePosition { rank: row.get("rank"), id, ..from });
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
