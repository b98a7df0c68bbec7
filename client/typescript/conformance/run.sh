#!/bin/sh
# Starts the adapter. Run prepare.sh first.
exec node "$(dirname "$0")/../target/conformance/adapter.js"
