//! The LISTEN connection, which is not pooled.

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_postgres::Notification;

use super::{
    Purpose, Store, StoreError,
    servers::{Opened, Primary},
};

/// A listening connection. It returns `None` when the connection has ended.
pub struct Listener {
    notifications: mpsc::Receiver<Notification>,
    // Dropped with the listener, which closes the connection.
    _client: tokio_postgres::Client,
    driver: BoxFuture<'static, ()>,
    primary: Primary,
}

impl Store {
    /// Listens on a channel. Notifications arrive from now on; check for earlier ones afterwards.
    pub async fn listen(&self, channel: &str) -> Result<Listener, StoreError> {
        // Bounded: more notifications are dropped, and the sweep finds the work they announced.
        let (sender, notifications) = mpsc::channel(4096);
        let opened = self.listen_servers.connect(self.timeout, Some(&sender), &self.outage).await?;
        let Opened { client, mut driver, primary } = opened;
        let begin = async {
            client.batch_execute(&Purpose::Listen.session()).await?;
            client.batch_execute(&format!("LISTEN {channel}")).await
        };
        let listening = tokio::time::timeout(self.timeout, begin);
        tokio::select! {
            () = &mut driver => Err(StoreError::NotSent("the connection ended".into())),
            result = listening => match result {
                Ok(Ok(())) => Ok(Listener { notifications, _client: client, driver, primary }),
                Ok(Err(error)) => Err(StoreError::of(&error)),
                Err(_) => Err(StoreError::NotSent(format!("no answer within {:?}", self.timeout).into())),
            }
        }
    }
}

impl Listener {
    /// The payload of the next notification; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<String> {
        tokio::select! {
            biased;
            notification = self.notifications.recv() => notification.map(|n| n.payload().to_owned()),
            () = &mut self.driver => None,
            () = self.primary.until_former() => None,
        }
    }
}
