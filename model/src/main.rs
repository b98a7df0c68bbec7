//! `cargo run -p howdah-model -- --without token`: the shortest run in which something goes wrong without this check.

#![allow(clippy::print_stdout, reason = "it is a program for people")]

use std::process::ExitCode;

use clap::Parser;
use howdah_model::{Checks, Sizes, Without, check};

/// Looks at every order in which brokers, workers and Postgres can act on a lease.
#[derive(Parser)]
struct Args {
    /// Take out this check, and show what goes wrong
    #[arg(long, value_enum)]
    without: Option<Without>,
    /// How large a model
    #[arg(long, value_enum, default_value = "small")]
    size: Sizes,
    /// Threads. With one, the run that is shown is the shortest
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
            println!("\nThis does not hold: {property}.\n\n{steps}");
            return ExitCode::FAILURE;
        }
    }
    println!("everything holds");
    ExitCode::SUCCESS
}
