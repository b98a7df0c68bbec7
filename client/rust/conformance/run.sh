#!/bin/sh
# Runs the Rust client's conformance adapter, conformance/rust, built by `cargo build -p howdah-conformance`.
set -eu
cd "$(dirname "$0")/../../.."
exec "${CARGO_TARGET_DIR:-target}/debug/howdah-conformance-rust"
