//! The pages of the documentation: every block that can run is run as it is written, in order, with the `howdah` of this
//! build. A page starts its own broker or finds one running. What the page shows of the output is compared, but for times
//! and for what it leaves out with `…`.
//!
//! | in a page | what happens |
//! |---|---|
//! | ```` ```sh ````, ```` ```console ```` | bash runs the commands one after the other, all of a page in one shell |
//! | ```` ```sql ```` | psql runs it |
//! | ```` ```rust ```` | it is compiled as part of `rust.rs`, which `just reference` writes |
//! | ```` ```sh no-run ```` | it is left out, and named on standard error |
//! | a line `> …` in what a command prints | it is typed, when all before it has come |
//! | `<!-- run` … `-->` | bash runs it, and readers do not see it: what a block takes for granted |
//!
//! Brokers, and workers that do not end by themselves, are left running until the page ends. Ports are free ones: where a
//! page has 7432, 7433 or 8080 on 127.0.0.1, or what its `ready` line shows, the real one is put.

mod compare; // what is shown, against what came
mod dialog; // commands that are typed to
mod markdown; // the blocks of a page
#[rustfmt::skip] // it has to be as in the pages
mod rust; // the Rust blocks, compiled
mod shell; // one bash a page

use std::{fs, path::Path};

use crate::support::{root, stores};

use self::{
    markdown::{Language, Step, blocks},
    shell::Shell,
};

/// Runs a page from its first block to its last.
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
            // An error that is shown is what the page is about.
            let good = came.status == 0 || ["howdah: ", "ERROR:"].iter().any(|word| shown.starts_with(word));
            assert!(good, "{at}: exit status {}\n$ {command}\n{}", came.status, came.output);
            shell.learn(shown, &came.output).await;
            // Pages show what commands say of one store.
            let output = if stores::are_two() { stores::own_table(&came.output) } else { came.output.clone() };
            if let Err(difference) = compare::same(&shell.real(shown), &output) {
                panic!("{at}: {difference}\n$ {command}\n--- shown\n{shown}\n--- came\n{}", came.output);
            }
        }
    }
    shell.end().await;
}

/// A test for each page, so that they run at the same time.
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
}

#[test]
fn every_page_with_something_to_run_is_run() {
    let folders = ["", "docs", "docs/concepts", "docs/reference", "docs/operate", "docs/internals"];
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
