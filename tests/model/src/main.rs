//! Runs the model checker. `cargo run -p howdah-model -- --without token` prints the shortest run that goes wrong without the token
//! check.

#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::process::ExitCode;

use clap::Parser;
use howdah_model::{Checks, Sizes, Without, check};

/// Explores every order in which brokers, workers and Postgres can act on a lease
#[derive(Parser)]
struct Args {
    /// Disable this check, and show what goes wrong
    #[arg(long, value_enum)]
    without: Option<Without>,
    /// Size of the model
    #[arg(long, value_enum, default_value = "small")]
    size: Sizes,
    /// Number of threads. With one thread, the printed run is the shortest
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(if args.without.is_some() { 1 } else { cores });
    for size in args.size.all() {
        let checked = check(size, Checks::without(args.without), threads);
        println!("{}: {} states, depth {}, {:.1?}", size.name, checked.states, checked.depth, checked.took);
        if let Some((property, steps)) = checked.violated {
            println!("\nViolated: {property}.\n\n{steps}");
            return ExitCode::FAILURE;
        }
    }
    println!("all properties hold");
    ExitCode::SUCCESS
}
