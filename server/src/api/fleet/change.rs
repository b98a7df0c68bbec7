//! Changes of several stores: settings of types and of the cluster, pauses of limit keys.

use tonic::{Code, Extensions, Request, Response, Status};

use super::{Envelope, FleetService, Services, joined, note_unanswered, task_types::Each};
use crate::{error::Error, stores::Member};

impl FleetService {
    /// Makes a change in each of these stores, one after the other. If one of them does not make it, the call fails and says which
    /// stores have it: whoever pauses a type must not have to look for metadata to learn that it still runs. Such a call may be
    /// repeated. `unanswered`: the stores that cannot say whether the change is about them.
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
        for member in members {
            let made = match member.reachable().and_then(|engine| self.of_engine(engine)) {
                Ok(services) => call(services, envelope.around(message.clone())).await,
                Err(error) => Err(error.into()),
            };
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
        match (answer, failure) {
            (Some(answer), None) => {
                let mut response = joined(answer, held);
                note_unanswered(&mut response, &unanswered);
                Ok(response)
            }
            (_, Some(status)) => Err(partly(status, &changed, &unchanged)),
            (None, None) => Err(super::nobody(&unanswered)),
        }
    }
}

/// The error of a change that not all stores have made.
fn partly(status: Status, changed: &[&str], unchanged: &[&str]) -> Status {
    if changed.is_empty() {
        return status;
    }
    let (changed, unchanged) = (changed.join(", "), unchanged.join(", "));
    let text = format!("{}; changed in {changed}, not in {unchanged}: repeat the call", status.message());
    match status.code() {
        Code::Unavailable | Code::Aborted | Code::DeadlineExceeded => Error::Unavailable(text).into(),
        code => {
            Status::with_details_and_metadata(code, text, status.details().to_vec().into(), status.metadata().clone())
        }
    }
}
