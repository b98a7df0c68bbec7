//! Sources of the schema, in the order in which they are applied (`server/engine/schema/README.md`).

use std::{borrow::Cow, collections::BTreeSet};

use sha2::{Digest as _, Sha256};

use super::option_sql;

/// A file of `server/engine/schema`.
pub(super) struct Source {
    pub(super) path: &'static str,
    source: &'static str,
}

impl Source {
    /// Returns the SQL of the file. Replaces placeholders in double braces by generated text: job options
    /// (`option_sql`) and names of schema objects.
    pub(super) fn text(&self) -> Cow<'static, str> {
        let text = option_sql::expand(self.source);
        if !text.contains("{{own_") {
            return text;
        }
        let functions = names_of(&["FUNCTION"]).join(",");
        let relations = names_of(&["TABLE", "SEQUENCE", "VIEW"]).join("|");
        text.replace("{{own_functions}}", &functions).replace("{{own_relations}}", &relations).into()
    }
}

/// Returns the names of objects of the given kinds that the files create. For objects that a loop creates (`CREATE
/// SEQUENCE howdah.announced_%s`), it returns their common prefix.
fn names_of(kinds: &[&str]) -> Vec<&'static str> {
    let sources = [SCHEMA_PART, VALUES, TABLES, FUNCTIONS, VIEW].into_iter().flatten();
    let created = sources.flat_map(|source| source.source.split("CREATE ").skip(1)).filter_map(|rest| {
        let rest = rest.strip_prefix("OR REPLACE ").unwrap_or(rest);
        let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind)?.strip_prefix(" howdah."))?;
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        Some(name[..end].trim_end_matches('_'))
    });
    created.filter(|name| !name.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

macro_rules! sources {
    ($($path:literal,)*) => {
        &[$(Source { path: $path, source: include_str!(concat!("../../schema/", $path)) },)*]
    };
}

/// Source of the table `schema_part`, which records the installed parts of the schema. It is created first.
pub(super) const SCHEMA_PART: &[Source] = sources!["tables/schema_part.sql",];

/// Source of the test clock. Only for new databases of tests; it is created before the rest of the schema.
pub(super) const TEST_CLOCK: &[Source] = sources!["test_clock.sql",];

/// Source files of SQL functions that table definitions use. They are created before the tables.
pub(super) const VALUES: &[Source] = sources![
    "values/errors.sql",
    "values/ranks.sql",
    "values/options.sql",
    "values/audit.sql",
    "values/grants.sql",
    "values/statistics.sql",
];

/// Current table definitions, for a new database. An existing database is changed by [`MIGRATIONS`].
pub(super) const TABLES: &[Source] = sources![
    "tables/enums.sql",
    "tables/settings.sql",
    "tables/brokers.sql",
    "tables/secrets.sql",
    "tables/access.sql",
    "tables/audit.sql",
    "tables/grants.sql",
    "tables/task_types.sql",
    "tables/jobs.sql",
    "tables/coordination.sql",
    "tables/schedules.sql",
    "tables/types.sql",
    "tables/statistics.sql",
    "tables/bulk.sql",
    "tables/archive.sql",
    "tables/moving.sql",
];

/// Drops functions of earlier releases that this release no longer has.
pub(super) const DROPPED: &[Source] = sources!["dropped.sql",];

/// Source files of SQL functions that use the tables.
pub(super) const FUNCTIONS: &[Source] = sources![
    "functions/stores.sql",
    "functions/replicated.sql",
    "functions/structure.sql",
    "functions/closing.sql",
    "functions/task_types.sql",
    "functions/statistics.sql",
    "functions/announce.sql",
    "functions/limits.sql",
    "functions/limit_changes.sql",
    "functions/clock.sql",
    "functions/fair.sql",
    "functions/route.sql",
    "functions/brakes.sql",
    "functions/claim.sql",
    "functions/lookup.sql",
    "functions/settle.sql",
    "functions/keys.sql",
    "functions/enqueue.sql",
    "functions/end.sql",
    "functions/archive.sql",
    "functions/restore.sql",
    "functions/forget.sql",
    "functions/maintain.sql",
    "functions/advance.sql",
    "functions/audit.sql",
    "functions/grants.sql",
    "functions/operate.sql",
    "functions/undo.sql",
    "functions/move.sql",
    "functions/set.sql",
    "functions/search.sql",
    "functions/leaving.sql",
    "functions/arriving.sql",
    "api/checks.sql",
    "api/check_job.sql",
    "api/enqueue.sql",
    "api/enqueue_many.sql",
    "api/settle.sql",
    "api/operate.sql",
    "api/on_change.sql",
    "api/schedule.sql",
    "api/limits.sql",
    "api/rights.sql",
];

/// Source of the view `howdah.job`. The view is a separate part of the schema, because replacing it waits for every
/// transaction that has read it.
pub(super) const VIEW: &[Source] = sources!["api/job_view.sql",];

/// Changes of tables since 0.1.0, oldest first (`server/engine/schema/migrations/README.md`).
pub(super) const MIGRATIONS: &[(&str, &str)] = &[];

/// Returns the number of a migration, such as 3 for `V3__what_it_does`.
pub(super) fn number(name: &str) -> u32 {
    let digits = name.strip_prefix('V').and_then(|rest| rest.split("__").next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

/// Returns the SHA-256 of the expanded texts of all files in these lists, in hexadecimal digits.
pub(super) fn hash(lists: &[&[Source]]) -> String {
    let mut hash = Sha256::new();
    for source in lists.iter().copied().flatten() {
        hash.update(source.text().as_bytes());
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Maximum number of lines of a schema file.
    const LINES: usize = 400;

    fn all() -> impl Iterator<Item = &'static Source> {
        [SCHEMA_PART, VALUES, TABLES, DROPPED, FUNCTIONS, VIEW].into_iter().flatten()
    }

    /// Collects the SQL files below a folder, as paths relative to `server/engine/schema`.
    fn files(folder: &Path, into: &mut BTreeSet<String>) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema");
        for entry in std::fs::read_dir(root.join(folder)).expect("a folder") {
            let path = folder.join(entry.expect("an entry").file_name());
            if root.join(&path).is_dir() {
                files(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "sql") {
                into.insert(path.to_string_lossy().into_owned());
            }
        }
    }

    /// Returns the signatures of the functions that a text creates. Function bodies contain no line that begins with
    /// `CREATE OR REPLACE FUNCTION`.
    fn functions(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (at, start) in text.match_indices("\nCREATE OR REPLACE FUNCTION ") {
            let rest = &text[at + start.len()..];
            let mut depth = 0;
            let end = rest.find(|c| {
                depth += match c {
                    '(' => 1,
                    ')' => -1,
                    _ => 0,
                };
                c == ')' && depth == 0
            });
            let signature = &rest[..=end.expect("the end of the arguments")];
            found.push(signature.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        found
    }

    #[test]
    fn every_file_of_the_schema_is_applied_and_short() {
        let mut there = BTreeSet::new();
        files(Path::new(""), &mut there);
        let applied = all().map(|source| source.path.to_owned());
        let migrations = MIGRATIONS.iter().map(|(name, _)| format!("migrations/{name}.sql"));
        // Applied only to the databases of `howdah dev --ephemeral`, by `migrate`.
        let test_clock = std::iter::once("test_clock.sql".to_owned());
        let listed: Vec<_> = applied.chain(migrations).chain(test_clock).collect();
        assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), there);
        assert_eq!(listed.len(), there.len(), "a file is listed twice");
        for source in all() {
            let lines = source.source.lines().count();
            assert!(lines <= LINES, "{} has {lines} lines", source.path);
        }
    }

    #[test]
    fn every_function_is_defined_once() {
        let mut seen = BTreeSet::new();
        for source in all() {
            let text = format!("\n{}", source.text());
            assert!(!text.contains("CREATE FUNCTION"), "{}: CREATE OR REPLACE, since it is applied again", source.path);
            for function in functions(&text) {
                assert!(seen.insert(function.clone()), "{}: {function} is defined twice", source.path);
            }
        }
        // Compare names without argument types, because overloads of a function differ in them.
        let names: BTreeSet<_> = seen.iter().filter_map(|function| function.split('(').next()).collect();
        assert!(names.len() > 90, "functions are found: {}", names.len());
        for function in &seen {
            let (name, _) = function.split_once('(').expect("arguments");
            let overloads = seen.iter().filter(|other| other.starts_with(&format!("{name}("))).count();
            let may = ["howdah.enqueue", "howdah.enqueue_many", "howdah.complete", "howdah.schedule"].contains(&name);
            assert!(overloads == 1 || may, "{name} is defined {overloads} times");
        }
    }

    #[test]
    fn a_dropped_function_is_not_in_the_source() {
        for source in DROPPED {
            for line in source.source.lines().filter(|line| line.starts_with("DROP FUNCTION")) {
                let name = line.split_once("howdah.").and_then(|(_, rest)| rest.split('(').next()).expect("a name");
                let made = format!("FUNCTION howdah.{name}(");
                assert!(!all().any(|source| source.text().contains(&made)), "{name} is in the source");
            }
        }
    }

    #[test]
    fn migrations_are_numbered_in_their_order() {
        let numbers: Vec<u32> = MIGRATIONS.iter().map(|(name, _)| number(name)).collect();
        assert_eq!(numbers, (1..=MIGRATIONS.len() as u32).collect::<Vec<_>>());
        assert_eq!([number("V3__what_it_does"), number("V12__more"), number("junk")], [3, 12, 0]);
    }

    /// In a literal without the prefix E, the session setting `standard_conforming_strings` decides whether a backslash
    /// is an escape character.
    #[test]
    fn no_backslash_stands_in_a_literal_whose_reading_depends_on_a_setting() {
        let statements = crate::store::Statement::ALL.iter().map(|statement| (statement.name(), statement.text()));
        for (name, text) in all().map(|source| (source.path, source.text())).chain(statements) {
            for line in text.lines() {
                let code = line.split("--").next().unwrap_or_default();
                for (nth, part) in code.split('\'').enumerate() {
                    let escaped = || code.split('\'').take(nth).any(|before| before.ends_with('E'));
                    assert!(nth % 2 == 0 || !part.contains('\\') || escaped(), "{name}: {line}");
                }
            }
        }
    }

    #[test]
    fn the_hash_of_the_schema_depends_on_its_text() {
        assert_eq!(hash(&[VIEW]), hash(&[VIEW]));
        assert_ne!(hash(&[VIEW]), hash(&[TABLES]));
    }
}
