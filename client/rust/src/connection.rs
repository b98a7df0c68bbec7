//! A connection to a broker: what goes with each call, and what an answer leaves out.

use http::Response;
use tonic::{body::Body, service::interceptor::InterceptedService, transport::Channel};
use tower::util::MapResponse;

use crate::Credential;

/// A connection to a broker. It adds the client's credential to each call, and logs which stores an answer leaves out.
pub type Connection = InterceptedService<Noted, Credential>;

/// A channel whose answers are looked at.
type Noted = MapResponse<Channel, fn(Response<Body>) -> Response<Body>>;

/// The metadata of an answer that names stores which did not answer in time.
const UNANSWERED: &str = "howdah-unanswered-stores";

pub(crate) fn connection(channel: Channel, credential: Credential) -> Connection {
    Connection::new(MapResponse::new(channel, note), credential)
}

/// Nobody has to guess whether a list is complete.
fn note(answer: Response<Body>) -> Response<Body> {
    if let Some(stores) = answer.headers().get(UNANSWERED).and_then(|stores| stores.to_str().ok()) {
        tracing::warn!(
            stores,
            "these stores did not answer: what they have is missing, and a change has not reached them"
        );
    }
    answer
}
