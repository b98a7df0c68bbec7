//! Collects the Rust blocks of the pages as functions that the system tests compile (`tests/system/pages/rust.rs`). A comment
//! `<!-- given NAME: TYPE -->` before a block declares a variable that the block uses.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

const HEAD: &str = "\
//! Rust blocks of the pages, written by `just reference`. The test is that they compile.
#![allow(unused_imports, unused_variables, unused_mut, unused_must_use, dead_code, clippy::all, clippy::print_stdout)]
";

#[test]
fn the_rust_blocks_of_the_pages_are_those_that_the_tests_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut code = HEAD.to_owned();
    for page in pages(&root) {
        let text = fs::read_to_string(root.join(&page)).expect("a page");
        let stem = page.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        for (index, (given, block)) in blocks(&text).into_iter().enumerate() {
            let n = index + 1;
            let _ = write!(
                code,
                "\n/// {}\nasync fn {stem}_{n}({given}) -> Result<(), Box<dyn std::error::Error>> {{\n\
                 use howdah_client::*;\n{block}Ok(())\n}}\n",
                page.display()
            );
        }
    }
    let file = root.join("tests/system/pages/rust.rs");
    if super::rewrites() {
        fs::write(&file, code).expect("a file that can be written");
    } else {
        let stored = fs::read_to_string(&file).expect("the blocks");
        assert!(stored == code, "tests/system/pages/rust.rs is not what the pages say; run `just reference`");
    }
}

/// Returns README.md and the pages of docs, sorted by path.
fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("README.md")];
    for folder in ["docs", "docs/concepts", "docs/reference", "docs/operate", "docs/internals"] {
        let entries = fs::read_dir(root.join(folder)).expect(folder);
        let names = entries.map(|entry| Path::new(folder).join(entry.expect("a page").file_name()));
        pages.extend(names.filter(|page| page.extension().is_some_and(|extension| extension == "md")));
    }
    pages.sort();
    pages
}

/// Returns the declared variables and the code of each block.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut given = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(more) = line.strip_prefix("<!-- given ").and_then(|rest| rest.strip_suffix(" -->")) {
            let _ = write!(given, "mut {more}, ");
        } else if line.trim() == "```rust" {
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            blocks.push((std::mem::take(&mut given), block.join("\n") + "\n"));
        }
    }
    blocks
}
