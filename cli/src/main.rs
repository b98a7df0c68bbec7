//! The program `howdah`.

use std::{env, process::ExitCode};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // These checks must run before any thread starts: this process may become Postgres, or the process that watches a worker.
    if let Some(error) = howdah_cli::postgres::run_if_guard(env::args_os()) {
        eprintln!("howdah: {error}");
        return ExitCode::FAILURE;
    }
    if howdah_cli::workers::watchman::run_if_watchman(env::args_os()) {
        return ExitCode::SUCCESS;
    }
    if let Err(problem) = howdah_cli::secrets::conceal(env::args_os()) {
        eprintln!("howdah: {problem}");
        return ExitCode::FAILURE;
    }
    howdah_cli::commands::main()
}
