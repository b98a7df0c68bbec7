//! Settings of a task type as form fields: the values in effect with their sources, and changes.

use std::time::Duration;

use howdah_core::{config::Config, error::Error};
use howdah_proto::{
    json::setting_path,
    v1::{Brake, RetryPolicy, RetryPolicyKind, TaskTypeSettings},
};
use table::SETTINGS;

use crate::{
    api::enums::WireEnum as _,
    page::{
        action::ActionKind,
        params::Params,
        words::{number, size},
    },
};

mod table; // all settings

/// A setting of a task type.
pub(super) struct Setting {
    /// Name of the setting, as in the protocol, and of its form field.
    name: &'static str,
    label: &'static str,
    /// Example of a value; empty for a setting with choices.
    example: &'static str,
    /// Values to choose from, with their labels; empty for any text.
    choices: &'static [(&'static str, &'static str)],
    place: fn(&mut TaskTypeSettings) -> Place<'_>,
    /// Returns the default as text, and where it comes from. It applies to a type without an own value.
    default: fn(&Defaults<'_>) -> (String, &'static str),
}

/// Values that apply to a type without own values.
pub(super) struct Defaults<'a> {
    pub(super) config: &'a Config,
    /// Cluster setting `payload_bytes`.
    pub(super) payload_bytes: i64,
    /// Cluster setting `dead_days`.
    pub(super) dead_days: usize,
}

/// Row of the table of settings.
pub(super) struct SettingRow {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    /// Value in effect.
    pub(super) value: String,
    /// Names of the stores and their values, if these differ: `in shop; 3 in mail`. Empty if all stores have this value.
    pub(super) stores: String,
    /// Where the value in effect comes from.
    pub(super) source: &'static str,
    /// Whether the type has an own value.
    pub(super) is_own: bool,
    /// Own value of the type as text; empty if it has none.
    pub(super) own: String,
    pub(super) example: &'static str,
    pub(super) choices: &'static [(&'static str, &'static str)],
}

/// Settings of a form by name, with their texts. An empty text returns the setting to its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Given(Vec<(&'static str, String)>);

impl Setting {
    /// Returns the own value of the type as text; empty if it has none.
    fn own(&self, settings: &TaskTypeSettings) -> String {
        (self.place)(&mut settings.clone()).text(self.choices)
    }

    /// Formats a value for reading.
    fn shown(&self, text: &str) -> String {
        if let Some((_, label)) = self.choices.iter().find(|(word, _)| *word == text) {
            return (*label).to_owned();
        }
        match text.parse::<i64>() {
            Ok(bytes) if self.name == "max_payload_bytes" => size(usize::try_from(bytes).unwrap_or_default()),
            Ok(value) => number(value),
            Err(_) => text.to_owned(),
        }
    }

    /// Returns the value in effect with its source.
    fn in_effect(&self, settings: &TaskTypeSettings, defaults: &Defaults<'_>) -> (String, &'static str) {
        let own = self.own(settings);
        if !is_used(self.name, settings, defaults) {
            return ("not used".into(), "kind of retries");
        }
        let is_lowered = self.name == "max_payload_bytes" && settings.max_payload_bytes > defaults.payload_bytes;
        if own.is_empty() || is_lowered {
            let (value, source) = (self.default)(defaults);
            return (self.shown(&value), source);
        }
        (self.shown(&own), "task type")
    }
}

/// Whether a retry policy of the kind in effect uses the setting.
fn is_used(name: &str, settings: &TaskTypeSettings, defaults: &Defaults<'_>) -> bool {
    let own = settings.retry_policy.as_ref().map_or(0, |policy| policy.kind);
    let kind = if own == 0 { defaults.config.retry.kind.number() } else { own };
    let kind = RetryPolicyKind::try_from(kind).unwrap_or_default();
    match name {
        "retry_initial_delay" => kind != RetryPolicyKind::List,
        "retry_multiplier" => kind == RetryPolicyKind::Exponential,
        "retry_max_delay" => matches!(kind, RetryPolicyKind::Exponential | RetryPolicyKind::Linear),
        "retry_delays" => kind == RetryPolicyKind::List,
        _ => true,
    }
}

/// Returns all settings of a type, from its settings in each store. Own values come from the first store.
pub(super) fn rows(stores: &[(String, TaskTypeSettings)], defaults: &Defaults<'_>) -> Vec<SettingRow> {
    let Some(((store, settings), others)) = stores.split_first() else { return Vec::new() };
    let row = |setting: &Setting| {
        let (value, source) = setting.in_effect(settings, defaults);
        let own = setting.own(settings);
        let other = |(store, settings): &(String, TaskTypeSettings)| {
            let (other, _) = setting.in_effect(settings, defaults);
            (other != value).then(|| format!("; {other} in {store}"))
        };
        let others: String = others.iter().filter_map(other).collect();
        SettingRow {
            name: setting.name,
            label: setting.label,
            stores: if others.is_empty() { others } else { format!("in {store}{others}") },
            value,
            source,
            is_own: !own.is_empty(),
            own,
            example: setting.example,
            choices: setting.choices,
        }
    };
    SETTINGS.iter().map(row).collect()
}

/// Returns the settings whose own values differ: label, and the values in effect before and after.
pub(super) fn changes(
    old: &TaskTypeSettings,
    new: &TaskTypeSettings,
    defaults: &Defaults<'_>,
) -> Vec<(&'static str, String)> {
    let differs = SETTINGS.iter().filter(|setting| setting.own(old) != setting.own(new));
    let shown = |setting: &Setting, settings: &TaskTypeSettings| {
        let own = setting.own(settings);
        if own.is_empty() {
            let (value, source) = (setting.default)(defaults);
            format!("{} ({source})", setting.shown(&value))
        } else {
            setting.shown(&own)
        }
    };
    differs.map(|setting| (setting.label, format!("{} → {}", shown(setting, old), shown(setting, new)))).collect()
}

impl Given {
    /// Reads the settings of a form that changes settings. Settings that are missing in the form keep their values.
    pub(super) fn from_params(kind: ActionKind, params: &Params) -> Self {
        if kind != ActionKind::SetType {
            return Self::default();
        }
        let given = |setting: &Setting| Some((setting.name, params.all(setting.name).next()?.to_owned()));
        Self(SETTINGS.iter().filter_map(given).collect())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(given, _)| *given == name)
    }

    /// Returns the paths of the settings in an update mask.
    pub(super) fn paths(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| setting_path(name)).collect()
    }

    /// Returns the names and values that encode the settings in a form.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().cloned()
    }

    /// Returns `settings` with the given values.
    pub(super) fn applied_to(&self, settings: &TaskTypeSettings) -> Result<TaskTypeSettings, Error> {
        let mut new = settings.clone();
        for (name, text) in &self.0 {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.name == *name) else { continue };
            let set = (setting.place)(&mut new).set(text, setting.choices);
            set.map_err(|problem| Error::invalid(*name, problem))?;
        }
        // `place` creates an unset message to access its fields. Removes the messages that stayed empty.
        new.retry_policy = new.retry_policy.filter(|policy| *policy != RetryPolicy::default());
        new.brake = new.brake.filter(|brake| *brake != Brake::default());
        for rate in [&mut new.rate, &mut new.key_rate] {
            rate.take_if(|rate| rate.per_second == 0.0 && rate.burst == 0);
        }
        Ok(new)
    }

    /// Keeps only the settings that differ between `old` and `new`. So a confirmed form does not undo a change that was
    /// made to other settings meanwhile.
    pub(super) fn without_unchanged(self, old: &TaskTypeSettings, new: &TaskTypeSettings) -> Self {
        let is_changed =
            |name: &str| SETTINGS.iter().any(|setting| setting.name == name && setting.own(old) != setting.own(new));
        Self(self.0.into_iter().filter(|(name, _)| is_changed(name)).collect())
    }
}

const NUMBER: &str = "is not a number, or is too large";
const SPAN: &str = "is not a duration such as 90s, 5m or 2h 30m";

/// A field of the settings of a task type.
pub(super) enum Place<'a> {
    /// A count; 0 for none.
    Count(&'a mut u32),
    /// A number of bytes or jobs; 0 for none.
    Large(&'a mut i64),
    /// A number per second; 0 for none.
    PerSecond(&'a mut f64),
    Factor(&'a mut Option<f64>),
    Span(&'a mut Option<prost_types::Duration>),
    Spans(&'a mut Vec<prost_types::Duration>),
    Name(&'a mut String),
    Flag(&'a mut bool),
    /// Number of an enum value: n is the nth choice of the setting; 0 for none.
    Choice(&'a mut i32),
}

impl Place<'_> {
    /// Returns the own value as text.
    pub(super) fn text(&self, choices: &[(&str, &str)]) -> String {
        match self {
            Self::Count(0) | Self::Large(0) | Self::Factor(None) | Self::Span(None) | Self::Flag(false) => {
                String::new()
            }
            Self::Count(count) => count.to_string(),
            Self::Large(count) => count.to_string(),
            Self::PerSecond(0.0) => String::new(),
            Self::PerSecond(rate) => rate.to_string(),
            Self::Factor(Some(factor)) => factor.to_string(),
            Self::Span(Some(span)) => span_text(span),
            Self::Spans(spans) => spans.iter().map(span_text).collect::<Vec<_>>().join(", "),
            Self::Name(name) => (*name).clone(),
            Self::Flag(true) => "yes".into(),
            Self::Choice(number) => {
                let at = usize::try_from(**number).ok().and_then(|number| number.checked_sub(1));
                at.and_then(|at| choices.get(at)).map(|(word, _)| (*word).to_owned()).unwrap_or_default()
            }
        }
    }

    /// Sets the own value. The error describes the problem of the text.
    pub(super) fn set(self, text: &str, choices: &[(&str, &str)]) -> Result<(), &'static str> {
        let is_none = text.is_empty();
        match self {
            Self::Count(count) => *count = if is_none { 0 } else { text.parse().map_err(|_| NUMBER)? },
            Self::Large(count) => *count = if is_none { 0 } else { text.parse().map_err(|_| NUMBER)? },
            Self::PerSecond(rate) => *rate = if is_none { 0.0 } else { finite(text)? },
            Self::Factor(factor) => *factor = if is_none { None } else { Some(finite(text)?) },
            Self::Span(span) => *span = if is_none { None } else { Some(parse_span(text)?) },
            Self::Spans(spans) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                *spans = parts.map(parse_span).collect::<Result<_, _>>()?;
            }
            Self::Name(name) => text.clone_into(name),
            Self::Flag(flag) => *flag = !is_none,
            Self::Choice(number) => {
                let at = choices.iter().position(|(word, _)| *word == text);
                let at = if is_none { 0 } else { at.ok_or("is not one of the choices")? + 1 };
                *number = i32::try_from(at).unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn finite(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|value: &f64| value.is_finite()).ok_or(NUMBER)
}

fn parse_span(text: &str) -> Result<prost_types::Duration, &'static str> {
    humantime::parse_duration(text).ok().and_then(|span| span.try_into().ok()).ok_or(SPAN)
}

/// Formats a duration with all of its units, so that it is read back unchanged.
fn span_text(span: &prost_types::Duration) -> String {
    Duration::try_from(*span).map(|span| humantime::format_duration(span).to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use howdah_proto::{
        json::masked,
        v1::{HistoryMode, Rate},
    };

    use super::*;

    fn given(pairs: &[(&str, &str)]) -> Given {
        let text: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Given::from_params(ActionKind::SetType, &Params::parse(&text.join("&")).unwrap())
    }

    fn defaults(config: &Config) -> Defaults<'_> {
        Defaults { config, payload_bytes: 1 << 20, dead_days: 0 }
    }

    #[test]
    fn each_setting_is_written_as_it_is_read() {
        let values = [
            "7", "linear", "1m 30s", "1.5", "2h", "0.25", "1s, 5m", "90s", "other", "1000", "2.5", "10", "3", "yes",
            "250ms", "yes", "1", "2", "20", "2s", "5m", "1day", "4096", "500", "failures", "30", "90",
        ];
        assert_eq!(values.len(), SETTINGS.len());
        for (setting, value) in SETTINGS.iter().zip(values) {
            let set = given(&[(setting.name, value)]).applied_to(&TaskTypeSettings::default()).unwrap();
            let read = setting.own(&set);
            let again = given(&[(setting.name, &read)]).applied_to(&TaskTypeSettings::default()).unwrap();
            assert_eq!((set.clone(), !read.is_empty()), (again, true), "{}", setting.name);
            let masked = masked(
                "TaskTypeSettings",
                &TaskTypeSettings::default(),
                &set,
                &given(&[(setting.name, value)]).paths(),
            );
            assert_eq!(masked.unwrap(), set, "{}", setting.name);
            let cleared = given(&[(setting.name, "")]).applied_to(&set).unwrap();
            assert_eq!(cleared, TaskTypeSettings::default(), "{}", setting.name);
        }
    }

    #[test]
    fn a_malformed_value_is_refused_with_the_name_of_its_setting() {
        for (name, value) in [
            ("max_attempts", "many"),
            ("timeout", "long"),
            ("retry_delays", "1s, x"),
            ("history", "some"),
            ("rate", "inf"),
        ] {
            let refused = given(&[(name, value)]).applied_to(&TaskTypeSettings::default());
            assert_eq!(refused.expect_err(name).field(), Some(name));
        }
    }

    #[test]
    fn a_value_in_effect_has_its_source() {
        let config = Config { max_attempts: 12, ..Config::new("") };
        let rate = Some(Rate { per_second: 2.5, burst: 10 });
        let settings = TaskTypeSettings { max_running: 1_000, rate, max_payload_bytes: 2 << 20, ..Default::default() };
        let rows = rows(&[(String::new(), settings)], &defaults(&config));
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.name == name).unwrap();
            (row.value.as_str(), row.source, row.is_own)
        };
        assert_eq!(of("max_running"), ("1,000", "task type", true));
        assert_eq!(of("rate_burst"), ("10", "task type", true));
        assert_eq!(of("max_attempts"), ("12", "broker setting", false));
        assert_eq!(of("history_days"), ("7", "broker setting", false));
        assert_eq!(of("retry_kind"), ("exponential", "broker setting", false));
        assert_eq!(of("retry_delays"), ("not used", "kind of retries", false));
        assert_eq!(of("timeout"), ("none", "built in", false));
        // The lower one of two limits applies.
        assert_eq!(of("max_payload_bytes"), ("1.0 MiB", "cluster setting", true));
    }

    #[test]
    fn only_settings_that_change_are_asked_about_and_sent() {
        let config = Config::new("");
        let old = TaskTypeSettings { max_running: 5, history: HistoryMode::None.into(), ..Default::default() };
        let form = given(&[("max_running", "7"), ("max_attempts", ""), ("history", ""), ("timeout", "90s")]);
        let new = form.applied_to(&old).unwrap();
        let expected = [
            ("Timeout of an attempt", "none (built in) → 1m 30s"),
            ("Concurrent jobs", "5 → 7"),
            ("History keeps", "no succeeded jobs → all jobs (built in)"),
        ];
        assert_eq!(changes(&old, &new, &defaults(&config)), expected.map(|(label, text)| (label, text.to_owned())));
        let sent = form.without_unchanged(&old, &new);
        assert_eq!(sent, given(&[("timeout", "90s"), ("max_running", "7"), ("history", "")]));
    }
}
