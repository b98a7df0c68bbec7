//! Runs the pages of the documentation and of `tests/mission`: each runnable block as it is written, in order, with this
//! build's `howdah`. A page starts a broker or uses a running one. The test compares the output that a page shows with the
//! actual output, except for times and for parts that the page omits with `…`.
//!
//! | in a page | what happens |
//! |---|---|
//! | ```` ```sh ````, ```` ```console ```` | bash runs the commands in order, all blocks of a page in one shell |
//! | ```` ```sql ```` | psql runs it |
//! | ```` ```rust ```` | compiled as part of `rust.rs`, which `just reference` generates |
//! | ```` ```sh no-run ```` | skipped, and named on standard error |
//! | a line `> …` in the output of a command | sent as input, after all output before it has arrived |
//! | `<!-- run` … `-->` | bash runs it, hidden from readers: prerequisites of a block |
//!
//! Brokers, and workers without an end, run until the page ends. Listeners use free ports: where a page has 7432, 7433 or 8080
//! on 127.0.0.1, or the addresses of its `ready` line, the test inserts the real ones.

mod compare; // compares shown and actual output
mod dialog; // interactive commands
mod markdown; // the blocks of a page
mod mission; // the sections of `tests/mission`
#[rustfmt::skip] // must match the pages
mod rust; // the Rust blocks, compiled
mod shell; // one bash per page

use std::{fs, path::Path};

use crate::support::{root, stores};

use self::{
    markdown::{Language, Step, blocks},
    shell::Shell,
};

/// Runs all blocks of a documentation page in order.
async fn follow(page: &str) {
    let text = fs::read_to_string(root().join(page)).expect(page);
    let blocks = blocks(&text);
    for block in blocks.iter().filter(|block| !block.run) {
        eprintln!("{page}:{}: not run", block.line);
    }
    if let Some(program) = shell::missing_program(&blocks) {
        eprintln!("!!! {program} is not installed: {page} is NOT run");
        return;
    }
    let mut shell = Shell::start(&blocks).await;
    for block in blocks.iter().filter(|block| block.run) {
        let at = format!("{page}:{}", block.line);
        for step in block.steps() {
            if dialog::is_dialog(&step) {
                dialog::follow(&mut shell, &step, &at).await;
                continue;
            }
            let Step { command, shown } = &step;
            let came = match block.language {
                Language::Shell => shell.command(command).await,
                Language::Sql => shell.sql(command).await,
                Language::Other => continue,
            };
            // A command may fail if the page shows an error as the command's output.
            let good = came.status == 0 || ["howdah: ", "ERROR:"].iter().any(|word| shown.starts_with(word));
            assert!(good, "{at}: exit status {}\n$ {command}\n{}", came.status, came.output);
            shell.learn(shown, &came.output).await;
            // Pages show the output of a broker with one store, so remove the column of stores from the actual output.
            let output = if stores::are_two() { stores::own_table(&came.output) } else { came.output.clone() };
            if let Err(difference) = compare::same(&shell.real(shown), &output) {
                panic!("{at}: {difference}\n$ {command}\n--- shown\n{shown}\n--- came\n{}", came.output);
            }
        }
    }
    shell.end().await;
}

/// Generates one test per documentation page, so that pages run concurrently.
macro_rules! pages {
    ($($(#[$condition:meta])? $name:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];

        mod runs_as_it_is_written {
            $(
                $(#[$condition])?
                #[tokio::test]
                async fn $name() {
                    super::follow($page).await;
                }
            )*
        }
    };
}

pages! {
    readme: "README.md",
    tour: "docs/tour.md",
    jobs: "docs/concepts/jobs.md",
    keys: "docs/concepts/keys.md",
    limits: "docs/concepts/limits.md",
    ordering: "docs/concepts/ordering.md",
    failures: "docs/concepts/failures.md",
    schedules: "docs/concepts/schedules.md",
    stages: "docs/concepts/stages.md",
    grpcurl: "docs/reference/grpcurl.md",
    http: "docs/reference/http.md",
    options: "docs/reference/options.md",
    protocol: "docs/reference/protocol.md",
    settings: "docs/reference/settings.md",
    sql: "docs/reference/sql.md",
    workers: "docs/reference/workers.md",
    benchmark: "docs/operate/benchmark.md",
    deploy: "docs/operate/deploy.md",
    endurance: "docs/operate/endurance.md",
    high_availability: "docs/operate/high-availability.md",
    pg_task: "docs/operate/pg_task.md",
    #[cfg(feature = "archive")]
    archive: "docs/operate/archive.md",
    audit: "docs/operate/audit.md",
    bulk: "docs/operate/bulk.md",
    jwt: "docs/operate/jwt.md",
    statistics: "docs/operate/statistics.md",
    search: "docs/operate/search.md",
    tokens: "docs/operate/tokens.md",
    security: "docs/operate/security.md",
    tls: "docs/operate/tls.md",
    tracing: "docs/operate/tracing.md",
    troubleshoot: "docs/operate/troubleshoot.md",
    mission_q: "tests/mission/q.md",
    mission_t: "tests/mission/t.md",
    mission_d: "tests/mission/d.md",
    #[cfg(feature = "archive")]
    mission_d_archive: "tests/mission/d-archive.md",
    mission_s: "tests/mission/s.md",
}

#[test]
fn every_page_with_something_to_run_is_run() {
    let folders = ["", "docs", "docs/concepts", "docs/reference", "docs/operate", "docs/internals", "tests/mission"];
    let files = folders.into_iter().flat_map(|folder| {
        let entries = fs::read_dir(root().join(folder)).expect(folder);
        entries.map(move |entry| Path::new(folder).join(entry.expect("a file").file_name()))
    });
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let page = file.to_string_lossy().into_owned();
        let text = fs::read_to_string(root().join(&file)).expect("a page");
        let runs = blocks(&text).iter().any(|block| block.run && block.language != Language::Other);
        assert!(!runs || PAGES.contains(&&page[..]), "{page} has blocks that no test runs");
    }
}

#[test]
fn concepts_show_the_same_examples_in_python_and_typescript() {
    for entry in fs::read_dir(root().join("docs/concepts")).expect("a folder") {
        let path = entry.expect("a file").path();
        let Some("md") = path.extension().and_then(|extension| extension.to_str()) else { continue };
        let text = fs::read_to_string(&path).expect("a page");
        let count = |language: &str| text.lines().filter(|line| line.trim() == format!("```{language}")).count();
        assert_eq!(count("python"), count("ts"), "{}", path.display());
        let others = ["rust", "sh", "console"].iter().any(|language| count(language) > 0);
        assert!(!others || count("python") > 0, "{} has no example in Python and TypeScript", path.display());
    }
}
