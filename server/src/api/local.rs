//! Calls that the page for operators makes inside this process. A local call passes the same rules, checks, permissions and
//! audit as a gRPC call.

mod by;
mod counted;

use std::{sync::Arc, time::Duration};

use howdah_core::error::Error;
use howdah_engine::broker::SharedBroker;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::verbs::{Answer, Gateway, Verb};
use crate::{
    credentials::{Authenticator, Refusal},
    stores::{SharedStores, Stores},
};
pub(crate) use by::{By, Client, Unanswered};

/// Time limit of a local call.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// Makes calls inside this process, with the stores at the time of its creation.
pub(crate) struct Local {
    /// Broker of the primary store.
    broker: SharedBroker,
    authenticator: Arc<Authenticator>,
    all_stores: Arc<Stores>,
    gateway: Gateway,
}

impl Local {
    pub(crate) fn new(stores: &SharedStores) -> Self {
        let gateway = Gateway::new(stores.clone(), CancellationToken::new());
        Self {
            broker: stores.main().clone(),
            authenticator: stores.authenticator().clone(),
            all_stores: stores.now(),
            gateway,
        }
    }

    /// Makes a call if the caller is permitted. The response keeps its memory reserved until it is dropped.
    pub(crate) async fn call<V: Verb>(&self, by: &By, message: V::Request) -> Answer<V> {
        let answer = async {
            by.caller.check_rule(V::RULE)?;
            if by.reads_only && !V::READS {
                return Err(Error::Denied("the page is read-only (setting page)".into()).into());
            }
            tokio::time::timeout(WITHIN, Box::pin(self.gateway.call::<V>(by.request(message))))
                .await
                .unwrap_or_else(|_| Err(Error::Deadline(format!("the call took longer than {WITHIN:?}")).into()))
        };
        let answer = answer.await;
        match &answer {
            Ok(answer) => by.unanswered().note(answer.metadata()),
            Err(status) => self.note(V::RPC.name(), by, status),
        }
        answer
    }

    /// Checks the message of a call without making the call, for previews.
    pub(crate) fn check<V: Verb>(&self, message: V::Request) -> Result<V::Args, Error> {
        V::check(message, &self.broker.cluster(), &self.broker.config().limits)
    }

    /// Counts and logs a rejected call.
    fn note(&self, method: &str, by: &By, status: &Status) {
        self.authenticator.refusals.note(&Refusal {
            code: status.code(),
            problem: status.message(),
            principal: Some(by.caller.principal()),
            peer: by.peer.socket,
            method,
        });
    }
}
