//! Jobs that have moved to another store have other ids there. Calls follow the old ones.

use std::collections::HashMap;

use super::FleetService;
use crate::error::Error;

/// How often a job may have moved.
const MOVES: usize = 8;

impl FleetService {
    /// The ids that these jobs have now, by the old ones; those that have not moved are left out. Stores from which nothing has
    /// moved are not asked. A store that is away says nothing here: the call itself says that.
    pub(super) async fn moved(&self, ids: &[i64]) -> Result<HashMap<i64, i64>, Error> {
        let mut now: HashMap<i64, i64> = HashMap::new();
        let mut at: Vec<(i64, i64)> = ids.iter().map(|id| (*id, *id)).collect();
        for _ in 0..MOVES {
            let mut next = Vec::new();
            for engine in self.fleet.engines() {
                let own: Vec<(i64, i64)> = at
                    .iter()
                    .filter(|(_, id)| self.fleet.store_of(*id) == Some(engine.name.as_str()))
                    .copied()
                    .collect();
                let Ok(broker) = engine.reachable() else { continue };
                let asked: Vec<i64> = own.iter().map(|(_, id)| *id).collect();
                let moved: HashMap<i64, i64> = broker.operator.moved_jobs(&asked).await?.into_iter().collect();
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

    /// The id that a job has now, if it has moved. A job on its way is an error that says so.
    pub(super) async fn moved_one(&self, id: i64) -> Result<Option<i64>, Error> {
        if let Some(now) = self.moved(&[id]).await?.remove(&id) {
            return Ok(Some(now));
        }
        let Ok(Some(engine)) = self.fleet.of_id(id) else { return Ok(None) };
        match engine.reachable()?.operator.on_its_way(id).await? {
            Some(error) => Err(error),
            // It may have arrived in between.
            None => Ok(self.moved(&[id]).await?.remove(&id)),
        }
    }
}
