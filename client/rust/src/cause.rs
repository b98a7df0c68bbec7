//! Why a connection failed, in words that say what to do. The errors of the libraries underneath say what they saw.

use std::error::Error as StdError;

use tonic::Code;

/// A cause that trying again does not mend.
struct Cause {
    /// What the library's error contains.
    seen: &'static str,
    said: &'static str,
    code: Code,
}

const CAUSES: &[Cause] = &[
    // Howdah says so itself, in the reason with which it closes the connection.
    Cause { seen: "this port needs TLS", said: "this port needs TLS: use https://", code: Code::FailedPrecondition },
    Cause {
        seen: "InvalidContentType",
        said: "this port does not speak TLS: use http://",
        code: Code::FailedPrecondition,
    },
    Cause {
        seen: "NoApplicationProtocol",
        said: "this port does not speak gRPC: is it the broker's HTTP port?",
        code: Code::FailedPrecondition,
    },
    Cause {
        seen: "invalid peer certificate: UnknownIssuer",
        said: "the broker's certificate is not trusted: no authority that this client knows has signed it",
        code: Code::FailedPrecondition,
    },
    // And why it refuses a certificate.
    Cause {
        seen: "client certificate needed",
        said: "the broker asks for a client certificate, and none was shown",
        code: Code::Unauthenticated,
    },
    Cause {
        seen: "client certificate refused: no authority of the broker has signed it",
        said: "the broker refused the client certificate: none of its authorities has signed it",
        code: Code::Unauthenticated,
    },
    Cause {
        seen: "client certificate refused: it is revoked",
        said: "the broker refused the client certificate: it is revoked",
        code: Code::Unauthenticated,
    },
    Cause {
        seen: "client certificate refused: it has expired",
        said: "the broker refused the client certificate: it has expired",
        code: Code::Unauthenticated,
    },
    Cause {
        seen: "client certificate refused: it names nobody",
        said: "the broker refused the client certificate: it has no URI or DNS name as subject alternative name",
        code: Code::Unauthenticated,
    },
    Cause {
        seen: "client certificate refused",
        said: "the broker refused the client certificate; its log says why",
        code: Code::Unauthenticated,
    },
    // A proxy that speaks TLS says it by alerts.
    Cause {
        seen: "alert: CertificateRequired",
        said: "the broker asks for a client certificate, and none was shown",
        code: Code::Unauthenticated,
    },
];

/// The cause in words, and its code; `None`: the error speaks for itself, and the next attempt may succeed.
pub(crate) fn explained(error: &str) -> Option<(&'static str, Code)> {
    CAUSES.iter().find(|cause| error.contains(cause.seen)).map(|cause| (cause.said, cause.code))
}

/// Whether the text is the one of such a cause.
pub(crate) fn is_explanation(text: &str) -> bool {
    CAUSES.iter().any(|cause| cause.said == text)
}

/// An error and its causes on one line: the outer errors of the transport say almost nothing.
pub(crate) fn chain(error: &dyn StdError) -> String {
    with_causes(error.to_string(), error.source())
}

/// `text`, followed by what `next` and its causes add to it.
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
