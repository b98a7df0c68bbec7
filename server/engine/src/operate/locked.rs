//! Changes of many jobs, some of which may be locked by another transaction. The other jobs do not wait for the locked ones.

use std::{collections::VecDeque, future::Future, time::Instant};

use howdah_core::error::Error;

use super::Operator;
use crate::store::{Lane, LockWait, Store, StoreError};

impl Operator {
    /// Runs a statement for these jobs, in parts if some are locked. Locked jobs come last; the statement waits for their locks
    /// up to the time limit for calls to Postgres. `done` receives the result of each part, even if the call fails later.
    pub(super) async fn but_for_locked<T, F>(
        &self,
        ids: Vec<i64>,
        run: impl Fn(Store, Vec<i64>) -> F + Sync,
        mut done: impl FnMut(T) + Send,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<T, StoreError>> + Send,
        T: Send,
    {
        let mut store = self.context.store.clone();
        let (mut todo, mut locked) = (vec![ids], Vec::new());
        while let Some(mut part) = todo.pop() {
            match run(store.clone(), part.clone()).await {
                Ok(some) => done(some),
                Err(StoreError::Locked(_)) => {
                    store = self.context.store.side_lane(Lane::Operate, LockWait::Short);
                    if part.len() > 1 {
                        let second = part.split_off(part.len() / 2);
                        todo.extend([second, part]);
                    } else {
                        locked.append(&mut part);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.wait_for_locked(locked, run, done).await
    }

    /// Runs the statement for each locked job in turn, until the time limit for calls to Postgres.
    async fn wait_for_locked<T, F>(
        &self,
        locked: Vec<i64>,
        run: impl Fn(Store, Vec<i64>) -> F + Sync,
        mut done: impl FnMut(T) + Send,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<T, StoreError>> + Send,
        T: Send,
    {
        let until = Instant::now() + self.context.config.database_timeout;
        let store = self.context.store.side_lane(Lane::Operate, LockWait::Long);
        // Each job with the last known holder of its lock. When the time limit has passed, there may be no time to look the
        // holder up.
        let mut locked: VecDeque<(i64, Option<String>)> = locked.into_iter().map(|id| (id, None)).collect();
        while let Some((id, seen)) = locked.pop_front() {
            let change = run(store.clone(), vec![id]);
            let (result, holders) = self.context.store.with_holders(Lane::Operate, Box::pin(change)).await;
            let holders = holders.or(seen);
            match result {
                Ok(some) => done(some),
                Err(StoreError::Locked(_)) if Instant::now() < until => locked.push_back((id, holders)),
                Err(StoreError::Locked(_)) => {
                    let holders = holders.unwrap_or_else(|| "locked by another transaction".into());
                    let others = match locked.len() {
                        0 => String::new(),
                        others => format!(", and {others} more are locked"),
                    };
                    let problem = format!(
                        "job {id} is {holders}{others}; the other jobs are changed; repeat the call for the locked ones"
                    );
                    return Err(Error::Locked(problem));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
