//! Checks that all brokers of a client serve the same database. Otherwise jobs could wait in a database without workers.

use howdah_proto::v1::{GetSettingsRequest, settings_service_client::SettingsServiceClient};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{Connection, Error, Result, endpoint::Settings};

/// Response header with the id of the broker's database.
const HEADER: &str = "howdah-database";

/// Database id and address of the first broker that responded.
#[derive(Debug, Default)]
pub(crate) struct Database(Mutex<Option<(String, String)>>);

impl Database {
    /// Fails if this broker serves another database than the broker that responded first. A broker names its database in
    /// every response, even in a refusal.
    pub(crate) async fn check(&self, endpoint: &str, connection: Connection, settings: &Settings) -> Result<()> {
        let limit = settings.connect_timeout;
        let mut client = SettingsServiceClient::new(connection);
        let answer = timeout(limit, client.get_settings(GetSettingsRequest {})).await;
        let answer =
            answer.map_err(|_| Error::Deadline { operation: "asking the broker for its database", after: limit })?;
        let id = match &answer {
            Ok(response) => response.metadata().get(HEADER).cloned(),
            Err(status) => status.metadata().get(HEADER).cloned(),
        };
        match (id.as_ref().and_then(|id| id.to_str().ok()), answer) {
            (Some(id), _) => self.compare(endpoint, id),
            (None, Err(status)) if Error::from(status.clone()).is_retried() => Err(status.into()),
            // A response that does not name a database cannot be compared.
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
        Err(Error::refused("endpoint", message))
    }
}
