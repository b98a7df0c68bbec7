//! The LISTEN connection for wake-ups, which is not pooled.

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_postgres::Notification;

use super::{
    Purpose, Store, StoreError,
    servers::{Opened, Primary},
};

/// A connection that listens for notifications.
pub struct Listener {
    notifications: mpsc::Receiver<Notification>,
    // The connection closes when the client is dropped.
    _client: tokio_postgres::Client,
    driver: BoxFuture<'static, ()>,
    primary: Primary,
}

impl Store {
    /// Listens on a channel. Notifications sent earlier are lost, so the caller checks for work after this call. The
    /// application name of the session contains the broker id, so that other brokers can end the session once this
    /// broker's row has expired. Otherwise the session of a frozen broker, which reads no notifications, would hold
    /// back VACUUM with its snapshot.
    pub async fn listen(&self, channel: &str, broker: Option<i32>) -> Result<Listener, StoreError> {
        // If the channel is full, further notifications are dropped. The sweep (the search for work once per poll
        // interval) finds the work that these notifications announced.
        let (sender, notifications) = mpsc::channel(4096);
        let opened = self.listen_servers.connect(self.timeout, Some(&sender)).await?;
        let Opened { client, mut driver, primary, version } = opened;
        let begin = async {
            client.batch_execute(&Purpose::Listen.session(version)).await?;
            if let Some(id) = broker {
                let name = format!("SET application_name = 'howdah listener {id} {}'", self.schema);
                client.batch_execute(&name).await?;
            }
            client.batch_execute(&format!("LISTEN {channel}")).await
        };
        let listening = tokio::time::timeout(self.timeout, begin);
        tokio::select! {
            () = &mut driver => Err(StoreError::NotSent("the connection ended".into())),
            result = listening => match result {
                Ok(Ok(())) => Ok(Listener { notifications, _client: client, driver, primary }),
                Ok(Err(error)) => Err(StoreError::from_postgres(&error)),
                Err(_) => Err(StoreError::NotSent(format!("no answer within {:?}", self.timeout).into())),
            }
        }
    }
}

impl Listener {
    /// Returns the payload of the next notification. `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<String> {
        tokio::select! {
            biased;
            notification = self.notifications.recv() => notification.map(|n| n.payload().to_owned()),
            () = &mut self.driver => None,
            () = self.primary.until_former() => None,
        }
    }
}
