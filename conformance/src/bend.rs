//! Brokers that are older, newer or slower than ours: answers are changed on their way.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};

/// What can be bent, by its name in scenarios.
pub(crate) const BENDS: &[&str] = &[
    // A newer broker: each message has a field that the client does not know.
    "unknown_fields",
    // A newer broker: after each message comes one of a kind that the client does not know.
    "unknown_messages",
    // An older broker: the welcome has no more than the session.
    "bare_welcome",
    // The broker takes two outcomes in a message.
    "two_outcomes",
    // The first answer to each outcome, extension and report is that it may not be stored.
    "unavailable",
    // Answers to outcomes get lost.
    "no_settled",
    // Jobs come twice.
    "jobs_twice",
    // Answers to single calls get lost.
    "no_answers",
];

/// A message to pass on: the bytes that came, or a changed message.
pub(crate) type Bent = (Option<Bytes>, Option<DynamicMessage>);

/// What is bent now on the way from one broker.
#[derive(Clone, Default)]
pub(crate) struct Bends(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    active: BTreeSet<String>,
    /// Leases that were told that nothing is known.
    told: HashSet<String>,
}

impl Bends {
    /// Bends these from now on, and nothing else; false: one does not exist.
    pub(crate) fn set<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        let active: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        let known = active.iter().all(|name| BENDS.contains(&name.as_str()));
        self.0.lock().active = active;
        known
    }

    pub(crate) fn bend(&self, method: &str, bytes: Bytes, mut message: DynamicMessage) -> Vec<Bent> {
        let mut state = self.0.lock();
        if state.active.is_empty() {
            return vec![(Some(bytes), Some(message))];
        }
        let bends = |name: &str| state.active.contains(name);
        let has = |message: &DynamicMessage, field: &str| message.has_field_by_name(field);
        if (bends("no_settled") && has(&message, "settled")) || (bends("no_answers") && method != "Work") {
            return Vec::new();
        }
        let (twice, newer, more) = (bends("jobs_twice"), bends("unknown_messages"), bends("unknown_fields"));
        if bends("bare_welcome") || bends("two_outcomes") {
            let bare = bends("bare_welcome");
            inside(&mut message, "welcome", |welcome| if bare { bare_welcome(welcome) } else { two_outcomes(welcome) });
        }
        if bends("unavailable") {
            for answer in ["settled", "extended", "progressed"] {
                inside(&mut message, answer, |inner| unavailable(answer, inner, &mut state.told));
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

/// Changes the message in a field, if it is set.
fn inside(message: &mut DynamicMessage, field: &str, change: impl FnOnce(&mut DynamicMessage)) {
    if message.has_field_by_name(field)
        && let Some(Value::Message(inner)) = message.get_field_by_name_mut(field)
    {
        change(inner);
    }
}

fn bare_welcome(welcome: &mut DynamicMessage) {
    for field in ["ping_interval", "session_grace", "limits", "broker"] {
        welcome.clear_field_by_name(field);
    }
}

fn two_outcomes(welcome: &mut DynamicMessage) {
    inside(welcome, "limits", |limits| limits.set_field_by_name("max_settle_outcomes", Value::I32(2)));
}

fn unavailable(kind: &str, answer: &mut DynamicMessage, told: &mut HashSet<String>) {
    let Some(Value::List(results)) = answer.get_field_by_name_mut("results") else { return };
    for result in results {
        let Value::Message(result) = result else { continue };
        let lease = ["id", "token"].map(|field| result.get_field_by_name(field).map(|value| value.to_string()));
        if told.insert(format!("{kind} {lease:?}")) {
            result.set_field_by_name("status", Value::EnumNumber(3));
        }
    }
}

/// The message with field 18,999, a text, which no version will have.
fn with_unknown_field(message: &DynamicMessage) -> Bytes {
    use prost::Message as _;
    let mut bytes = BytesMut::new();
    let _ = message.encode(&mut bytes);
    prost::encoding::string::encode(18_999, &"from the future".to_owned(), &mut bytes);
    bytes.freeze()
}
