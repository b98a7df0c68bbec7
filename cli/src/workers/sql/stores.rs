//! The store of a job, by its name at the broker.

use std::collections::HashMap;

use howdah_client::{Client, Result};
use howdah_core::job::StoreNumber;
use parking_lot::Mutex;
use tonic::Code;

/// Names of the broker's stores by their numbers, which ids of jobs begin with.
#[derive(Debug)]
pub(super) struct Stores {
    client: Client,
    names: Mutex<HashMap<StoreNumber, String>>,
}

impl Stores {
    pub(super) fn new(client: Client) -> Self {
        Self { client, names: Mutex::default() }
    }

    /// Returns the name of the store of a job; `None` if the broker does not list the store. Asks the broker once for each store.
    /// A worker that may not list the stores counts jobs of store 0 as jobs of a broker with one store.
    pub(super) async fn of_job(&self, id: i64) -> Result<Option<String>> {
        let Some(number) = StoreNumber::of_id(id) else { return Ok(None) };
        if let Some(name) = self.names.lock().get(&number) {
            return Ok(Some(name.clone()));
        }
        let stores = match self.client.list_stores("").await {
            Err(error) if error.code() == Code::PermissionDenied && number == StoreNumber::default() => {
                return Ok(None);
            }
            stores => stores?,
        };
        let mut names = self.names.lock();
        for store in stores {
            if let Some(number) = u16::try_from(store.number).ok().and_then(StoreNumber::new) {
                names.insert(number, store.name);
            }
        }
        Ok(names.get(&number).cloned())
    }
}
