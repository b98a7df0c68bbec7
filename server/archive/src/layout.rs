//! File names. Readers look for `store=0/day=YYYY-MM-DD/type=NAME/part-….parquet`. Unfinished files lie under `_staging` and do not
//! end in `.parquet`, so no glob pattern of a reader matches them. The number after `store=` is the store's, so several stores can
//! share one archive URL.

use object_store::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

/// Characters to percent-encode: all except letters, digits, `.`, `-` and `_`, which every file system and bucket accepts.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');
/// Maximum length of a task type in a path. A longer one is cut, and a hash keeps it unique.
const LONGEST: usize = 180;

/// Paths of the files of one store.
#[derive(Clone, Debug)]
pub struct Layout {
    store: u32,
}

impl Layout {
    /// Layout of store number `store`.
    pub const fn new(store: u32) -> Self {
        Self { store }
    }

    /// Directory that contains the directories of all days.
    pub fn root(&self) -> String {
        format!("store={}", self.store)
    }

    /// Directory of one day.
    pub fn day(&self, day: &str) -> String {
        format!("store={}/day={day}", self.store)
    }

    /// Path of a day's manifest. Programs that read whole directories of Parquet files skip names that start with `_`.
    pub fn manifest(&self, day: &str) -> String {
        format!("{}/_manifest.json", self.day(day))
    }

    /// Path of a published file. `run` is unique per archive run.
    pub fn part(&self, day: &str, task_type: &str, run: &str, number: usize) -> String {
        format!("{}/type={}/part-{run}-{number:04}.parquet", self.day(day), directory_of(task_type))
    }

    /// Staging directory of a day.
    pub fn staging(&self, day: &str) -> String {
        format!("_staging/store={}/day={day}", self.store)
    }

    /// Path of an unpublished file.
    pub fn staged(&self, day: &str, run: &str, number: usize) -> String {
        format!("{}/{run}/{number:05}.unfinished", self.staging(day))
    }
}

/// A task type as a Hive-style directory name.
fn directory_of(task_type: &str) -> String {
    let encoded = utf8_percent_encode(task_type, PLAIN).to_string();
    if encoded.len() <= LONGEST {
        return encoded;
    }
    let hash = Sha256::digest(task_type.as_bytes());
    // Do not cut inside a percent-encoded character.
    let mut end = LONGEST - 20;
    while encoded[..end].rfind('%').is_some_and(|at| at + 3 > end) {
        end -= 1;
    }
    format!("{}~{}", &encoded[..end], hex::encode(&hash[..8]))
}

/// Whether a text has the form `YYYY-MM-DD` of the day directories.
pub fn is_day(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 10
        && bytes.iter().enumerate().all(|(at, b)| if at == 4 || at == 7 { *b == b'-' } else { b.is_ascii_digit() })
}

/// Path of a file below the prefix of the archive URL. `name` comes from [`Layout`], so it is well-formed.
pub(crate) fn below(prefix: &Path, name: &str) -> Result<Path, object_store::path::Error> {
    if prefix.as_ref().is_empty() { Path::parse(name) } else { Path::parse(format!("{prefix}/{name}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_of_task_types_are_escaped_bounded_and_distinct() {
        assert_eq!(directory_of("mail.send-v2_x"), "mail.send-v2_x");
        assert_eq!(directory_of("a/b:c"), "a%2Fb%3Ac");
        let (one, other) = (format!("{}1", "/".repeat(199)), format!("{}2", "/".repeat(199)));
        assert!(directory_of(&one).len() <= LONGEST);
        assert_ne!(directory_of(&one), directory_of(&other));
        assert!(directory_of(&one).split('~').next().is_some_and(|cut| cut.len() % 3 == 0), "{}", directory_of(&one));
    }

    #[test]
    fn staged_files_have_paths_that_readers_do_not_match() {
        let layout = Layout::new(0);
        assert!(!layout.staged("2026-11-22", "ab", 1).ends_with(".parquet"));
        assert!(!layout.staging("2026-11-22").starts_with("store="));
        assert_eq!(layout.part("2026-11-22", "t", "ab", 1), "store=0/day=2026-11-22/type=t/part-ab-0001.parquet");
        assert!(is_day("2026-11-22") && !is_day("2026-1-22") && !is_day("2026/11/22"));
    }
}
