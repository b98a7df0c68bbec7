//! Generates the tables of `docs/reference` from the definitions in the code. In a page, the text between the lines
//! `<!-- generated: NAME -->` and `<!-- end -->` is generated. `just reference` rewrites the pages, and the tests compare them.

mod examples; // Rust blocks of all pages, for the compiler
mod metrics; // metrics, from the registry
mod tables; // commands, options of a job, settings

use std::{
    collections::BTreeSet,
    fmt::{Display, Write as _},
    fs,
    path::{Path, PathBuf},
};

/// Function that generates a table. Its arguments are the words after the name in the marker.
type Table = fn(&[&str]) -> String;

const TABLES: [(&str, Table); 6] = [
    ("cluster-settings", tables::cluster_settings),
    ("commands", tables::commands),
    ("metrics", metrics::table),
    ("options", tables::options),
    ("option-names", tables::option_names),
    ("settings", tables::settings),
];

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

#[test]
#[cfg_attr(not(feature = "archive"), ignore = "the tables describe the program with the archive")]
fn the_tables_of_the_reference_are_those_of_the_code() {
    let mut used = BTreeSet::new();
    let mut stale = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let current = filled(&text, &mut used);
        if current != text && rewrites() {
            fs::write(&page, current).expect("write the reference page");
        } else if current != text {
            stale.push(page.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    assert!(stale.is_empty(), "{} of docs/reference: not what the code says; run `just reference`", stale.join(", "));
    let known: BTreeSet<String> = TABLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(used.iter().map(|marker| first(marker)).collect::<BTreeSet<_>>(), known, "tables in pages vs generated");
    for (name, all) in [("commands", tables::all_commands()), ("metrics", metrics::all())] {
        let words = used.iter().filter_map(|marker| marker.strip_prefix(name)?.strip_prefix(' '));
        let shown: BTreeSet<String> = words.flat_map(str::split_whitespace).map(str::to_owned).collect();
        assert_eq!(shown, all, "arguments of {name} in pages, and in the code");
    }
}

/// Returns whether this run writes the pages instead of comparing them.
fn rewrites() -> bool {
    std::env::var_os("HOWDAH_REFERENCE").is_some_and(|value| value == "write")
}

fn pages() -> impl Iterator<Item = PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    fs::read_dir(folder).expect("docs/reference").map(|entry| entry.expect("a page").path())
}

/// Returns a page with regenerated tables.
fn filled(text: &str, used: &mut BTreeSet<String>) -> String {
    let mut page = String::new();
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        page.push_str(line);
        let marker = line.trim_end().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->"));
        // The server's own test generates the tables of limits from its private constants.
        let Some(marker) = marker.filter(|marker| !marker.starts_with("limits ")) else { continue };
        let words: Vec<&str> = marker.split_whitespace().collect();
        let (_, table) = TABLES.iter().find(|(name, _)| *name == words[0]).expect(marker);
        // Markdown needs empty lines around a table.
        let _ = write!(page, "\n{}\n\n{END}\n", table(&words[1..]).trim_end());
        assert!(lines.by_ref().any(|line| line.trim_end() == END), "{marker} has no {END}");
        used.insert(marker.to_owned());
    }
    page
}

fn first(marker: &str) -> String {
    marker.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Formats a table in Markdown.
fn markdown<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| {
        let cells = cells.iter().map(|cell| if cell.is_empty() { " |".into() } else { format!(" {cell} |") });
        format!("|{}\n", cells.collect::<String>())
    };
    let mut table = line(&heading.map(str::to_owned));
    let _ = writeln!(table, "|{}", "---|".repeat(N));
    table.extend(rows.into_iter().map(|row| line(&row)));
    table
}

/// Formats text as code in Markdown. Returns empty text unchanged.
fn code(text: impl Display) -> String {
    let text = text.to_string();
    if text.is_empty() { text } else { format!("`{text}`") }
}

#[test]
#[should_panic(expected = "no-such-table")]
fn a_marker_that_names_no_table_is_an_error() {
    filled("<!-- generated: no-such-table -->\n<!-- end -->\n", &mut BTreeSet::new());
}
