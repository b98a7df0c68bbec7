//! Memory budget for the responses of one connection.

use std::{sync::Arc, time::Duration};

use howdah_core::error::Error;
use tokio::time::timeout;

use super::{Account, Held, Memory};

/// Maximum time that a call waits for memory for its response.
pub const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// Memory budget for the responses of a connection's calls.
#[derive(Clone, Debug)]
pub struct AnswerMemory {
    memory: Arc<Memory>,
    account: Arc<Account>,
}

impl AnswerMemory {
    /// The connection's account in the broker's memory budget.
    pub fn new(memory: &Arc<Memory>, account: &Arc<Account>) -> Self {
        Self { memory: memory.clone(), account: account.clone() }
    }

    /// Reserves memory for a response before the response is built.
    pub async fn take(&self, bytes: usize) -> Result<Held, Error> {
        match timeout(ROOM_WITHIN, self.memory.take(&self.account, bytes)).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(_)) | Err(_) => Err(Error::Unavailable(format!(
                "the {} MiB for answers (limits.answer_bytes) are in use by answers that clients have not read yet, or a \
                 quarter of them by this connection or its principal; read them, or try again later",
                self.memory.most() >> 20
            ))),
        }
    }
}
