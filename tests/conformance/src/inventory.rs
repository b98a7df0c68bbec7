//! Inventory of the protocol's calls and fields that clients and brokers sent during the run.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, MethodDescriptor, ReflectMessage as _, Value};
use serde::Deserialize;

use crate::dynamic::POOL;

const EXCUSED: &str = include_str!("../excused.yaml");

/// Calls and fields that no scenario has to cover, with the reason, read from `excused.yaml`. A field is excused by its own
/// name or by the name of its message.
#[derive(Deserialize)]
struct Excused {
    /// Calls and fields that no scenario covers.
    never: BTreeMap<String, String>,
    /// Calls and fields that may or may not be sent, depending on the client or on chance.
    maybe: BTreeMap<String, String>,
}

/// The covered calls and fields, by names such as `JobService/GetJob` and `Job.state`.
#[derive(Default)]
pub(crate) struct Inventory {
    seen: Mutex<BTreeSet<String>>,
}

impl Inventory {
    /// Records as covered a call and the fields of its message.
    pub(crate) fn record(&self, method: &MethodDescriptor, message: &DynamicMessage) {
        let mut seen = self.seen.lock();
        seen.insert(call_name(method));
        fields_set(message, &mut seen);
    }

    /// Records a call or a field that a scenario declares as covered, because the scenario's connection is encrypted.
    pub(crate) fn declare(&self, name: &str) {
        self.seen.lock().insert(name.to_owned());
    }

    /// Fails if calls or fields are neither covered nor excused, or are excused without need.
    pub(crate) fn missing(&self) -> Result<(), String> {
        let Excused { never, maybe } =
            serde_norway::from_str(EXCUSED).map_err(|error| format!("excused.yaml: {error}"))?;
        let seen = self.seen.lock();
        let all = everything();
        let is_excused = |name: &str| {
            let message = name.split(['.', '/']).next().unwrap_or_default();
            [&never, &maybe].iter().any(|excused| excused.contains_key(name) || excused.contains_key(message))
        };
        let missing: Vec<&String> = all.iter().filter(|name| !seen.contains(*name) && !is_excused(name)).collect();
        let known = |name: &String| all.contains(name) || has_message(&all, name);
        let seen_after_all = never.keys().filter(|name| seen.contains(*name));
        let needless: Vec<&String> =
            seen_after_all.chain(never.keys().chain(maybe.keys()).filter(|name| !known(name))).collect();
        if missing.is_empty() && needless.is_empty() {
            return Ok(());
        }
        Err(format!(
            "no scenario sent these calls and fields, and excused.yaml does not excuse them: {missing:?}; \
             excused.yaml need not name these, which were sent or do not exist: {needless:?}"
        ))
    }
}

fn has_message(all: &BTreeSet<String>, message: &str) -> bool {
    all.iter().any(|name| name.starts_with(&format!("{message}.")))
}

fn call_name(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().name(), method.name())
}

/// Names of all calls and fields of the protocol.
fn everything() -> BTreeSet<String> {
    let ours = |package: &str| package == "howdah.v1";
    let services = POOL.services().filter(|service| ours(service.package_name()));
    let calls = services.flat_map(|service| service.methods().map(|method| call_name(&method)).collect::<Vec<_>>());
    let messages = POOL.all_messages().filter(|message| ours(message.package_name()) && !message.is_map_entry());
    let fields = messages.flat_map(|message| {
        message.fields().map(|field| format!("{}.{}", message.name(), field.name())).collect::<Vec<_>>()
    });
    calls.chain(fields).collect()
}

fn fields_set(message: &DynamicMessage, seen: &mut BTreeSet<String>) {
    let of: MessageDescriptor = message.descriptor();
    for (field, value) in message.fields() {
        if of.package_name() == "howdah.v1" {
            seen.insert(format!("{}.{}", of.name(), field.name()));
        }
        match (field.kind(), value) {
            (Kind::Message(_), Value::Message(inner)) => fields_set(inner, seen),
            (Kind::Message(_), Value::List(list)) => {
                list.iter().filter_map(Value::as_message).for_each(|inner| fields_set(inner, seen));
            }
            _ => {}
        }
    }
}
