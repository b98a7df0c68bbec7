//! Calls for the settings of the cluster. Each store has its own settings. A call that names no store reads from the primary
//! store, but changes the settings in all stores.

use std::time::Duration;

use howdah_core::job::ClusterSettingsChange;
use howdah_engine::operate::stores::LONGEST_ADVANCE;

use crate::api::{render::duration, verbs::prelude::*};

impl Verb for GetSettings {
    // The call requires no permission, because every client must know the limits to stay within them.
    const RULE: Rule = Rule::Anyone;

    type Args = ();

    fn check(_: v1::GetSettingsRequest, _: &ClusterSettings, _: &Limits) -> Result<(), Error> {
        Ok(())
    }

    async fn run(call: &mut Call, (): ()) -> Result<v1::GetSettingsResponse, Error> {
        let settings = call.broker.operator.cluster_settings().await?;
        Ok(v1::GetSettingsResponse {
            settings: Some(cluster_settings(&settings)),
            defaults: Some(cluster_settings(&ClusterSettings::DEFAULT)),
            lowest: Some(cluster_settings(&ClusterSettings::LOWEST)),
            highest: Some(cluster_settings(&ClusterSettings::HIGHEST)),
        })
    }

    async fn route(call: &Call, request: v1::GetSettingsRequest) -> Answer<Self> {
        call.in_store::<Self>(call.named_or_primary()?, request).await
    }
}

const DEFAULT: ClusterSettings = ClusterSettings::DEFAULT;
const LOWEST: ClusterSettings = ClusterSettings::LOWEST;
const HIGHEST: ClusterSettings = ClusterSettings::HIGHEST;

impl Verb for UpdateSettings {
    const RULE: Rule = Rule::Everything(Operation::Operate);

    /// Checked request: the settings to change, with their new values.
    type Args = ClusterSettingsChange;

    fn check(request: v1::UpdateSettingsRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let paths = request.update_mask.as_ref().map_or(&[][..], |mask| &mask.paths);
        for (i, path) in paths.iter().enumerate() {
            if !ClusterSettings::NAMES.contains(&path.as_str()) {
                let path: String = path.chars().take(40).collect();
                let problem = format!("is {path:?}; allowed are {}", ClusterSettings::NAMES.join(", "));
                return Err(Error::invalid(format!("update_mask.paths[{i}]"), problem));
            }
        }
        let settings = request.settings.unwrap_or_default();
        let change = change(&settings, paths).map_err(|error| error.within("settings"))?;
        if change == ClusterSettingsChange::default() {
            return Err(Error::invalid("settings", "has nothing to change; set a field, or name one in update_mask"));
        }
        Ok(change)
    }

    async fn run(call: &mut Call, change: ClusterSettingsChange) -> Result<v1::UpdateSettingsResponse, Error> {
        let by = call.by()?;
        let settings = call.broker.operator.update_cluster_settings(&change, &by).await?;
        Ok(v1::UpdateSettingsResponse { settings: Some(cluster_settings(&settings)) })
    }

    async fn route(call: &Call, request: v1::UpdateSettingsRequest) -> Answer<Self> {
        call.change::<Self>(call.concerned("").await?, request).await
    }
}

impl Merge for UpdateSettings {
    fn merge(all: &mut v1::UpdateSettingsResponse, part: v1::UpdateSettingsResponse, _: &str) {
        all.settings = all.settings.take().or(part.settings);
    }
}

impl Verb for AdvanceClock {
    const RULE: Rule = Rule::Everything(Operation::Admin);

    /// Time by which the clock advances.
    type Args = Duration;

    fn check(request: v1::AdvanceClockRequest, _: &ClusterSettings, _: &Limits) -> Result<Duration, Error> {
        time::required("duration", request.duration, &(time::MILLISECOND..=LONGEST_ADVANCE))
    }

    async fn run(call: &mut Call, duration: Duration) -> Result<v1::AdvanceClockResponse, Error> {
        let by = call.by()?;
        let time = call.broker.operator.advance_clock(duration, &by).await?;
        Ok(v1::AdvanceClockResponse { time: Some(time.into()) })
    }

    async fn route(call: &Call, request: v1::AdvanceClockRequest) -> Answer<Self> {
        call.change::<Self>(call.concerned("").await?, request).await
    }
}

impl Merge for AdvanceClock {
    fn merge(all: &mut v1::AdvanceClockResponse, part: v1::AdvanceClockResponse, _: &str) {
        all.time = all.time.take().or(part.time);
    }
}

fn change(settings: &v1::ClusterSettings, paths: &[String]) -> Result<ClusterSettingsChange, Error> {
    let number = |name: &str, value: i64, of: fn(&ClusterSettings) -> usize| match asked(name, paths, value == 0) {
        Asked::Nothing => Ok(None),
        Asked::Default => Ok(Some(of(&DEFAULT))),
        Asked::Value => {
            let range = of(&LOWEST) as i64..=of(&HIGHEST) as i64;
            numbers::within(name, value, range).map(|value| Some(value as usize))
        }
    };
    let time = |name: &str, value: Option<prost_types::Duration>, of: fn(&ClusterSettings) -> Duration| match asked(
        name,
        paths,
        value.is_none(),
    ) {
        Asked::Nothing => Ok(None),
        Asked::Default => Ok(Some(of(&DEFAULT))),
        Asked::Value => time::optional(name, value, &(of(&LOWEST)..=of(&HIGHEST))),
    };
    Ok(ClusterSettingsChange {
        payload_bytes: number("payload_bytes", settings.payload_bytes, |s| s.payload_bytes)?,
        headers: number("headers", settings.headers.into(), |s| s.headers)?,
        header_bytes: number("header_bytes", settings.header_bytes, |s| s.header_bytes)?,
        key_bytes: number("key_bytes", settings.key_bytes.into(), |s| s.key_bytes)?,
        batch: number("batch", settings.batch.into(), |s| s.batch)?,
        max_delay: time("max_delay", settings.max_delay, |s| s.max_delay)?,
        max_timeout: time("max_timeout", settings.max_timeout, |s| s.max_timeout)?,
        task_types: number("task_types", settings.task_types.into(), |s| s.task_types)?,
        dead_days: number("dead_days", settings.dead_days.into(), |s| s.dead_days)?,
    })
}

/// Requested change of one setting: none, back to the default, or to the given value.
enum Asked {
    Nothing,
    Default,
    Value,
}

/// Applies the update mask to one setting, as in AIP-134. Without a mask, the fields that are set change; with a mask, the
/// fields that it names.
fn asked(name: &str, paths: &[String], is_unset: bool) -> Asked {
    let is_named = paths.iter().any(|path| path == name);
    match (is_named, is_unset) {
        (true, true) => Asked::Default,
        (true, false) => Asked::Value,
        (false, false) if paths.is_empty() => Asked::Value,
        (false, _) => Asked::Nothing,
    }
}

/// Converts all cluster settings to their protocol message.
fn cluster_settings(settings: &ClusterSettings) -> v1::ClusterSettings {
    v1::ClusterSettings {
        payload_bytes: settings.payload_bytes as i64,
        headers: settings.headers as u32,
        header_bytes: settings.header_bytes as i64,
        key_bytes: settings.key_bytes as u32,
        batch: settings.batch as u32,
        max_delay: Some(duration(settings.max_delay)),
        max_timeout: Some(duration(settings.max_timeout)),
        task_types: settings.task_types as u32,
        dead_days: settings.dead_days as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update_settings(request: &v1::UpdateSettingsRequest) -> Result<ClusterSettingsChange, Error> {
        UpdateSettings::check(request.clone(), &ClusterSettings::DEFAULT, &Limits::default())
    }

    fn check(settings: v1::ClusterSettings, paths: &[&str]) -> Result<ClusterSettingsChange, Error> {
        let paths: Vec<String> = paths.iter().copied().map(str::to_owned).collect();
        let update_mask = Some(prost_types::FieldMask { paths }).filter(|mask| !mask.paths.is_empty());
        update_settings(&v1::UpdateSettingsRequest { settings: Some(settings), update_mask })
    }

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    #[test]
    fn without_an_update_mask_the_set_fields_are_changed() {
        let settings = v1::ClusterSettings { batch: 2_000, max_delay: seconds(60), ..Default::default() };
        let expected = ClusterSettingsChange {
            batch: Some(2_000),
            max_delay: Some(Duration::from_mins(1)),
            ..ClusterSettingsChange::default()
        };
        assert_eq!(check(settings, &[]).unwrap(), expected);
    }

    #[test]
    fn with_an_update_mask_the_named_fields_are_changed_and_unset_ones_are_reset() {
        let settings = v1::ClusterSettings { batch: 2_000, headers: 9, ..Default::default() };
        let expected = ClusterSettingsChange {
            headers: Some(9),
            payload_bytes: Some(1 << 20),
            max_timeout: Some(ClusterSettings::DEFAULT.max_timeout),
            ..ClusterSettingsChange::default()
        };
        assert_eq!(check(settings, &["headers", "payload_bytes", "max_timeout"]).unwrap(), expected);
    }

    #[test]
    fn the_bounds_of_each_setting_are_allowed() {
        for bounds in [LOWEST, HIGHEST, DEFAULT] {
            let change = check(cluster_settings(&bounds), &[]).unwrap();
            assert_eq!((change.payload_bytes, change.batch), (Some(bounds.payload_bytes), Some(bounds.batch)));
            assert_eq!((change.headers, change.header_bytes), (Some(bounds.headers), Some(bounds.header_bytes)));
            assert_eq!((change.max_delay, change.max_timeout), (Some(bounds.max_delay), Some(bounds.max_timeout)));
            assert_eq!((change.key_bytes, change.task_types), (Some(bounds.key_bytes), Some(bounds.task_types)));
        }
    }

    #[test]
    fn the_error_names_the_invalid_setting_or_the_unknown_path_of_the_mask() {
        let d = v1::ClusterSettings::default;
        let cases = [
            ("settings.payload_bytes", v1::ClusterSettings { payload_bytes: 1_023, ..d() }),
            ("settings.payload_bytes", v1::ClusterSettings { payload_bytes: (1_000 << 20) + 1, ..d() }),
            ("settings.payload_bytes", v1::ClusterSettings { payload_bytes: -1, ..d() }),
            ("settings.headers", v1::ClusterSettings { headers: 7, ..d() }),
            ("settings.header_bytes", v1::ClusterSettings { header_bytes: i64::MAX, ..d() }),
            ("settings.key_bytes", v1::ClusterSettings { key_bytes: u32::MAX, ..d() }),
            ("settings.batch", v1::ClusterSettings { batch: 999, ..d() }),
            ("settings.max_delay", v1::ClusterSettings { max_delay: seconds(0), ..d() }),
            ("settings.max_timeout", v1::ClusterSettings { max_timeout: seconds(i64::MAX), ..d() }),
            ("settings", d()),
        ];
        for (field, settings) in cases {
            assert_eq!(check(settings, &[]).expect_err(field).field(), Some(field));
        }
        let error = check(d(), &["batch", "payload"]).unwrap_err();
        assert_eq!(error.field(), Some("update_mask.paths[1]"));
        assert!(error.to_string().contains("is \"payload\"; allowed are payload_bytes, headers"), "{error}");
        assert_eq!(update_settings(&v1::UpdateSettingsRequest::default()).unwrap_err().field(), Some("settings"));
    }
}
