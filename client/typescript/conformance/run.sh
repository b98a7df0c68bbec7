#!/bin/sh
# Starts the TypeScript client's conformance adapter. Run prepare.sh first.
exec node "$(dirname "$0")/../target/conformance/adapter.js"
