//! Looks whether each view and each action has a test: those are in tests/ui, where a browser without scripts tries them.

use std::{fs, path::Path};

use super::{views, what::What};

/// The tests of the page: the names of files, and what is in them.
fn tests() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ui");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap())).collect()
}

#[test]
fn each_action_is_tried_and_refused_by_a_page_that_is_read_only() {
    let (refused, tried): (Vec<_>, Vec<_>) = tests().into_iter().partition(|(file, _)| file == "reading.rs");
    for what in What::ALL {
        let name = format!("\"{}\"", what.words().name);
        for (which, files) in [("tests/ui/reading.rs has", &refused), ("tests of tests/ui have", &tried)] {
            assert!(files.iter().any(|(_, text)| text.contains(&name)), "{which} no action {name}");
        }
    }
}

#[test]
fn each_view_is_tried() {
    let tests = tests();
    for (path, _) in views() {
        let asked = [format!("\"/ui{path}\""), format!("\"/ui{path}?"), format!("GET /ui{path} ")];
        let is_tried = tests.iter().any(|(_, text)| asked.iter().any(|asked| text.contains(asked)));
        assert!(is_tried, "no test of tests/ui looks at /ui{path}");
    }
}

#[test]
fn scripts_are_tried_in_each_view() {
    let scripts = tests().into_iter().find(|(file, _)| file == "scripts.rs").unwrap().1;
    // Live figures are numbers, and the stream has no end.
    for (path, _) in views().into_iter().filter(|(path, _)| *path != "/live") {
        let asked = [format!("\"/ui{path}\""), format!("\"/ui{path}?")];
        assert!(asked.iter().any(|asked| scripts.contains(asked)), "tests/ui/scripts.rs does not look at /ui{path}");
    }
}
