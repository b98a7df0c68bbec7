//! Explains why a connection failed and what to do, because the errors of the underlying libraries do not say so.

use std::error::Error as StdError;

use tonic::Code;

/// A cause of failure that retries cannot remedy.
struct Cause {
    /// A substring of the library's error.
    pattern: &'static str,
    explanation: &'static str,
    code: Code,
}

const CAUSES: &[Cause] = &[
    // A broker with TLS closes a connection without TLS, and sends this text as the reason.
    Cause {
        pattern: "this port needs TLS",
        explanation: "this port needs TLS: use https://",
        code: Code::FailedPrecondition,
    },
    Cause {
        pattern: "InvalidContentType",
        explanation: "this port does not speak TLS: use http://",
        code: Code::FailedPrecondition,
    },
    Cause {
        pattern: "NoApplicationProtocol",
        explanation: "this port does not speak gRPC: is it the broker's HTTP port?",
        code: Code::FailedPrecondition,
    },
    Cause {
        pattern: "invalid peer certificate: UnknownIssuer",
        explanation: "the broker's certificate is not trusted: no authority that this client knows has signed it",
        code: Code::FailedPrecondition,
    },
    // Texts with which a broker refuses a client certificate.
    Cause {
        pattern: "client certificate needed",
        explanation: "the broker asks for a client certificate, and none was shown",
        code: Code::Unauthenticated,
    },
    Cause {
        pattern: "client certificate refused: no authority of the broker has signed it",
        explanation: "the broker refused the client certificate: none of its authorities has signed it",
        code: Code::Unauthenticated,
    },
    Cause {
        pattern: "client certificate refused: it is revoked",
        explanation: "the broker refused the client certificate: it is revoked",
        code: Code::Unauthenticated,
    },
    Cause {
        pattern: "client certificate refused: it has expired",
        explanation: "the broker refused the client certificate: it has expired",
        code: Code::Unauthenticated,
    },
    Cause {
        pattern: "client certificate refused: the certificate has no name",
        explanation: "the broker refused the client certificate: it has no URI or DNS name as subject alternative name",
        code: Code::Unauthenticated,
    },
    Cause {
        pattern: "client certificate refused",
        explanation: "the broker refused the client certificate; its log says why",
        code: Code::Unauthenticated,
    },
    // A proxy that requires a client certificate sends this TLS alert.
    Cause {
        pattern: "alert: CertificateRequired",
        explanation: "the broker asks for a client certificate, and none was shown",
        code: Code::Unauthenticated,
    },
];

/// Returns the explanation and the code of a known error text. `None` for other errors: they keep their text, and a retry may
/// succeed.
pub(crate) fn explained(error: &str) -> Option<(&'static str, Code)> {
    CAUSES.iter().find(|cause| error.contains(cause.pattern)).map(|cause| (cause.explanation, cause.code))
}

/// Whether the text is an explanation that [`explained`] returns.
pub(crate) fn is_explanation(text: &str) -> bool {
    CAUSES.iter().any(|cause| cause.explanation == text)
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
