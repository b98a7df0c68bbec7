//! Makes the same change in several stores: settings of types and of the cluster, and pauses of limit keys.

use std::time::Duration;

use howdah_core::error::Error;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{Concerned, Merged, broker_of};
use crate::{
    api::verbs::{Answer, Call, Merge, Verb},
    stores::ConfiguredStore,
};

/// Time limit, after the change in the first store, for all other stores together. It lets the call end before the caller times
/// out.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Call {
    /// Makes a change in each of these stores, one after the other. Fails if a store does not make the change, or if a store is
    /// unreachable and the change may concern it. The error names the changed and the unchanged stores, so that an operator who
    /// pauses a type learns where it still runs. The caller may repeat the call.
    pub(in crate::api::verbs) async fn change<V: Merge>(
        &self,
        (stores, unknown): Concerned<'_>,
        request: V::Request,
    ) -> Answer<V> {
        let mut merged = Merged::<V>::new();
        let (mut changed, mut unchanged, mut failure) = (Vec::new(), Vec::new(), None);
        let mut until = None;
        for store in stores {
            let made = match broker_of(store) {
                Ok(broker) => in_time::<V>(self.in_store::<V>(broker, request.clone()), until, store).await,
                Err(error) => Err(error.into()),
            };
            match made {
                Ok(part) => {
                    until.get_or_insert_with(|| Instant::now() + TIMEOUT);
                    changed.push(store.name());
                    merged.add(part, store.name());
                }
                // The request is invalid, so the other stores would reject it too.
                Err(status) if changed.is_empty() && status.code() != Code::Unavailable => return Err(status),
                Err(status) => {
                    unchanged.push(store.name());
                    failure.get_or_insert(status);
                }
            }
        }
        if failure.is_none() && !unknown.is_empty() {
            let names = unknown.join(", ");
            failure = Some(Error::Unavailable(format!("cannot check whether store {names} has the task type")).into());
        }
        unchanged.extend(unknown);
        match failure {
            Some(status) => Err(partly(status, &changed, &unchanged)),
            None => merged.end(&unchanged),
        }
    }
}

/// Waits for the response of a store, at most until the time `until`, if it is set.
async fn in_time<V: Verb>(
    call: impl Future<Output = Answer<V>>,
    until: Option<Instant>,
    store: &ConfiguredStore,
) -> Answer<V> {
    let Some(until) = until else { return call.await };
    timeout_at(until, call).await.unwrap_or_else(|_| {
        Err(Error::Unavailable(format!("store {} has not answered within {TIMEOUT:?}", store.name())).into())
    })
}

/// Adds the names of the changed and the unchanged stores to the error of a change, unless no store has changed.
fn partly(status: Status, changed: &[&str], unchanged: &[&str]) -> Status {
    if changed.is_empty() {
        return status;
    }
    let (changed, unchanged) = (changed.join(", "), unchanged.join(", "));
    let text = format!("{}; stores changed: {changed}; stores not confirmed: {unchanged}", status.message());
    match status.code() {
        Code::Unavailable | Code::Aborted | Code::DeadlineExceeded => {
            Error::Unavailable(format!("{text}; repeat the call, or select one store")).into()
        }
        code => {
            Status::with_error_details_and_metadata(code, text, status.get_error_details(), status.metadata().clone())
        }
    }
}
