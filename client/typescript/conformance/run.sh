#!/bin/sh
# Starts the adapter, after prepare.sh.
exec node "$(dirname "$0")/../target/conformance/adapter.js"
