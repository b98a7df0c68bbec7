//! Finds jobs that have moved to another store, so that calls with their old ids still work.

use std::collections::HashMap;

use howdah_core::error::Error;

use crate::api::verbs::{Answer, Call, Verb};

/// Maximum number of successive moves of one job between stores that a call follows.
const MOVES: usize = 8;

impl Call {
    /// Runs a verb in the store of a job. If the job has moved to another store, runs it there with the new id. `with` builds
    /// the request for a job id.
    pub(in crate::api::verbs) async fn follow<V: Verb>(&self, id: i64, with: impl Fn(i64) -> V::Request) -> Answer<V> {
        let found = self.in_store::<V>(self.of_id(id)?, with(id)).await;
        match &found {
            Err(status) if status.code() == tonic::Code::NotFound => {}
            _ => return found,
        }
        let Some(id) = self.moved_one(id).await? else { return found };
        self.in_store::<V>(self.of_id(id)?, with(id)).await
    }

    /// Returns a map from the old to the current ids of the jobs that have moved. Skips stores from which no job has moved.
    /// Also skips unreachable stores, which the call reports itself.
    pub(in crate::api::verbs) async fn moved(&self, ids: &[i64]) -> Result<HashMap<i64, i64>, Error> {
        let mut now: HashMap<i64, i64> = HashMap::new();
        let mut at: Vec<(i64, i64)> = ids.iter().map(|id| (*id, *id)).collect();
        for _ in 0..MOVES {
            let mut next = Vec::new();
            for served in self.stores.served() {
                let own: Vec<(i64, i64)> = at
                    .iter()
                    .filter(|(_, id)| self.stores.store_of(*id) == Some(served.name.as_str()))
                    .copied()
                    .collect();
                let Ok(broker) = served.reachable() else { continue };
                let ids: Vec<i64> = own.iter().map(|(_, id)| *id).collect();
                let moved: HashMap<i64, i64> = broker.operator.moved_jobs(&ids).await?.into_iter().collect();
                next.extend(own.iter().filter_map(|(old, id)| Some((*old, *moved.get(id)?))));
            }
            if next.is_empty() {
                break;
            }
            now.extend(next.iter().copied());
            at = next;
        }
        Ok(now)
    }

    /// Returns the current id of a job if it has moved. Fails if its move is in progress.
    pub(super) async fn moved_one(&self, id: i64) -> Result<Option<i64>, Error> {
        if let Some(now) = self.moved(&[id]).await?.remove(&id) {
            return Ok(Some(now));
        }
        let Ok(Some(served)) = self.stores.of_id(id) else { return Ok(None) };
        match served.reachable()?.operator.on_its_way(id).await? {
            Some(error) => Err(error),
            // The job may have arrived in its new store since the first lookup.
            None => Ok(self.moved(&[id]).await?.remove(&id)),
        }
    }
}
