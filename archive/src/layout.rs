//! Names of files. What readers look for is `store=0/day=YYYY-MM-DD/type=NAME/part-….parquet`; what is being written lies
//! under `_staging` and does not end in `.parquet`, so that no pattern that finds the one finds the other. `0` is the number of
//! the store, so the stores of a broker can archive to one place.

use object_store::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

/// What a directory may be called on every file system and in every bucket.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');
/// The longest name of a type in a path; longer ones are cut, and a hash tells them apart.
const LONGEST: usize = 180;

/// Where the files of one store are.
#[derive(Clone, Debug)]
pub struct Layout {
    store: u32,
}

impl Layout {
    /// The files of this store.
    pub const fn of(store: u32) -> Self {
        Self { store }
    }

    /// All of them.
    pub fn root(&self) -> String {
        format!("store={}", self.store)
    }

    /// Those of a day.
    pub fn day(&self, day: &str) -> String {
        format!("store={}/day={day}", self.store)
    }

    /// What a day consists of. Programs that read whole directories of Parquet files leave out names like this one.
    pub fn manifest(&self, day: &str) -> String {
        format!("{}/_manifest.json", self.day(day))
    }

    /// A file of a day. `run` is another one for each time that a day is archived.
    pub fn part(&self, day: &str, task_type: &str, run: &str, number: usize) -> String {
        format!("{}/type={}/part-{run}-{number:04}.parquet", self.day(day), directory_of(task_type))
    }

    /// What is being written of a day.
    pub fn staging(&self, day: &str) -> String {
        format!("_staging/store={}/day={day}", self.store)
    }

    /// A file that is being written.
    pub fn staged(&self, day: &str, run: &str, number: usize) -> String {
        format!("{}/{run}/{number:05}.unfinished", self.staging(day))
    }
}

/// A type as a name of a directory, as Hive encodes it.
fn directory_of(task_type: &str) -> String {
    let encoded = utf8_percent_encode(task_type, PLAIN).to_string();
    if encoded.len() <= LONGEST {
        return encoded;
    }
    let hash = Sha256::digest(task_type.as_bytes());
    // Not in the middle of an encoded character.
    let mut end = LONGEST - 20;
    while encoded[..end].rfind('%').is_some_and(|at| at + 3 > end) {
        end -= 1;
    }
    format!("{}~{}", &encoded[..end], hex::encode(&hash[..8]))
}

/// Whether a text is a day as these names have it.
pub fn is_day(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 10
        && bytes.iter().enumerate().all(|(at, b)| if at == 4 || at == 7 { *b == b'-' } else { b.is_ascii_digit() })
}

/// A name below the place's own prefix. Names are made here, so they are well-formed.
pub(crate) fn below(prefix: &Path, name: &str) -> Result<Path, object_store::path::Error> {
    if prefix.as_ref().is_empty() { Path::parse(name) } else { Path::parse(format!("{prefix}/{name}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_a_directory_whatever_it_is_called() {
        assert_eq!(directory_of("mail.send-v2_x"), "mail.send-v2_x");
        assert_eq!(directory_of("a/b:c"), "a%2Fb%3Ac");
        let (one, other) = (format!("{}1", "/".repeat(199)), format!("{}2", "/".repeat(199)));
        assert!(directory_of(&one).len() <= LONGEST);
        assert_ne!(directory_of(&one), directory_of(&other));
        assert!(directory_of(&one).split('~').next().is_some_and(|cut| cut.len() % 3 == 0), "{}", directory_of(&one));
    }

    #[test]
    fn what_is_being_written_is_not_found_by_readers() {
        let layout = Layout::of(0);
        assert!(!layout.staged("2026-11-22", "ab", 1).ends_with(".parquet"));
        assert!(!layout.staging("2026-11-22").starts_with("store="));
        assert_eq!(layout.part("2026-11-22", "t", "ab", 1), "store=0/day=2026-11-22/type=t/part-ab-0001.parquet");
        assert!(is_day("2026-11-22") && !is_day("2026-1-22") && !is_day("2026/11/22"));
    }
}
