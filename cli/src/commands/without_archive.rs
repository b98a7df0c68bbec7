//! Stubs of `howdah archive` and `howdah history`, for builds without the feature `archive`.

use std::borrow::Borrow;

use super::{context::Global, failure::Failure};

/// Not part of this build: see `howdah archive`
///
/// This program was built without the archive, which keeps finished jobs as Parquet files. `cargo build --features archive`
/// includes the archive, and so do published packages.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ignored
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    ignored: Vec<String>,
}

pub(super) type Command = Args;

pub(super) fn run(_: impl Borrow<Args>, _: &Global) -> Result<(), Failure> {
    Err(Failure::usage("this program was built without the archive; `cargo build --features archive` builds it in"))
}
