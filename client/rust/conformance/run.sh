#!/bin/sh
# The adapter of the Rust client: conformance/rust. Built by `cargo build -p howdah-conformance`.
set -eu
cd "$(dirname "$0")/../../.."
exec "${CARGO_TARGET_DIR:-target}/debug/howdah-conformance-rust"
