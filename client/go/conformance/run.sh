#!/bin/sh
# Starts the adapter, after prepare.sh.
exec "$(dirname "$0")/../../../target/go/howdah-conformance-go"
