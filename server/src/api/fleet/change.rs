//! Changes of several stores: settings of types and of the cluster, pauses of limit keys.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tonic::{Code, Extensions, Request, Response, Status};
use tonic_types::StatusExt as _;

use super::{Envelope, FleetService, Services, joined, task_types::Each};
use crate::{error::Error, stores::Member};

/// How long the other stores may take, together, once one of them has made the change: callers must hear of that before they give up.
const PATIENCE: Duration = Duration::from_secs(10);

impl FleetService {
    /// Makes a change in each of these stores, one after the other. If one of them does not make it, or cannot say whether it is
    /// about it (`unanswered`), the call fails and says which stores have it: whoever pauses a type must not have to look for
    /// metadata to learn that it still runs. Such a call may be repeated.
    pub(super) async fn change_each<T, A, F>(
        &self,
        request: Request<T>,
        (members, unanswered): (Vec<&Member>, Vec<&str>),
        call: impl Fn(Services, Request<T>) -> F,
    ) -> Result<Response<A>, Status>
    where
        T: Clone,
        A: Each,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (envelope, message) = Envelope::of(request);
        let (mut answer, mut held) = (None::<A>, Vec::<Extensions>::new());
        let (mut changed, mut unchanged, mut failure) = (Vec::new(), Vec::new(), None);
        let mut until = None;
        for member in members {
            let made = match member.reachable().and_then(|engine| self.of_engine(engine)) {
                Ok(services) => in_time(call(services, envelope.around(message.clone())), until, member).await,
                Err(error) => Err(error.into()),
            };
            if made.is_ok() {
                until.get_or_insert_with(|| Instant::now() + PATIENCE);
            }
            match made {
                Ok(part) => {
                    let (_, part, extensions) = part.into_parts();
                    held.push(extensions);
                    changed.push(member.name());
                    match &mut answer {
                        Some(answer) => answer.add(part),
                        None => answer = Some(part),
                    }
                }
                // What a store refuses, the others would, too.
                Err(status) if changed.is_empty() && status.code() != Code::Unavailable => return Err(status),
                Err(status) => {
                    unchanged.push(member.name());
                    failure.get_or_insert(status);
                }
            }
        }
        if failure.is_none() && !unanswered.is_empty() {
            let names = unanswered.join(", ");
            failure = Some(Error::Unavailable(format!("{names} cannot say whether it has the task type")).into());
        }
        unchanged.extend(unanswered);
        match (answer, failure) {
            (Some(answer), None) => Ok(joined(answer, held)),
            (_, Some(status)) => Err(partly(status, &changed, &unchanged)),
            (None, None) => Err(super::nobody(&unchanged)),
        }
    }
}

/// The answer of a store, if it comes in time.
async fn in_time<A>(
    call: impl Future<Output = Result<Response<A>, Status>>,
    until: Option<Instant>,
    member: &Member,
) -> Result<Response<A>, Status> {
    let Some(until) = until else { return call.await };
    timeout_at(until, call).await.unwrap_or_else(|_| {
        Err(Error::Unavailable(format!("store {} has not answered within {PATIENCE:?}", member.name())).into())
    })
}

/// The error of a change that not all stores have made.
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
