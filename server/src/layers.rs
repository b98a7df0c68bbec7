//! Tests that each module of the crates `core`, `engine` and `server` imports only modules below it in the list in the
//! `lib.rs` of its crate.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns the modules that a source file imports with `crate::`, except in its tests.
fn imports(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            None => found.extend(first_word(after)),
            Some(list) => {
                let mut depth = 0;
                let mut begins = true;
                for (at, letter) in list.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => begins = true,
                        letter if begins && !letter.is_whitespace() => {
                            found.extend(first_word(&list[at..]));
                            begins = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let of = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(of).filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

/// Returns the number of imports between modules of a crate, and the imports of modules above the importing one.
fn arrows(root: &Path) -> (usize, Vec<String>) {
    let list = fs::read_to_string(root.join("lib.rs")).expect("lib.rs");
    let modules: Vec<&str> = list
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod ")))
        .filter_map(|line| line.split(';').next())
        .collect();
    let position_of = |name: &str| modules.iter().position(|module| *module == name);
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for path in sources(root) {
        let inside = path.strip_prefix(root).expect("inside").to_string_lossy().replace('\\', "/");
        let module = inside.split(['/', '.']).next().unwrap_or_default();
        if module == "lib" || module == "layers" || inside.contains("tests") {
            continue;
        }
        let Some(own) = position_of(module) else { panic!("{inside} is of no module in lib.rs") };
        for import in imports(&fs::read_to_string(&path).expect("a source")) {
            if let Some(used) = position_of(&import).filter(|&used| used != own) {
                arrows += 1;
                if used < own {
                    wrong.push(format!("{inside} uses {import}, which is above {module}"));
                }
            }
        }
    }
    (arrows, wrong)
}

#[test]
fn modules_use_only_modules_below_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut all, mut wrong) = (0, Vec::new());
    for source in ["core/src", "engine/src", "src"] {
        let (arrows, upward) = arrows(&folder.join(source));
        all += arrows;
        wrong.extend(upward);
    }
    assert!(all > 50, "the imports were read: {all}");
    assert!(wrong.is_empty(), "imports go down the list in lib.rs:\n{}", wrong.join("\n"));
}

#[test]
fn imports_are_found_in_every_form() {
    let source = "use crate::a::X;\nuse crate::{\n    b::{Y, Z},\n    c,\n};\nfn f() { crate::d::g() }\n// crate::e";
    assert_eq!(imports(source).into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
}
