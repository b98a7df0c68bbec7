//! Changes in several stores: settings of types and of the cluster, and pauses of limit keys.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tonic::{Code, Extensions, Request, Response, Status};
use tonic_types::StatusExt as _;

use super::{Envelope, RoutingService, Services, joined, task_types::Each};
use crate::{error::Error, stores::ConfiguredStore};

/// Time limit for the remaining stores, in total, after the first store has changed. The caller must get the result before its own
/// timeout.
const TIMEOUT: Duration = Duration::from_secs(10);

impl RoutingService {
    /// Makes a change in each of these stores, one after the other. Fails if a store does not make the change, or if it is unknown
    /// whether the change applies to it (`unanswered`). The error names the stores that have changed, so that an operator who
    /// pauses a type learns that it still runs in others. The call may be repeated.
    pub(super) async fn change_each<T, A, F>(
        &self,
        request: Request<T>,
        (stores, unanswered): (Vec<&ConfiguredStore>, Vec<&str>),
        call: impl Fn(Services, Request<T>) -> F,
    ) -> Result<Response<A>, Status>
    where
        T: Clone,
        A: Each,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (envelope, message) = Envelope::split(request);
        let (mut answer, mut held) = (None::<A>, Vec::<Extensions>::new());
        let (mut changed, mut unchanged, mut failure) = (Vec::new(), Vec::new(), None);
        let mut until = None;
        for store in stores {
            let made = match store.reachable().and_then(|served| self.services_of(served)) {
                Ok(services) => in_time(call(services, envelope.around(message.clone())), until, store).await,
                Err(error) => Err(error.into()),
            };
            if made.is_ok() {
                until.get_or_insert_with(|| Instant::now() + TIMEOUT);
            }
            match made {
                Ok(part) => {
                    let (_, part, extensions) = part.into_parts();
                    held.push(extensions);
                    changed.push(store.name());
                    match &mut answer {
                        Some(answer) => answer.add(part),
                        None => answer = Some(part),
                    }
                }
                // The other stores would reject the same request.
                Err(status) if changed.is_empty() && status.code() != Code::Unavailable => return Err(status),
                Err(status) => {
                    unchanged.push(store.name());
                    failure.get_or_insert(status);
                }
            }
        }
        if failure.is_none() && !unanswered.is_empty() {
            let names = unanswered.join(", ");
            failure = Some(Error::Unavailable(format!("unknown whether {names} has the task type")).into());
        }
        unchanged.extend(unanswered);
        match (answer, failure) {
            (Some(answer), None) => Ok(joined(answer, held)),
            (_, Some(status)) => Err(partly(status, &changed, &unchanged)),
            (None, None) => Err(super::no_answer(&unchanged)),
        }
    }
}

/// Response of a store, within the time limit.
async fn in_time<A>(
    call: impl Future<Output = Result<Response<A>, Status>>,
    until: Option<Instant>,
    store: &ConfiguredStore,
) -> Result<Response<A>, Status> {
    let Some(until) = until else { return call.await };
    timeout_at(until, call).await.unwrap_or_else(|_| {
        Err(Error::Unavailable(format!("store {} has not answered within {TIMEOUT:?}", store.name())).into())
    })
}

/// Error of a change that some stores have not made.
fn partly(status: Status, changed: &[&str], unchanged: &[&str]) -> Status {
    if changed.is_empty() {
        return status;
    }
    let (changed, unchanged) = (changed.join(", "), unchanged.join(", "));
    let text = format!("{}; changed in {changed}, not confirmed in {unchanged}", status.message());
    match status.code() {
        Code::Unavailable | Code::Aborted | Code::DeadlineExceeded => {
            Error::Unavailable(format!("{text}: repeat the call, or name one store")).into()
        }
        code => {
            Status::with_error_details_and_metadata(code, text, status.get_error_details(), status.metadata().clone())
        }
    }
}
