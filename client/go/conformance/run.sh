#!/bin/sh
# Starts the Go client's conformance adapter, which prepare.sh has built.
exec "$(dirname "$0")/../../../target/go/howdah-conformance-go"
