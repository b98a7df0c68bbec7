//! Tests that other programs can read the archive's files, with the examples exactly as in docs/operate/archive.md.

use std::fs;

use super::Setting;
use crate::support::{python::environment, *};

const PACKAGES: [&str; 4] = ["duckdb>=1.3", "pandas>=2.2", "polars>=1.20", "pyarrow>=18"];

#[tokio::test]
async fn duckdb_pandas_and_polars_read_the_archive_as_the_page_says() {
    if !has_language("python3", "HOWDAH_SKIP_PYTHON") {
        return;
    }
    let python = tokio::task::spawn_blocking(|| environment("readers", &PACKAGES)).await.expect("a Python");
    let setting = Setting::with(3_000).await;
    // Creates the jobs that the examples in docs/operate/archive.md query.
    let setup = "UPDATE howdah.task_type SET name = 'greet' WHERE name = 'mail';
                 UPDATE howdah.history SET key = 'order-4711' WHERE id = 10";
    setting.database.sql(setup).await;
    setting.archive_and_drop().await;
    let expected = [
        // Every fiftieth job of the test data is cancelled.
        "a/b:c cancelled 20\na/b:c succeeded 970\ngreet cancelled 40\ngreet succeeded 1940\nrare succeeded 30\n",
        "1980 jobs of greet\n",
        "10 greet payload 10\n",
    ];
    let programs = documented();
    assert_eq!(programs.len(), expected.len());
    for (program, expected) in programs.iter().zip(expected) {
        let mut command = tokio::process::Command::new(&python);
        command.arg("-c").arg(program).current_dir(setting.files.parent()).kill_on_drop(true);
        let output = with_timeout("the end of a program", command.output()).await.expect("python");
        assert!(output.status.success(), "{program}\n{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.join("\n") + "\n", expected, "{program}");
    }
}

/// Returns the Python examples in docs/operate/archive.md.
fn documented() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/operate/archive.md")).expect("a page");
    page.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}
