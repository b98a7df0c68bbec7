//! The actor of a change for the audit log: the principal and the reason.

use howdah_proto::Rpc;
use percent_encoding::percent_decode;
use tonic::{Request, metadata::MetadataMap};

use super::{answer, authenticate::caller, check};
use crate::{broker::Broker, error::Error, store::Actor};

/// Metadata key of the caller's reason. Its value is text, percent-encoded like `grpc-message` unless it is ASCII.
pub(super) const REASON: &str = "howdah-reason";

/// Actor of a call.
pub(super) fn actor<T>(broker: &Broker, request: &Request<T>, rpc: Rpc) -> Result<Actor, Error> {
    Ok(Actor {
        principal: Some(caller(request)?.principal().clone()),
        broker: Some(broker.config().name.clone()),
        peer: Some(answer::peer(request).socket.map(|address| address.to_string()).unwrap_or_default()),
        method: rpc.name(),
        reason: reason(request.metadata())?,
    })
}

fn reason(metadata: &MetadataMap) -> Result<String, Error> {
    let Some(value) = metadata.get(REASON) else { return Ok(String::new()) };
    let text = percent_decode(value.as_encoded_bytes()).decode_utf8();
    let text = text.map_err(|_| Error::invalid(REASON, "is not UTF-8; percent-encode it"))?;
    check::reason(REASON, &text)?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &[u8]) -> Result<String, Error> {
        let mut headers = tonic::codegen::http::HeaderMap::new();
        headers.insert(REASON, tonic::codegen::http::HeaderValue::from_bytes(value).unwrap());
        reason(&MetadataMap::from_headers(headers))
    }

    #[test]
    fn a_reason_is_short_plain_text() {
        assert_eq!(reason(&MetadataMap::new()).unwrap(), "");
        assert_eq!(of(b"ticket 42, 100% wrong").unwrap(), "ticket 42, 100% wrong");
        assert_eq!(of("Gr%C3%BC%C3%9Fe".as_bytes()).unwrap(), "Grüße");
        for bad in [&b"%0Afaked line"[..], b"%ff", &[b'x'; 501]] {
            assert_eq!(of(bad).unwrap_err().field(), Some(REASON));
        }
    }
}
