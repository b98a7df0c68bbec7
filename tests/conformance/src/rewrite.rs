//! Rewrites messages between broker and client, to simulate older, newer or slower brokers and limits of proxies.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};

/// Names by which scenarios select rewrites.
pub(crate) const REWRITES: &[&str] = &[
    // Simulates a newer broker: each message has an unknown field.
    "unknown_fields",
    // Simulates a newer broker: each message on a `Work` stream is followed by a message of an unknown kind.
    "unknown_messages",
    // Simulates a newer broker: it drains streams for an unknown reason.
    "unknown_drain_reason",
    // Simulates an older broker: the `Welcome` message has only the session id and the leases.
    "bare_welcome",
    // The `Welcome` message says that the broker accepts at most two outcomes per message.
    "two_outcomes",
    // For each lease, the first answer to an outcome, an extension and a progress report is UNAVAILABLE.
    "unavailable",
    // The broker's answers to outcomes are lost.
    "no_settled",
    // Messages with jobs are sent twice.
    "jobs_twice",
    // Responses of all calls except `Work` are lost.
    "no_answers",
    // Simulates a proxy that limits the body of a request to 256 KiB. A stream is one request.
    "small_requests",
];

/// Maximum bytes of a request body with the rewrite `small_requests`.
const REQUEST_BYTES: usize = 256 << 10;

/// A message to forward: its bytes to send, and its decoded form to log. Without bytes, the decoded message is encoded and
/// sent. Without a decoded message, the bytes are sent and not logged.
pub(crate) type Rewritten = (Option<Bytes>, Option<DynamicMessage>);

/// The active rewrites of one broker's messages.
#[derive(Clone, Default)]
pub(crate) struct Rewrites(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    active: BTreeSet<String>,
    /// Leases for which the rewrite `unavailable` has already answered UNAVAILABLE, with the kind of answer.
    refused_once: HashSet<String>,
}

impl Rewrites {
    /// Replaces the active rewrites. Returns false if a name is unknown.
    pub(crate) fn set<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        let active: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        let known = active.iter().all(|name| REWRITES.contains(&name.as_str()));
        self.0.lock().active = active;
        known
    }

    /// Whether a request with this many bytes exceeds the limit of `small_requests`.
    pub(crate) fn is_too_large(&self, bytes: usize) -> bool {
        bytes > REQUEST_BYTES && self.0.lock().active.contains("small_requests")
    }

    pub(crate) fn rewrite(&self, method: &str, bytes: Bytes, mut message: DynamicMessage) -> Vec<Rewritten> {
        let mut state = self.0.lock();
        if state.active.is_empty() {
            return vec![(Some(bytes), Some(message))];
        }
        let is_active = |name: &str| state.active.contains(name);
        let has = |message: &DynamicMessage, field: &str| message.has_field_by_name(field);
        if (is_active("no_settled") && has(&message, "settled")) || (is_active("no_answers") && method != "Work") {
            return Vec::new();
        }
        let (twice, newer, more) =
            (is_active("jobs_twice"), is_active("unknown_messages"), is_active("unknown_fields"));
        if is_active("bare_welcome") || is_active("two_outcomes") {
            let bare = is_active("bare_welcome");
            inside(&mut message, "welcome", |welcome| if bare { bare_welcome(welcome) } else { two_outcomes(welcome) });
        }
        if is_active("unknown_drain_reason") {
            inside(&mut message, "drain", |drain| drain.set_field_by_name("reason", Value::EnumNumber(99)));
        }
        if is_active("unavailable") {
            for answer in ["settled", "extended", "progressed"] {
                inside(&mut message, answer, |inner| unavailable(answer, inner, &mut state.refused_once));
            }
        }
        let repeat = twice && method == "Work" && has(&message, "jobs");
        let of = message.descriptor();
        let bytes = more.then(|| with_unknown_field(&message));
        let mut all = vec![(bytes, Some(message.clone()))];
        if repeat {
            all.push((None, Some(message)));
        }
        if newer && method == "Work" {
            all.push((Some(with_unknown_field(&DynamicMessage::new(of))), None));
        }
        all
    }
}

/// Applies a change to the message in `field`, if the field is set.
fn inside(message: &mut DynamicMessage, field: &str, change: impl FnOnce(&mut DynamicMessage)) {
    if message.has_field_by_name(field)
        && let Some(Value::Message(inner)) = message.get_field_by_name_mut(field)
    {
        change(inner);
    }
}

fn bare_welcome(welcome: &mut DynamicMessage) {
    for field in ["ping_interval", "session_grace", "liveness", "limits", "broker"] {
        welcome.clear_field_by_name(field);
    }
}

fn two_outcomes(welcome: &mut DynamicMessage) {
    inside(welcome, "limits", |limits| limits.set_field_by_name("max_settle_outcomes", Value::I32(2)));
}

fn unavailable(kind: &str, answer: &mut DynamicMessage, refused_once: &mut HashSet<String>) {
    let Some(Value::List(results)) = answer.get_field_by_name_mut("results") else { return };
    for result in results {
        let Value::Message(result) = result else { continue };
        let lease = ["id", "token"].map(|field| result.get_field_by_name(field).map(|value| value.to_string()));
        if refused_once.insert(format!("{kind} {lease:?}")) {
            result.set_field_by_name("status", Value::EnumNumber(3));
        }
    }
}

/// Encodes the message with the additional string field 18,999, which no version of the protocol will have.
fn with_unknown_field(message: &DynamicMessage) -> Bytes {
    use prost::Message as _;
    let mut bytes = BytesMut::new();
    let _ = message.encode(&mut bytes);
    prost::encoding::string::encode(18_999, &"from the future".to_owned(), &mut bytes);
    bytes.freeze()
}
