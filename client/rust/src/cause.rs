//! Explains why a connection failed and what to do, because the errors of the underlying libraries do not say so.

use std::error::Error as StdError;

use tonic::Code::{self, FailedPrecondition, Unauthenticated};

/// Causes of failures that retries cannot remedy: a substring of the library's error, the explanation, and the code.
const CAUSES: &[(&str, &str, Code)] = &[
    // A broker with TLS closes a connection without TLS, and sends this text as the reason.
    ("this port needs TLS", "this port needs TLS: use https://", FailedPrecondition),
    ("InvalidContentType", "this port does not speak TLS: use http://", FailedPrecondition),
    ("NoApplicationProtocol", "this port does not speak gRPC: is it the broker's HTTP port?", FailedPrecondition),
    (
        "invalid peer certificate: UnknownIssuer",
        "the broker's certificate is not trusted: no authority that this client knows has signed it",
        FailedPrecondition,
    ),
    // Texts with which a broker refuses a client certificate.
    ("client certificate needed", "the broker asks for a client certificate, and none was shown", Unauthenticated),
    (
        "client certificate refused: no authority of the broker has signed it",
        "the broker refused the client certificate: none of its authorities has signed it",
        Unauthenticated,
    ),
    (
        "client certificate refused: it is revoked",
        "the broker refused the client certificate: it is revoked",
        Unauthenticated,
    ),
    (
        "client certificate refused: it has expired",
        "the broker refused the client certificate: it has expired",
        Unauthenticated,
    ),
    (
        "client certificate refused: the certificate has no name",
        "the broker refused the client certificate: it has no URI or DNS name as subject alternative name",
        Unauthenticated,
    ),
    ("client certificate refused", "the broker refused the client certificate; its log says why", Unauthenticated),
    // A proxy that requires a client certificate sends this TLS alert.
    ("alert: CertificateRequired", "the broker asks for a client certificate, and none was shown", Unauthenticated),
];

/// Returns the explanation and the code of a known error text. `None` for other errors: they keep their text, and a retry may
/// succeed.
pub(crate) fn explained(error: &str) -> Option<(&'static str, Code)> {
    let known = CAUSES.iter().find(|(pattern, ..)| error.contains(pattern));
    known.map(|(_, explanation, code)| (*explanation, *code))
}

/// Whether the text is an explanation that [`explained`] returns.
pub(crate) fn is_explanation(text: &str) -> bool {
    CAUSES.iter().any(|(_, explanation, _)| *explanation == text)
}

/// Joins an error and its causes on one line, because the outer error of a transport does not name the cause.
pub(crate) fn chain(error: &dyn StdError) -> String {
    with_causes(error.to_string(), error.source())
}

/// Appends the messages of `next` and of its causes to `text`, except those that `text` already contains.
pub(crate) fn with_causes(mut text: String, mut next: Option<&(dyn StdError + 'static)>) -> String {
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = error.source();
    }
    text
}
