//! Writes the table of cluster settings in `docs/reference`.

use howdah_core::{
    config::{bytes_words, duration_text},
    job::ClusterSettings,
};

use howdah_core::numbers::grouped_in;

use super::{code, markdown};
use crate::commands::settings;

/// Returns a table of all settings with their defaults and bounds, in the format of `howdah settings`.
pub(super) fn table(_: &[&str]) -> String {
    let [defaults, lowest, highest] =
        [ClusterSettings::DEFAULT, ClusterSettings::LOWEST, ClusterSettings::HIGHEST].map(|settings| values(&settings));
    let rows = settings::described().into_iter().enumerate().map(|(index, (name, about))| {
        let bounds = grouped_in(&format!("{} to {}", lowest[index], highest[index]));
        [code(name), code(&defaults[index]), bounds, about.to_owned()]
    });
    markdown(["setting", "default", "bounds", "meaning"], rows)
}

/// Returns the values, in the order of `ClusterSettings::NAMES`.
fn values(settings: &ClusterSettings) -> [String; ClusterSettings::NAMES.len()] {
    let &ClusterSettings {
        payload_bytes,
        headers,
        header_bytes,
        key_bytes,
        batch,
        max_delay,
        max_timeout,
        task_types,
        dead_days,
    } = settings;
    [
        bytes_words(payload_bytes as u64),
        headers.to_string(),
        bytes_words(header_bytes as u64),
        key_bytes.to_string(),
        batch.to_string(),
        duration_text(max_delay),
        duration_text(max_timeout),
        task_types.to_string(),
        dead_days.to_string(),
    ]
}
