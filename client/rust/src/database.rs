//! Brokers of one client serve one database: jobs that were sent to another one would wait there for workers that never
//! come.

use howdah_proto::v1::{GetSettingsRequest, settings_service_client::SettingsServiceClient};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{Connection, Error, Result, endpoint::Settings};

/// The header of a broker's answers with the id of its database.
const HEADER: &str = "howdah-database";

/// The database of the first broker that answered, and the broker's address.
#[derive(Debug, Default)]
pub(crate) struct Database(Mutex<Option<(String, String)>>);

impl Database {
    /// Fails if this broker serves another database than the first one. Any answer tells, a refusal too.
    pub(crate) async fn check(&self, endpoint: &str, connection: Connection, settings: &Settings) -> Result<()> {
        let limit = settings.connect_timeout;
        let mut client = SettingsServiceClient::new(connection);
        let answer = timeout(limit, client.get_settings(GetSettingsRequest {})).await;
        let answer = answer.map_err(|_| Error::Deadline { what: "asking which database it serves", after: limit })?;
        let id = match &answer {
            Ok(response) => response.metadata().get(HEADER).cloned(),
            Err(status) => status.metadata().get(HEADER).cloned(),
        };
        match (id.as_ref().and_then(|id| id.to_str().ok()), answer) {
            (Some(id), _) => self.compare(endpoint, id),
            (None, Err(status)) if Error::from(status.clone()).is_passing() => Err(status.into()),
            // It does not say, so nothing can be compared.
            (None, _) => Ok(()),
        }
    }

    fn compare(&self, endpoint: &str, id: &str) -> Result<()> {
        let mut first = self.0.lock();
        let (first_endpoint, first_id) = first.get_or_insert_with(|| (endpoint.to_owned(), id.to_owned()));
        if first_id == id {
            return Ok(());
        }
        let message = format!(
            "{endpoint} serves another database than {first_endpoint}; give only brokers of one database to a client"
        );
        Err(Error::invalid("endpoint", message))
    }
}
