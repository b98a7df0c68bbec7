//! The program `howdah-conformance`.

use std::process::ExitCode;

use clap::Parser as _;
use howdah_conformance::{Args, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("howdah-conformance: {why}");
            ExitCode::from(2)
        }
    }
}
