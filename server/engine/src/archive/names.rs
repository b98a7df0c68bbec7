//! Names of task types by id, because rows of history contain only the ids.

use std::collections::HashMap;

use howdah_core::job::TypeId;

use crate::store::{FinishedJob, Store, StoreError};

/// Cached names of task types, by type id.
pub(super) struct Names(HashMap<TypeId, String>);

impl Names {
    pub(super) async fn read(store: &Store) -> Result<Self, StoreError> {
        Ok(Self(store.type_names().await?.into_iter().collect()))
    }

    /// Reloads the names if a job has an unknown type id. A deleted type gets the name `deleted-type-ID`.
    pub(super) async fn know(&mut self, store: &Store, jobs: &[FinishedJob]) -> Result<(), StoreError> {
        if jobs.iter().any(|job| !self.0.contains_key(&job.type_id())) {
            self.0.extend(store.type_names().await?);
            for job in jobs {
                let type_id = job.type_id();
                self.0.entry(type_id).or_insert_with(|| format!("deleted-type-{type_id}"));
            }
        }
        Ok(())
    }

    pub(super) fn name(&self, type_id: TypeId) -> &str {
        self.0.get(&type_id).map_or("", String::as_str)
    }

    /// Returns the id of the type with this name, if it exists in the database.
    pub(super) fn number_of(&self, name: &str) -> Option<TypeId> {
        self.0.iter().find(|(_, known)| *known == name).map(|(type_id, _)| *type_id)
    }
}
