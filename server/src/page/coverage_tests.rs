//! Checks that the browser tests in tests/system/ui cover each view and each action of the page. These tests use a browser
//! without scripts.

use std::{fs, path::Path};

use super::{action::ActionKind, views};

/// Returns file names and contents of the browser tests of the page.
fn tests() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/system/ui");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap())).collect()
}

#[test]
fn each_action_is_tried_and_refused_by_a_page_that_is_read_only() {
    let (refused, tried): (Vec<_>, Vec<_>) = tests().into_iter().partition(|(file, _)| file == "reading.rs");
    for kind in ActionKind::ALL {
        let name = format!("\"{}\"", kind.words().name);
        for (which, files) in [("tests/system/ui/reading.rs has", &refused), ("tests/system/ui has", &tried)] {
            assert!(files.iter().any(|(_, text)| text.contains(&name)), "{which} no test for the action {name}");
        }
    }
}

#[test]
fn each_view_is_tried() {
    let tests = tests();
    for (path, _) in views() {
        let opened = [format!("\"/ui{path}\""), format!("\"/ui{path}?"), format!("GET /ui{path} ")];
        let is_tried = tests.iter().any(|(_, text)| opened.iter().any(|opened| text.contains(opened)));
        assert!(is_tried, "no test of tests/system/ui opens /ui{path}");
    }
}

#[test]
fn scripts_are_tried_in_each_view() {
    let scripts = tests().into_iter().find(|(file, _)| file == "scripts.rs").unwrap().1;
    // Skips `/live`, which is an endless event stream.
    for (path, _) in views().into_iter().filter(|(path, _)| *path != "/live") {
        let opened = [format!("\"/ui{path}\""), format!("\"/ui{path}?")];
        assert!(
            opened.iter().any(|opened| scripts.contains(opened)),
            "tests/system/ui/scripts.rs does not open /ui{path}"
        );
    }
}
